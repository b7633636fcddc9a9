"""A language model in two halves: prefill makes a cache and the first token, and decode continues.

The cache moves through the arena as one array. Decode requests it only when it has a slot, so caches wait where they
were made and never overflow it. After copying the cache it releases the memory. If both halves run in one executor, the
sequence stays in its slot and nothing is moved. Method: TriInfer, section 4.3 (migration by pull).
"""

from collections.abc import Sequence as Rows
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch

from omnibus.bus.messages import BatchCounts
from omnibus.executor.runner import Job
from omnibus_llm.engine.params import TextGenerationParams, build_sampling
from omnibus_llm.engine.sampler import Picker
from omnibus_llm.engine.sequence import TokenStep
from omnibus_llm.engine.thinker_feed import Thinking
from omnibus_llm.runners.answer_shape import answer_grammar
from omnibus_llm.runners.detokenize import Reply
from omnibus_llm.runners.kv_transfer import TRANSFORMERS, DecodeStart, put_cache, put_start, read_start, started_tokens
from omnibus_llm.runners.language_part import LanguagePart
from omnibus_llm.runners.request import (
    ThinkRequest,
    close_counted,
    end_tokens,
    engine_limit,
    may_cut,
    open_reply,
    open_request,
    read_text_params,
    resumed_tokens,
)
from omnibus_llm.runners.spoken_tokens import SpokenTokens
from omnibus_llm.runners.talker_inputs import SpeechWriter, send_prompt
from omnibus_llm.runners.thinker import is_complete, send_answer, send_tokens
from omnibus_models.contract import PrefillInputs


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
    await put_start(job, start, request.ids, request.params.repetition_penalty, rows)
