"""The engine of an LLM component: messages and media embeddings in, text out, and rows for a talker.

Runners of one loaded language model share a base, so that they can switch roles without loading it again.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from collections.abc import Sequence as Rows
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from omnibus.bus.messages import BatchCounts
from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus.executor.settings import ExecutorSettings
from omnibus.graph import HANDLE
from omnibus_llm.engine.model import ThinkerCore
from omnibus_llm.engine.params import TextGenerationParams, build_sampling, complete_params, read_params
from omnibus_llm.engine.sampler import Picker, TokenLogprobs
from omnibus_llm.engine.sequence import Thinking, TokenStep
from omnibus_llm.runners.answer_parser import answer_grammar, open_parser, special_tokens
from omnibus_llm.runners.detokenize import Reply, StopRule, open_detokeniser
from omnibus_llm.runners.prompt_tokens import send_prompt_tokens
from omnibus_llm.runners.talker import SpeechWriter, SpokenTokens
from omnibus_models.contract import Reader

_NO_TOKENS: dict[int, str] = {}


class ThinkRequest(NamedTuple):
    """One request.

    ``ids`` are those of its prompt, placeholders not expanded. ``layout`` int32 [k, S] locates a talker's rows.
    ``counts`` are its tokens; for ``thinking`` see ``TokenizedPrompt``. The answer has at most ``limit`` tokens.
    """

    params: TextGenerationParams
    sequence: Thinking
    ids: tuple[int, ...]
    layout: np.ndarray
    counts: dict[str, int]
    thinking: bool | None
    limit: int


@asynccontextmanager
async def open_request(core: ThinkerCore, job: Job) -> AsyncIterator[ThinkRequest]:
    """Read the inputs of a think or prefill ``job``: ``messages``, ``items``, ``params``, ``voice``.

    The request starts after the tokens that an earlier attempt generated. Until the block ends, calls with the same
    prompt share it.
    """
    params = await read_text_params(job, core.sampling)
    async with core.use_adapter(params) as adapter:
        with core.prompts.join(job, params.prompt_options, params.prompt_key) as member:
            request = await _read_request(core, job, params)
            sequence = request.sequence
            sequence.adapter = adapter
            if member is not None and sequence.voice is None and not sequence.prefix:
                sequence.member = member
            elif member is not None:
                member.leave_group()
            cached_tokens = 0 if params.count_only else await core.use_kept_prompt(sequence, params.conversation_key)
            if cached_tokens:
                request.counts["cached_tokens"] = cached_tokens
            yield request


async def _read_request(core: ThinkerCore, job: Job, params: TextGenerationParams) -> ThinkRequest:
    voice = _read_voice(core, job, params)
    prompt = await core.tokenize_prompt(await read_messages(job), params)
    items = await read_items(job)
    prefill, layout = await core.assemble_prefill(prompt, items)
    length = prefill.inputs.shape[0]
    script = await core.tokenize_script(params, length)
    requested_tokens = 1 if params.prefill_only else params.max_tokens
    limit = len(script) or core.answer_limit(length, requested_tokens, params.usual_tokens)
    grammar = await core.open_grammar(answer_grammar(core.thinker, params))
    token_limit = limit if script else engine_limit(limit, voice is not None and not params.prefill_only)
    ends = end_tokens(core, params)
    sampling = build_sampling(params, token_limit, job.seed, ends, await core.ban_words(params))
    picker = Picker(sampling, core.thinker.vocabulary, prompt.ids, script, grammar)
    sequence = Thinking(prefill, picker, ends, voice)
    sequence.keeps_slot = voice is not None and may_cut(core.thinker, params)
    await core.resume_after(sequence, resumed_tokens(job, "text"))
    if params.prefill_only:
        sequence.prefill = None  # no talker waits for its rows
    aside = prefill.attention is not None and prefill.attention.answer_rows is not None
    return ThinkRequest(
        params, sequence, prompt.ids, layout, count_tokens(length, items, aside), prompt.thinking, limit
    )


def open_reply(
    reader: Reader,
    params: TextGenerationParams,
    thinking: bool | None,
    limit: int = 0,
    spoken_tokens: SpokenTokens | None = None,
) -> Reply:
    """Return the empty text of an answer to ``params``.

    For ``thinking`` see ``TokenizedPrompt``, for ``limit`` and ``spoken_tokens`` see ``Reply``.
    """
    parser = open_parser(reader, params, thinking)
    special = special_tokens(reader, params) if parser is not None and params.skip_special_tokens else _NO_TOKENS
    detokeniser = open_detokeniser(reader, skip_special=params.skip_special_tokens)
    stops = StopRule(params.stop, params.min_tokens, params.include_stop_str_in_output)
    return Reply(reader.decode_ids, stops, parser, special, detokeniser, limit=limit, speech=spoken_tokens)


def engine_limit(limit: int, speaks: bool) -> int:
    """Return the tokens to generate for an answer of ``limit`` tokens.

    The hidden row of a token arrives with the next one. So the engine generates one more token for a spoken answer,
    which is then discarded.
    """
    return limit + 1 if speaks else limit


def may_cut(reader: Reader, params: TextGenerationParams) -> bool:
    """True if an answer's text may differ from its tokens' text."""
    return bool(params.stop or params.tools or reader.thinks)


def resumed_tokens(job: Job, output: str) -> tuple[int, ...]:
    """Return the tokens of an earlier attempt.

    The last token may have ended the answer, so it is chosen again.
    """
    return tuple(job.resume_state(output).get("ids", ())[:-1])


def close_counted(job: Job, counts: Mapping[str, int]) -> None:
    """End the answer to a request that only counts its tokens."""
    job.close("text", {"finish_reason": "stop", "usage": {**counts, "completion_tokens": 0}})


async def prefill_prompt(sequence: Thinking, job: Job, counts: Mapping[str, int]) -> None:
    """Wait until the prompt is computed and kept, then end ``job``.

    The job has no answer.
    """
    await sequence.inbox.take_steps()
    close_counted(job, counts)


def end_tokens(core: ThinkerCore, params: TextGenerationParams) -> frozenset[int]:
    """Return the tokens that end an answer."""
    return (frozenset() if params.ignore_eos else core.thinker.eos) | frozenset(params.stop_token_ids)


def _read_voice(core: ThinkerCore, job: Job, params: TextGenerationParams) -> str | None:
    """Return the voice of the talker; with ``prefill_only``, of a later one."""
    if not job.has_consumer("prompt") and not (params.prefill_only and job.inputs.get("voice")):
        return None
    if not core.thinker.speaks:
        raise BadRequest("this model has no voice; request text only", param="modalities")
    return str(job.inputs.get("voice") or "")


async def read_text_params(job: Job, sampling: Mapping[str, float]) -> TextGenerationParams:
    """Read ``params``: a JSON object, or an ``Item`` of its UTF-8 bytes.

    Missing values are those of the checkpoint's ``sampling``. Raises ``BadRequest``.
    """
    value = job.inputs.get("params")
    if isinstance(value, dict) and HANDLE in value:
        value = _decode_document(await job.value("params"), "params")
    return read_params(complete_params({} if value is None else value, sampling), TextGenerationParams)


def _decode_document(value: Any, name: str) -> Any:
    """Return the JSON of an ``Item``; other values unchanged. Raises ``BadRequest``."""
    if not isinstance(value, Item) or value.array is None:
        return value
    try:
        return json.loads(value.array.tobytes())
    except ValueError:
        raise BadRequest(f"{name} must be UTF-8 JSON", param=name) from None


async def read_messages(job: Job) -> list[dict[str, Any]]:
    """Read ``messages``: a JSON list, or an ``Item`` of its UTF-8 bytes. Raises ``BadRequest``."""
    value = _decode_document(await job.value("messages"), "messages")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise BadRequest("messages must be a list of objects with role and content", param="messages")
    return value


async def read_items(job: Job) -> list[Item]:
    """Read ``items``: embeddings in order of appearance. Raises ``BadRequest``."""
    items = await job.value("items") or []
    if not isinstance(items, list) or not all(isinstance(item, Item) for item in items):
        raise BadRequest("items must be a list of embeddings", param="items")
    return items


def count_tokens(prompt: int, items: Rows[Item], aside: bool = False) -> dict[str, int]:
    """Count the tokens of the prompt, and of the media in it.

    Each row of an item is a token; an item for cross-attention (``aside``) is one token.
    """
    media: Counter[str] = Counter()
    for item in items:
        media[item.data.get("modality", "")] += 0 if item.array is None else 1 if aside else item.array.shape[0]
    media_counts = {f"{modality}_tokens": media[modality] for modality in ("image", "audio", "video")}
    return {"prompt_tokens": prompt, **media_counts}


class LanguagePart:
    """Base class of the runners of a language model.

    ``component`` is the component that a subclass runs, and ``decodes`` is True if it decodes answers.
    """

    _by_component: ClassVar[dict[str, type["LanguagePart"]]] = {}
    _decodes: ClassVar[bool] = True

    def __init_subclass__(cls, *, component: str = "", decodes: bool = True) -> None:
        if component:
            cls._by_component[component] = cls
            cls._decodes = decodes

    def __init__(self, core: ThinkerCore) -> None:
        self._core = core

    def switch_role(self, component: str, settings: ExecutorSettings) -> "LanguagePart":
        """See ``Runner``: every part of a language model has all of it."""
        make_runner = self._by_component.get(component)
        if make_runner is None:
            raise BadRequest(f"{component} is not part of a language model")
        return make_runner(self._core)

    async def load(self) -> None:
        await self._core.load()
        if self._decodes:
            await self._core.engine.start_decoding()

    async def close(self) -> None:
        await self._core.close()

    def stats(self) -> dict[str, Any]:
        return self._core.stats()


#: Most tokens in one message: those of an earlier attempt arrive all at once.
MAX_CHUNK_TOKENS = 256

#: Waits for the next tokens of an answer.
Take = Callable[[], Awaitable[Sequence[TokenStep]]]


class ThinkRunner(LanguagePart, component="thinker"):
    """A ``Runner`` for LLMs.

    Inputs: ``messages`` (JSON list, or an ``Item`` of its UTF-8 bytes), ``items``, ``params``
    (``TextGenerationParams``), ``voice``. ``items`` is a list of ``Item``, embeddings [n, H] with their meta, in order
    of appearance. Outputs: ``text``, streamed, and for a talker ``prompt``, ``layout`` and ``rows``, streamed.
    """

    @property
    def busy(self) -> float:
        return self._core.busy

    @property
    def keeps_prompts(self) -> bool:
        """See ``Runner``."""
        return self._core.keeps_prompts

    @property
    def batch_counts(self) -> BatchCounts:
        return self._core.batch_counts

    async def run(self, job: Job) -> None:
        async with open_request(self._core, job) as request:
            if request.params.count_only:
                if request.params.report_prompt:
                    await send_prompt_tokens(job, self._core.thinker.tokenizer, request.ids)
                close_counted(job, request.counts)
                return
            if request.params.prefill_only:
                with self._core.engine.admit(request.sequence):
                    await prefill_prompt(request.sequence, job, request.counts)
                return
            sequence, speech = request.sequence, None
            spoken_tokens = None if sequence.voice is None else SpokenTokens()
            reply = open_reply(self._core.thinker, request.params, request.thinking, request.limit, spoken_tokens)
            if spoken_tokens is not None:
                compute_rows = partial(self._core.compute_rows, sequence)
                speech = SpeechWriter(job, spoken_tokens, request.limit, compute_rows, request.layout)
            with self._core.engine.admit(sequence):
                await send_answer(job, sequence.inbox.take_steps, reply, speech)
            job.close("text", {"finish_reason": reply.finish, "usage": reply.usage(request.counts)})


class TextWriter:
    """Writes the text of an answer without speech, as its steps arrive."""

    def __init__(self, job: Job, reply: Reply) -> None:
        self._job = job
        self._reply = reply

    def add_steps(self, steps: Sequence[TokenStep]) -> bool:
        """Take the next steps and send their text; returns True when the answer is complete."""
        reply = self._reply
        for number, step in enumerate(steps, 1):
            if reply.finish is None:
                _add_step(reply, step)
            if not number % MAX_CHUNK_TOKENS:
                self._write_pending()
        self._write_pending()
        return reply.finish is not None

    def _write_pending(self) -> None:
        chunk = self._reply.next_chunk()
        if chunk is not None:
            self._job.write_text("text", chunk)


def _add_step(reply: Reply, step: TokenStep) -> None:
    reply.add(step.token, step.finish)
    if step.logprobs is not None:
        reply.add_logprobs(step.token, step.finish, step.logprobs)


async def send_answer(job: Job, take: Take, reply: Reply, speech: SpeechWriter | None) -> None:
    """Send text and rows until ``reply`` is finished and spoken."""
    is_ended = False
    while not is_ended and (reply.finish is None or (speech is not None and speech.lacks_row)):
        for number, step in enumerate(await take(), 1):
            is_ended = step.finish is not None
            if reply.finish is None:  # after a stop string the engine is one step ahead
                _add_step(reply, step)
            if speech is not None:
                speech.add(step.side)
            if not number % MAX_CHUNK_TOKENS:
                await send_pending(job, reply, speech)
        await send_pending(job, reply, speech)
    if speech is not None:
        await speech.close(reply.finish)


def is_complete(reply: Reply, speech: SpeechWriter | None) -> bool:
    """True if nothing more must be computed for an answer."""
    return reply.finish is not None and (speech is None or speech.is_complete)


async def send_tokens(
    job: Job,
    reply: Reply,
    tokens: Sequence[int],
    finish: str | None,
    speech: SpeechWriter | None,
    logprobs: TokenLogprobs | None = None,
) -> None:
    """Send the text of ``tokens``, and the rows that ``speech`` has.

    The last token may ``finish`` the answer; ``logprobs`` are its own.
    """
    for number, token in enumerate(tokens, 1):
        reply.add(token, finish if number == len(tokens) else None)
        if logprobs is not None and number == len(tokens):
            reply.add_logprobs(token, finish, logprobs)
        if not number % MAX_CHUNK_TOKENS or number == len(tokens):
            await send_pending(job, reply, speech)


async def send_pending(job: Job, reply: Reply, speech: SpeechWriter | None) -> None:
    """Send new rows and text."""
    if speech is not None:
        await speech.send()
    chunk = reply.next_chunk()
    if chunk is not None:
        await job.send_text("text", chunk)
