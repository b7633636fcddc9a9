"""One engine and its request reader, for all its components.

Conversion of an engine's tokens to the steps of an answer.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from omnibus.checkpoints.generation_config import read_sampling
from omnibus.errors import BadRequest, StageUnavailable
from omnibus.executor.runner import Job
from omnibus.executor.scheduler import due_time
from omnibus_engines.component import Compute
from omnibus_llm.engine.history import fit_history
from omnibus_llm.engine.params import (
    MAX_TRUNCATED_CONTEXTS,
    TextGenerationParams,
    build_sampling,
    max_answer_tokens,
    truncate_prompt,
    unknown_adapter_error,
)
from omnibus_llm.engine.sequence import TokenStep
from omnibus_llm.runners.answer_parser import answer_grammar, check_grammar
from omnibus_llm.runners.talker import ComputeRows
from omnibus_llm.runners.thinker import (
    Take,
    count_tokens,
    engine_limit,
    read_items,
    read_messages,
    read_text_params,
    resumed_tokens,
)
from omnibus_llm.vllm.protocol import Generation, Launch, Tokens, VllmEngine
from omnibus_llm.vllm.request import PromptTokenizer, TalkerRows, VllmRequest, is_text
from omnibus_llm.vllm.supervisor import EngineSupervisor
from omnibus_models.contract import Reader, TokenizedPrompt, TokenSamplingParams
from omnibus_models.families import load_family as find


class AnswerTokens:
    """The ids of an answer: those of its engine, after the ``known_ids`` ones.

    ``counts``: see ``VllmCore.token_reader``.
    """

    def __init__(self, known_ids: Sequence[int], counts: dict[str, int] | None) -> None:
        self._known = known_ids
        self._counts = counts

    def next_ids(self, tokens: Tokens) -> Sequence[int]:
        if tokens.cached and self._counts is not None:  # resumed tokens are cached as well
            self._counts["cached_tokens"] = min(tokens.cached, self._counts["prompt_tokens"])
        known_ids, self._known = self._known, ()
        return [*known_ids, *tokens.ids] if known_ids else tokens.ids


def build_steps(tokens: Tokens, ids: Sequence[int], sides: Sequence[np.ndarray] | None) -> list[TokenStep]:
    """Return the steps of ``ids``, which end with ``tokens``.

    ``sides`` are the data of each for a talker.
    """
    steps = [TokenStep(id, None) for id in ids]
    if sides is not None:
        steps = [step._replace(side=side) for step, side in zip(steps, sides, strict=True)]
    if tokens.logprobs:
        steps = [step._replace(logprobs=each) for step, each in zip(steps, tokens.logprobs, strict=True)]
    if tokens.finish is not None:
        steps[-1] = steps[-1]._replace(finish=tokens.finish)
    return steps


class PreparedVllmRequest(NamedTuple):
    """One request, ready for the engine; ``order`` must be closed.

    ``known`` are the first tokens of its answer, which an earlier attempt generated; ``limit`` includes them.
    ``thinking``: see ``TokenizedPrompt``. ``grammar`` is a Lark grammar of the answer, "" for any text. ``spoken`` is
    True if a talker follows, or will follow the answer to a prompt that is only computed now.
    """

    params: TextGenerationParams
    order: VllmRequest
    limit: int
    counts: dict[str, int]
    known: tuple[int, ...] = ()
    thinking: bool | None = False
    grammar: str = ""
    spoken: bool = False


class PausedDecode(NamedTuple):
    """An answer after its first token, until its decode has ``taken`` it.

    ``steps`` are already made. ``compute_rows``: see ``SpeechWriter``. ``held`` are the resources that it needs until
    its end.
    """

    number: int
    invocation: str
    take: Take
    steps: Sequence[TokenStep]
    compute_rows: ComputeRows
    held: AsyncExitStack
    taken: asyncio.Event


class VllmCore:
    """A model's request reader, and its engine in a separate process.

    This process loads token embeddings but no layers. Each user calls ``load`` and ``close`` once. ``make`` builds the
    engine of ``launch``; a ``launch.context`` of 0 means the model's own.
    """

    def __init__(self, family: str, launch: Launch, make: Callable[[Launch], VllmEngine]) -> None:
        self._family = family
        self._launch = launch
        self._make = make
        self._keeper = EngineSupervisor(launch.component, self._make_engine)
        #: Calls functions in the thread that copies embeddings.
        self.hands = Compute(launch.component, max(1, launch.threads))
        # Tokenizing must not wait for embeddings.
        self._words = PromptTokenizer(f"{launch.component}-words")
        self._users = 0
        #: True after its last user has closed it: it cannot be loaded again.
        self.closed = False
        self._ids = count(1)
        self._numbers = count()
        self._going: dict[int, PausedDecode] = {}
        #: Recommendations of the checkpoint's authors, see ``omnibus.checkpoints.generation_config``.
        self.sampling = read_sampling(launch.checkpoint)
        self.reader: Reader

    @property
    def serving(self) -> bool:
        return self._keeper.serving

    @property
    def engine(self) -> VllmEngine:
        """The engine. Raises ``StageUnavailable`` while there is none."""
        return self._keeper.engine

    @property
    def component(self) -> str:
        """The component that the engine was started for."""
        return self._launch.component

    @property
    def has_halves(self) -> bool:
        """True if the engine gives caches of prompts and takes them."""
        return self._launch.halves

    @property
    def slots(self) -> int:
        return self._launch.slots

    @property
    def keeps_prompts(self) -> bool:
        """True if prompts reuse the blocks of earlier ones."""
        return self._launch.prefix_cache

    def keeps_nothing(self, request: PreparedVllmRequest) -> bool:
        """Return True if computing a prompt would be useless.

        That is so if its answer is spoken and the engine keeps no rows.
        """
        return request.params.prefill_only and request.spoken and not self.engine.keeps_rows

    async def load(self) -> None:
        self._users += 1
        if self._users > 1:
            return
        launch = self._launch
        self.reader = await self.hands(find(self._family).reader, launch.checkpoint, launch.dtype)
        if launch.speculative_tokens and self.reader.speaks:
            raise BadRequest("vLLM cannot speculate for a model that speaks: set OMNIBUS_VLLM_SPECULATIVE_TOKENS=0")
        context = min(launch.context or self.reader.context, self.reader.context)
        self._launch = replace(launch, context=context, rows=self.reader.speaks)
        await self._keeper.start()

    async def close(self) -> None:
        self._users -= 1
        if self._users > 0:
            return
        self.closed = True
        await self._keeper.close()
        await self.hands.close()
        await self._words.close()

    def stats(self) -> dict[str, Any]:
        state = {"serving": self.serving, "restarts": self._keeper.restarts, "slots": self._launch.slots}
        return {**state, **self.engine.stats()} if self.serving else state

    def _make_engine(self) -> VllmEngine:
        return self._make(self._launch)

    # Requests

    async def read_request(self, job: Job) -> PreparedVllmRequest:
        """Read the inputs of a think or prefill ``job``: ``messages``, ``items``, ``params``, ``voice``."""
        params = await read_text_params(job, self.sampling)
        if params.say is not None:
            raise BadRequest("`say` needs the transformers engine: vLLM chooses every token", param="say")
        self._check_adapter(params)
        voice = self._read_voice(job)
        is_spoken = voice is not None or (params.prefill_only and bool(job.inputs.get("voice")))
        prompt = await self._tokenize_prompt(job, params)
        items = await read_items(job)
        if is_text(prompt, items, voice):
            order = VllmRequest(self.reader, prompt, items, voice)
        else:
            order = await self.hands(VllmRequest, self.reader, prompt, items, voice)
        length = len(order.ids)
        try:
            limit = self.answer_limit(length, params)
            limit = 1 if params.prefill_only else limit
        except BaseException:
            order.close()
            raise
        grammar = answer_grammar(self.reader, params) or ""
        if grammar:
            await self._words.run(check_grammar, grammar)
        # Grammars and changed logits depend on all tokens of an answer, so these requests start from the first one.
        known_ids = () if grammar or params.changes_logits else resumed_tokens(job, "text")[: limit - 1]
        if known_ids:
            order.begin_after(known_ids)
        counts = count_tokens(length, items)
        return PreparedVllmRequest(params, order, limit, counts, known_ids, prompt.thinking, grammar, is_spoken)

    def _check_adapter(self, params: TextGenerationParams) -> None:
        is_declared = params.adapter_source is None  # the engine loads those with a source
        if params.adapter and is_declared and params.adapter not in dict(self._launch.adapters):
            raise unknown_adapter_error(params.adapter)

    def answer_limit(self, length: int, params: TextGenerationParams) -> int:
        """Return the most tokens of an answer to a prompt of ``length``. Raises ``ContextTooLong``, ``BadRequest``."""
        return max_answer_tokens(self._launch.context, length, params.max_tokens, params.usual_tokens)

    async def _tokenize_prompt(self, job: Job, params: TextGenerationParams) -> TokenizedPrompt:
        messages = await read_messages(job)
        context = self._launch.context
        if params.drop_history:
            tokenize = partial(self.reader.prompt, context=context, options=params.prompt_options)
            return await self._words.run(fit_history, tokenize, messages, context - (params.max_tokens or 1))
        longest = context if params.truncate_prompt_tokens is None else context * MAX_TRUNCATED_CONTEXTS
        whole = await self._words.tokenize(self.reader, messages, longest, params.prompt_options)
        return truncate_prompt(whole, params, context)

    def _read_voice(self, job: Job) -> str | None:
        if not job.has_consumer("prompt"):
            return None
        if not self.reader.speaks:
            raise BadRequest("this model has no voice; request text only", param="modalities")
        return str(job.inputs.get("voice") or "")

    def build_generation(self, request: PreparedVllmRequest, seed: int, **more: Any) -> Generation:
        """Build the engine's request; ``seed`` is the invocation's, ``more`` are fields of ``Generation``."""
        order, params = request.order, request.params
        usual = {
            "ids": order.ids,
            "media": order.media,
            "positions": order.positions,
            "parcel": None if order.parcel is None else order.parcel.place,
            "rows": None if order.voice is None else order.voice.rows.place,
            "sampling": self.build_sampling(
                params, engine_limit(request.limit, order.voice is not None) - len(request.known), seed, request.grammar
            ),
            "draws": len(request.known),
            "spoken": request.spoken,
        }
        return self.new_generation(params, **{**usual, **more})

    def new_generation(self, params: TextGenerationParams, **fields: Any) -> Generation:
        """Return a ``Generation`` with a new number. Raises ``NotFound`` for an unknown adapter."""
        priority = self._due_priority(len(fields["ids"])) if self._launch.goals.ttft else 0
        self._check_adapter(params)
        return Generation(
            id=str(next(self._ids)),
            ends=self.end_tokens(params),
            priority=priority,
            adapter=params.adapter,
            adapter_source=params.adapter_source,
            cache_salt=params.cache_salt,
            **fields,
        )

    def _due_priority(self, tokens: int) -> int:
        """Return the due time of a prompt that arrives now, in ms.

        Short prompts overtake others, but none waits forever.
        """
        patience = self._launch.goals.first_step_seconds
        return int(1000 * due_time(time.monotonic(), patience, tokens, self._launch.context))

    def build_sampling(
        self, params: TextGenerationParams, limit: int, seed: int, grammar: str = ""
    ) -> TokenSamplingParams:
        sampling = build_sampling(params, limit, seed, self.end_tokens(params))
        return replace(sampling, ignore_eos=params.ignore_eos, grammar=grammar)

    def end_tokens(self, params: TextGenerationParams) -> frozenset[int]:
        """Return the tokens that end an answer."""
        return (frozenset() if params.ignore_eos else self.reader.eos) | frozenset(params.stop_token_ids)

    def token_reader(
        self, stream: Any, voice: TalkerRows | None, known_ids: Sequence[int] = (), counts: dict[str, int] | None = None
    ) -> Take:
        """Return a function that waits for the next tokens and side data.

        Tokens are those of ``stream``; side data are a talker's input. The first tokens follow the ``known_ids`` ones.
        The tokens that the engine had cached are added to ``counts``.
        """
        answer = AnswerTokens(known_ids, counts)

        async def next_steps() -> Sequence[TokenStep]:
            tokens: Tokens = await anext(stream)
            ids = answer.next_ids(tokens)
            return build_steps(tokens, ids, None if voice is None else await self.hands(voice.next_sides, ids))

        return next_steps

    def token_consumer(
        self, consume: Callable[[Sequence[TokenStep]], bool], known_ids: Sequence[int], counts: dict[str, int]
    ) -> Callable[[Tokens], bool]:
        """Return the ``token_reader`` of an answer without speech, for ``VllmEngine.deliver``."""
        answer = AnswerTokens(known_ids, counts)
        return lambda tokens: consume(build_steps(tokens, answer.next_ids(tokens), None))

    async def compute_rows(
        self, request: PreparedVllmRequest, seed: int, stream: Any, tokens: Sequence[int], text: str
    ) -> Sequence[np.ndarray]:
        """Return the rows [H] of ``text`` after ``tokens`` of an answer.

        The ``order`` of the answer's request must be open. The ``stream`` of the answer is closed, because it may have
        the only slot.
        """
        await stream.aclose()
        length = request.counts["prompt_tokens"] + len(tokens)
        more = await self.encode_rest(text, length)
        ids, positions = request.order.inputs_after([*tokens, *more])
        with closing(TalkerRows(self.reader, length, [])) as rows:
            sampling = self.build_sampling(request.params, 1, seed)
            fields = {"ids": ids, "positions": positions, "rows": rows.rows.place, "sampling": sampling, "draws": 0}
            return await self.read_rows(self.build_generation(request, seed, **fields), rows, more)

    async def encode_rest(self, text: str, length: int) -> Sequence[int]:
        """Return the ids of ``text`` that fit after ``length`` positions."""
        return (await self._words.run(self.reader.encode_text, text))[: self._launch.context - length]

    async def read_rows(self, generation: Generation, rows: TalkerRows, tokens: Sequence[int]) -> Sequence[np.ndarray]:
        """Return the rows of ``tokens``, the last ones of the prompt.

        The engine generates one token, which is discarded.
        """
        if not tokens:
            return ()
        async with aclosing(self.engine.generate(generation)) as stream:
            await anext(stream)
        return await self.hands(rows.next_sides, [*tokens, tokens[-1]])

    # From a prefill to a decode in this process, without moving anything

    @contextmanager
    def hold_paused(
        self,
        invocation: str,
        take: Take,
        steps: Sequence[TokenStep],
        compute_rows: ComputeRows,
        exit_stack: AsyncExitStack,
    ) -> Iterator[PausedDecode]:
        """Offer an answer, until the block ends, to its decode.

        The decode must name its number and be of the same ``invocation``.
        """
        number = next(self._numbers)
        going = self._going[number] = PausedDecode(
            number, invocation, take, steps, compute_rows, exit_stack, asyncio.Event()
        )
        try:
            yield going
        finally:
            self._going.pop(number, None)

    def resume_paused(self, invocation: str, number: int) -> tuple[PausedDecode, AsyncExitStack]:
        """Take over an offered answer; returns it and the resources to close at its end.

        Raises ``StageUnavailable``.
        """
        going = self._going.get(number)
        if going is None or going.invocation != invocation or going.taken.is_set():
            raise StageUnavailable("the prefill of this answer is gone; send the request again")
        going.taken.set()
        return going, going.held.pop_all()
