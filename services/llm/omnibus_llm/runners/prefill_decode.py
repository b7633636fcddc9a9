"""A language model in two halves: prefill makes a cache and the first token, and decode continues.

The cache moves through the arena as one array. Decode requests it only when it has a slot, so caches wait where they
were made and never overflow it. After copying the cache it releases the memory. If both halves run in one executor, the
sequence stays in its slot and nothing is moved. Method: TriInfer, section 4.3 (migration by pull).

Handover from prefill to decode, for any engine: the cache and the data that goes with it.
"""

import time
from collections.abc import Sequence
from collections.abc import Sequence as Rows
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from omnibus.bus.messages import BatchCounts
from omnibus.errors import ArenaFull, ProtocolError
from omnibus.executor.runner import Item, Job
from omnibus_llm.engine.params import TextGenerationParams, build_sampling
from omnibus_llm.engine.sampler import Picker, TokenLogprobs
from omnibus_llm.engine.sequence import Thinking, TokenStep
from omnibus_llm.runners.answer_parser import answer_grammar
from omnibus_llm.runners.detokenize import Reply
from omnibus_llm.runners.prompt_tokens import send_prompt_tokens
from omnibus_llm.runners.talker import SpeechWriter, SpokenTokens, send_prompt
from omnibus_llm.runners.thinker import (
    LanguagePart,
    ThinkRequest,
    close_counted,
    end_tokens,
    engine_limit,
    is_complete,
    may_cut,
    open_reply,
    open_request,
    read_text_params,
    resumed_tokens,
    send_answer,
    send_tokens,
)
from omnibus_models.contract import PrefillInputs

#: Seconds that a cache waits for memory of the arena: decode takes caches as fast as answers end.
ARENA_WAIT_SECONDS = 30.0
#: The layout of ``omnibus_llm.engine.slot_cache``: [layers, 2, kv_heads, T, head_dim].
TRANSFORMERS = "transformers"


class DecodeStart(msgspec.Struct, frozen=True):
    """Data of a prefill that decode needs in addition to the cache.

    ``seed`` is that of the first token's choice. ``finish`` is the reason if there is nothing to decode. ``here`` is
    the number of a sequence that waits in its slot; then there is no cache to read. ``resumed`` counts tokens of an
    earlier attempt before ``first_token``, which are in the cache. With ``thinking`` the answer continues reasoning
    that its prompt started. ``logprobs`` are those of the first token. ``layout`` is the arrangement of the cache,
    which only an engine with the same arrangement reads. With a repetition penalty an array carries the prompt's ids.
    For a talker it also carries the ``rows`` of resumed tokens, of this ``width``.
    """

    length: int
    rope_delta: int
    first_token: int
    seed: int
    prompt_tokens: int
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    cached_tokens: int = 0
    finish: str | None = None
    here: int | None = None
    resumed: int = 0
    thinking: bool | None = False
    logprobs: TokenLogprobs | None = None
    layout: str = TRANSFORMERS
    rows: int = 0
    width: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "image_tokens": self.image_tokens,
            "audio_tokens": self.audio_tokens,
            "video_tokens": self.video_tokens,
            **({"cached_tokens": self.cached_tokens} if self.cached_tokens else {}),
        }


async def put_start(
    job: Job,
    start: DecodeStart,
    ids: Any,
    params: TextGenerationParams,
    rows: Sequence[np.ndarray | None] = (),
) -> None:
    """Send ``start`` with its array of rows and ids.

    The ids of the prompt are sent once each for a repetition penalty, and all of them in order to report the prompt.
    ``rows`` [H] are for a talker.
    """
    id_array = None
    if params.count_only and params.report_prompt:
        id_array = np.array(ids, np.int32)
    elif params.repetition_penalty != 1.0:
        id_array = np.unique(np.array(ids, np.int32))
    row_arrays = [row for row in rows if row is not None]
    if row_arrays:  # one array carries both
        start = msgspec.structs.replace(start, rows=len(row_arrays), width=len(row_arrays[0]))
        words = np.concatenate(row_arrays, dtype=np.float32).view(np.int32)
        id_array = words if id_array is None else np.concatenate([words, id_array])
    await job.put("start", msgspec.to_builtins(start), id_array)


def read_start(value: Any, layout: str) -> tuple[DecodeStart, np.ndarray | None, list[np.ndarray]]:
    """Read the output of ``put_start``: the start, the ids seen, and rows.

    ``layout`` is that of the engine's caches. Rows are float32 [H]. Raises ``ProtocolError``.
    """
    about, words = value if isinstance(value, Item) else (value, None)
    try:
        start = msgspec.convert(about, DecodeStart)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"start is not that of a prefill: {error}") from None
    if start.layout != layout:
        raise ProtocolError(
            f"the cache of prefill has layout {start.layout!r}, but decode reads {layout!r}: "
            "declare the same engine, device and dtype for both"
        )
    count, width = start.rows, start.width
    if not count:
        return start, words, []
    if words is None or words.dtype != np.int32 or len(words) < count * width:
        raise ProtocolError(f"start must carry {count} rows of width {width}")
    rows = np.array(words[: count * width]).view(np.float32).reshape(count, width)
    return start, words[count * width :] if len(words) > count * width else None, list(rows)


def started_tokens(start: DecodeStart, resumed_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of an answer that prefill processed.

    ``resumed_ids`` are those of an earlier attempt. Raises ``ProtocolError`` if some of them are unknown here.
    """
    if len(resumed_ids) < start.resumed:
        raise ProtocolError(f"prefill resumed after {start.resumed} tokens, and only {len(resumed_ids)} reached decode")
    return (*resumed_ids[: start.resumed], start.first_token)


async def put_cache(job: Job, about: dict[str, Any], array: np.ndarray | None) -> None:
    """Send the cache; waits while the arena is full.

    As many caches wait as the executor takes invocations.
    """
    end = min(time.time() + ARENA_WAIT_SECONDS, job.deadline)
    while True:
        try:
            return await job.put("cache", about, array)
        except ArenaFull:
            if time.time() >= end:
                raise


class PrefillRunner(LanguagePart, component="prefill", decodes=False):
    """A ``Runner`` for the first half.

    Inputs: those of a thinker. Outputs: ``cache`` [layers, 2, kv_heads, T, head_dim] and ``start`` (``DecodeStart``).
    For a talker there are also ``prompt`` and ``layout``.
    """

    @property
    def busy(self) -> float:
        return self._core.busy - self._core.engine.decoding.seconds

    @property
    def keeps_prompts(self) -> bool:
        """See ``Runner``."""
        return self._core.keeps_prompts

    @property
    def batch_counts(self) -> BatchCounts:
        counts = self._core.batch_counts
        return BatchCounts(passes=counts.passes, tokens=counts.tokens)

    async def run(self, job: Job) -> None:
        async with open_request(self._core, job) as request:
            if request.params.count_only:
                await _send_start(job, request, [TokenStep(0, "stop")], None)
                return
            await self._prefill(job, request)

    async def _prefill(self, job: Job, request: ThinkRequest) -> None:
        sequence = request.sequence
        sequence.pauses, sequence.stays = True, job.is_local("cache")
        with self._core.engine.admit(sequence):
            steps = await sequence.inbox.take_steps()  # of resumed tokens, and of the first new one
            if steps[0].side is not None:
                await send_prompt(job, request.layout, steps[0].side)
            finish = steps[-1].finish
            if finish is None and sequence.stays:
                await self._hand_over(job, request, steps)
                return
        # The slot is free by now: waiting for memory of the arena must not keep a decode from making room there.
        if finish is None:  # before the start: its receiver may assign a slot to the cache
            await put_cache(job, *sequence.goes)
        await _send_start(job, request, steps, None)

    async def _hand_over(self, job: Job, request: ThinkRequest, steps: Rows[TokenStep]) -> None:
        with self._core.hold_paused(job.invocation, request.sequence) as paused_sequence:
            await _send_start(job, request, steps, paused_sequence.number)
            await paused_sequence.taken.wait()


class DecodeRunner(LanguagePart, component="decode"):
    """A ``Runner`` for the second half.

    Inputs: ``cache``, ``start`` and ``params`` (``TextGenerationParams``). Outputs: ``text``, streamed, and for a
    talker ``rows``, streamed.
    """

    @property
    def busy(self) -> float:
        return self._core.engine.decoding.seconds

    @property
    def batch_counts(self) -> BatchCounts:
        counts = self._core.batch_counts
        return BatchCounts(steps=counts.steps, rows=counts.rows)

    async def run(self, job: Job) -> None:
        params = await read_text_params(job, self._core.sampling)
        async with self._core.use_adapter(params) as adapter:
            await self._run(job, params, adapter)

    async def _run(self, job: Job, params: TextGenerationParams, adapter: int | None) -> None:
        core = self._core
        start, id_array, rows = read_start(await job.value("start"), TRANSFORMERS)
        if params.count_only or params.prefill_only:
            if params.report_prompt and id_array is not None:
                await send_prompt_tokens(job, core.thinker.tokenizer, id_array.tolist())
            close_counted(job, start.counts)
            return
        script = await core.tokenize_script(params, start.length - start.resumed)
        tokens = started_tokens(start, resumed_tokens(job, "text"))
        grammar = None if start.here is not None else await core.open_grammar(answer_grammar(core.thinker, params))
        speaks = job.has_consumer("rows")
        limit = len(script) or core.answer_limit(start.length - start.resumed, params.max_tokens, params.usual_tokens)
        token_limit = limit if script else engine_limit(limit, speaks)
        ids = [] if id_array is None else id_array.tolist()
        sampling = build_sampling(
            params, token_limit, start.seed, end_tokens(core, params), await core.ban_words(params)
        )
        picker = Picker(sampling, core.thinker.vocabulary, ids, script, grammar)
        restored_sequence, finish = self._restore_sequence(start, tokens, picker, params, speaks)
        restored_sequence.adapter = adapter
        with self._adopt_paused(job, start, restored_sequence) as sequence:
            reply, speech = self._open_outputs(job, start, params, sequence, limit, rows)
            await send_tokens(job, reply, tokens, start.finish or finish, speech, start.logprobs)
            if not is_complete(reply, speech):
                await self._decode_answer(job, start, sequence, reply, speech)
        job.close("text", {"finish_reason": reply.finish, "usage": reply.usage(start.counts)})

    def _adopt_paused(
        self, job: Job, start: DecodeStart, restored_sequence: Thinking
    ) -> AbstractContextManager[Thinking]:
        """Yield the sequence to continue: one that waits in its slot, or ``restored_sequence``, which has none yet."""
        if start.here is None:
            return nullcontext(restored_sequence)
        return self._core.engine.adopt_paused(self._core.resume_paused(job.invocation, start.here))

    def _open_outputs(
        self,
        job: Job,
        start: DecodeStart,
        params: TextGenerationParams,
        sequence: Thinking,
        limit: int,
        rows: Rows[np.ndarray],
    ) -> tuple[Reply, SpeechWriter | None]:
        spoken_tokens = SpokenTokens() if job.has_consumer("rows") else None
        reply = open_reply(self._core.thinker, params, start.thinking, limit, spoken_tokens)
        if spoken_tokens is None:
            return reply, None
        return reply, SpeechWriter(job, spoken_tokens, limit, partial(self._core.compute_rows, sequence), rows=rows)

    async def _decode_answer(
        self, job: Job, start: DecodeStart, sequence: Thinking, reply: Reply, speech: SpeechWriter | None
    ) -> None:
        engine = self._core.engine
        if start.here is not None:
            await send_answer(job, sequence.inbox.take_steps, reply, speech)
            return
        with engine.admit_prefilled(sequence):
            await engine.wait_for_slot(sequence)
            cache = await job.value("cache")
            await engine.insert_cache(sequence, (cache.data, cache.array))
            job.release_input("cache")
            await send_answer(job, sequence.inbox.take_steps, reply, speech)

    def _restore_sequence(
        self,
        start: DecodeStart,
        tokens: Rows[int],
        picker: Picker,
        params: TextGenerationParams,
        speaks: bool,
    ) -> tuple[Thinking, str | None]:
        """Return the sequence after ``tokens``, and its finish reason, if any."""
        core = self._core
        nothing = torch.empty(start.length, 0)
        prefill = PrefillInputs(nothing, nothing, start.rope_delta, nothing)
        sequence = Thinking(prefill, picker, end_tokens(core, params), "" if speaks else None)
        sequence.done, sequence.prompt = start.length, start.length - start.resumed
        sequence.keeps_slot = speaks and may_cut(core.thinker, params)
        finish = None
        for token in tokens:
            picker.resume_after(token)
            finish = sequence.accept_token(token)
        sequence.release_prefill()
        return sequence, finish


async def _send_start(job: Job, request: ThinkRequest, steps: Rows[TokenStep], here: int | None) -> None:
    sequence, first = request.sequence, steps[-1]
    start = DecodeStart(
        length=sequence.length,
        rope_delta=sequence.delta,
        first_token=first.token,
        seed=sequence.picker.settings.seed,
        finish=first.finish,
        here=here,
        resumed=len(steps) - 1,
        thinking=request.thinking,
        logprobs=first.logprobs,
        layout=TRANSFORMERS,
        **request.counts,
    )
    rows = [step.side for step in steps[1:]]
    await put_start(job, start, request.ids, request.params, rows)
