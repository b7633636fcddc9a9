"""Prefill and decode in vLLM: a cache keeps the engine's layout, and only an engine with that layout reads it.

As in ``omnibus_llm.runners.prefill_decode``, decode requests a cache only when it has room. If both halves run in one
executor, they share an engine: the answer continues in it while its consumer changes, and nothing is moved.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing, nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from omnibus.errors import BadRequest, ProtocolError, StageFailed
from omnibus.executor.runner import Item, Job
from omnibus_llm.engine.params import TextGenerationParams
from omnibus_llm.engine.sequence import TokenStep
from omnibus_llm.runners.detokenize import Reply
from omnibus_llm.runners.prefill_decode import DecodeStart, put_cache, put_start, read_start, started_tokens
from omnibus_llm.runners.prompt_tokens import send_prompt_tokens
from omnibus_llm.runners.talker import ComputeRows, SpeechWriter, SpokenTokens, send_prompt
from omnibus_llm.runners.thinker import (
    Take,
    close_counted,
    engine_limit,
    is_complete,
    open_reply,
    read_text_params,
    resumed_tokens,
    send_answer,
    send_tokens,
)
from omnibus_llm.vllm.model import PreparedVllmRequest, VllmCore
from omnibus_llm.vllm.protocol import CacheBlockLayout, ExternalCache, SharedBuffer, Tokens, map_memory
from omnibus_llm.vllm.request import TalkerRows
from omnibus_llm.vllm.runner import VllmPart


class VllmPrefillRunner(VllmPart, half="prefill"):
    """A ``Runner`` for the first half.

    Inputs: those of a thinker. Outputs: ``cache`` uint8 [layers, blocks, nbytes] and ``start``
    (``omnibus_llm.runners.prefill_decode.DecodeStart``). For a talker there are also ``prompt`` and ``layout``.
    """

    async def run(self, job: Job) -> None:
        request = await self._core.read_request(job)
        async with AsyncExitStack() as exit_stack:
            exit_stack.enter_context(closing(request.order))
            if request.params.count_only or self._core.keeps_nothing(request):
                await self._send_start(job, request, [TokenStep(0, "stop")], "stop", None)
            elif job.is_local("cache"):
                await self._prefill_in_place(job, request, exit_stack)
            else:
                await self._prefill_for_transfer(job, request, exit_stack)

    async def _prefill_in_place(self, job: Job, request: PreparedVllmRequest, exit_stack: AsyncExitStack) -> None:
        core, voice = self._core, request.order.voice
        stream = await exit_stack.enter_async_context(
            aclosing(core.engine.generate(core.build_generation(request, job.seed)))
        )
        take = core.token_reader(stream, voice, request.known, request.counts)
        steps = await self._first_steps(job, request, take)
        first_steps, later = steps[: len(request.known) + 1], steps[len(request.known) + 1 :]
        if first_steps[-1].finish is not None:
            await self._send_start(job, request, first_steps, first_steps[-1].finish, None)
            return
        compute_rows = partial(core.compute_rows, request, job.seed, stream)
        with core.hold_paused(job.invocation, take, later, compute_rows, exit_stack) as going:
            await self._send_start(job, request, first_steps, None, going.number)
            await going.taken.wait()

    async def _prefill_for_transfer(self, job: Job, request: PreparedVllmRequest, exit_stack: AsyncExitStack) -> None:
        _require_plain(request)
        core = self._core
        memory = exit_stack.enter_context(closing(SharedBuffer()))
        sampling = core.build_sampling(request.params, 1, job.seed)
        generation = core.build_generation(request, job.seed, sampling=sampling, gives=memory.place)
        async with aclosing(core.engine.generate(generation)) as stream:
            take = core.token_reader(stream, request.order.voice, request.known, request.counts)
            steps = await self._first_steps(job, request, take)
        request.order.close()
        # For a spoken answer, decode computes the row of the last token as well.
        finish = "length" if engine_limit(request.limit, request.order.voice is not None) == len(steps) else None
        if steps[-1].token in core.end_tokens(request.params):
            finish = "stop"
        if finish is None:  # before the start: its receiver may assign room to the cache
            cache = await core.hands(_read_cache, memory, core.engine.layout, len(request.order.ids))
            await put_cache(job, {}, cache)
        await self._send_start(job, request, steps, finish, None)

    async def _first_steps(self, job: Job, request: PreparedVllmRequest, take: Take) -> Sequence[TokenStep]:
        with self._inside():
            steps = await take()
        if request.order.voice is not None and steps[0].side is not None:
            await send_prompt(job, request.order.voice.layout, steps[0].side)
        return steps

    async def _send_start(
        self, job: Job, request: PreparedVllmRequest, steps: Sequence[TokenStep], finish: str | None, here: int | None
    ) -> None:
        core, order = self._core, request.order
        start = DecodeStart(
            length=len(order.ids),
            rope_delta=0 if order.positions is None else order.positions.delta,
            first_token=steps[-1].token,
            seed=core.build_sampling(request.params, request.limit, job.seed).seed,
            finish=finish,
            here=here,
            resumed=len(request.known),
            thinking=request.thinking,
            logprobs=steps[-1].logprobs,
            layout=core.engine.layout.name,
            **request.counts,
        )
        rows = () if order.voice is None else [step.side for step in steps[1:]]
        await put_start(job, start, order.ids, request.params, rows)


def _require_plain(request: PreparedVllmRequest) -> None:
    """Raise ``BadRequest`` for settings that depend on all tokens.

    Decode here has only the tokens that it generates.
    """
    if request.grammar or request.params.changes_logits:
        raise BadRequest(
            "vLLM halves on two executors support no grammar, bias, penalty or logprobs: serve this model whole, "
            "or both halves in one executor",
            param="response_format" if request.grammar else "logprobs",
        )


class DecodeState(NamedTuple):
    """An answer of at most ``limit`` tokens, in its decode.

    ``tokens`` are its first ones. ``seen`` are ids for a penalty, and ``rows`` those of tokens that prefill has seen.
    """

    job: Job
    params: TextGenerationParams
    start: DecodeStart
    tokens: Sequence[int]
    seen: np.ndarray | None
    rows: Sequence[np.ndarray]
    limit: int
    reply: Reply
    spoken: SpokenTokens | None

    async def send_started(self, compute_rows: ComputeRows) -> tuple[SpeechWriter | None, bool]:
        """Send the text of the first tokens. Returns the talker's inputs, and True if the answer is complete."""
        speech = None
        if self.spoken is not None:
            speech = SpeechWriter(self.job, self.spoken, self.limit, compute_rows, rows=self.rows)
        await send_tokens(self.job, self.reply, self.tokens, self.start.finish, speech, self.start.logprobs)
        return speech, is_complete(self.reply, speech)


class TransferredCache:
    """Rows of texts after an answer whose cache another engine made.

    The cache is in ``memory``.
    """

    def __init__(self, core: VllmCore, state: DecodeState) -> None:
        self.memory: SharedBuffer | None = None
        self.stream: AsyncGenerator[Tokens, None] | None = None  # of the answer
        self._core = core
        self._state = state

    async def compute_rows(self, tokens: Sequence[int], text: str) -> Sequence[np.ndarray]:
        """See ``VllmCore.compute_rows``. There are none after fewer tokens than the cache has."""
        core, start, params = self._core, self._state.start, self._state.params
        if self.memory is None or len(tokens) < start.resumed:
            return ()
        if self.stream is not None:
            await self.stream.aclose()
        length = start.length - start.resumed + len(tokens)
        more = await core.encode_rest(text, length)
        with closing(TalkerRows(core.reader, length, [])) as rows:
            generation = core.new_generation(
                params,
                ids=[*[0] * start.length, *tokens[start.resumed :], *more],
                media=(),
                positions=None,
                parcel=None,
                rows=rows.rows.place,
                sampling=core.build_sampling(params, 1, start.seed),
                takes=ExternalCache(self.memory.place, start.length, start.rope_delta),
            )
            return await core.read_rows(generation, rows, more)


class VllmDecodeRunner(VllmPart, half="decode"):
    """A ``Runner`` for the second half.

    Inputs: ``cache``, ``start`` and ``params`` (``TextGenerationParams``). Outputs: ``text``, streamed, and for a
    talker ``rows``, streamed.
    """

    def __init__(self, core: VllmCore) -> None:
        super().__init__(core)
        self._room = SlotGate()

    async def run(self, job: Job) -> None:
        core = self._core
        params = await read_text_params(job, self._core.sampling)
        start, id_array, rows = read_start(await job.value("start"), core.engine.layout.name)
        if params.count_only or params.prefill_only:
            if params.report_prompt and id_array is not None:
                await send_prompt_tokens(job, core.reader.tokenizer, id_array.tolist())
            close_counted(job, start.counts)
            return
        limit = core.answer_limit(start.length - start.resumed, params)
        spoken_tokens = SpokenTokens() if job.has_consumer("rows") else None
        reply = open_reply(core.reader, params, start.thinking, limit, spoken_tokens)
        tokens = started_tokens(start, resumed_tokens(job, "text"))
        state = DecodeState(job, params, start, tokens, id_array, rows, limit, reply, spoken_tokens)
        if start.here is not None:
            await self._decode_in_place(state, start.here)
        else:
            await self._decode_apart(state)
        job.close("text", {"finish_reason": reply.finish, "usage": reply.usage(start.counts)})

    async def _decode_in_place(self, state: DecodeState, number: int) -> None:
        going, exit_stack = self._core.resume_paused(state.job.invocation, number)
        async with exit_stack:
            speech, complete = await state.send_started(going.compute_rows)
            if not complete:
                with self._inside():
                    await send_answer(state.job, _chain_steps(going.steps, going.take), state.reply, speech)

    async def _decode_apart(self, state: DecodeState) -> None:
        core, start, layout = self._core, state.start, self._core.engine.layout
        transferred_cache = TransferredCache(core, state)
        speech, complete = await state.send_started(transferred_cache.compute_rows)
        if complete:
            return
        async with self._room(layout.count(start.length + 1), layout.blocks, core.slots):
            cache = await state.job.value("cache")
            transferred_cache.memory = await core.hands(_load_cache, cache, layout, start.length)
            state.job.release_input("cache")
            with closing(transferred_cache.memory):
                await self._decode_transferred(state, speech, transferred_cache, transferred_cache.memory)

    async def _decode_transferred(
        self, state: DecodeState, speech: SpeechWriter | None, transferred_cache: TransferredCache, memory: SharedBuffer
    ) -> None:
        core, start = self._core, state.start
        rest = None if speech is None else TalkerRows(core.reader, start.length, [start.first_token])
        with nullcontext() if rest is None else closing(rest):
            generation = core.new_generation(
                state.params,
                ids=_decode_ids(start, state.seen),
                media=(),
                positions=None,
                parcel=None,
                rows=None if rest is None else rest.rows.place,
                sampling=core.build_sampling(
                    state.params, engine_limit(state.limit, rest is not None) - start.resumed - 1, start.seed
                ),
                takes=ExternalCache(memory.place, start.length, start.rope_delta),
                draws=start.resumed + 1,
            )
            async with aclosing(core.engine.generate(generation)) as stream:
                transferred_cache.stream = stream
                with self._inside():
                    await send_answer(state.job, core.token_reader(stream, rest), state.reply, speech)


class SlotGate:
    """Limits sequences with transferred caches to slots and blocks.

    The blocks are those of their prompts. Admission is first come, first served. The engine itself preempts sequences
    that outgrow the blocks, and reads their caches again.
    """

    def __init__(self) -> None:
        self._used = 0
        self._blocks = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def __call__(self, need: int, blocks: int, slots: int) -> AsyncIterator[None]:
        """Hold a slot and ``need`` of all ``blocks`` until the block ends; waits until they are free."""
        await self._acquire_slot(need, blocks, slots)
        try:
            yield
        finally:
            self._used -= 1
            self._blocks -= need
            self._wake_first()

    async def _acquire_slot(self, need: int, blocks: int, slots: int) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            while self._waiting[0] is not waiter or not self._has_capacity(need, blocks, slots):
                await waiter
                self._waiting[self._waiting.index(waiter)] = waiter = asyncio.get_running_loop().create_future()
        finally:
            self._waiting.remove(waiter)
            self._wake_first()
        self._used += 1
        self._blocks += need

    def _has_capacity(self, need: int, blocks: int, slots: int) -> bool:
        return not self._used or (self._used < slots and self._blocks + need <= blocks)

    def _wake_first(self) -> None:
        """Wake the first waiter to check again."""
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)


def _chain_steps(steps: Sequence[TokenStep], take: Take) -> Take:
    """Return a ``Take`` that returns ``steps`` first, then the results of ``take``."""
    pending_steps = [steps] if steps else []

    async def next_steps() -> Sequence[TokenStep]:
        return pending_steps.pop() if pending_steps else await take()

    return next_steps


def _read_cache(memory: SharedBuffer, layout: CacheBlockLayout, length: int) -> np.ndarray:
    """Return the cache that an engine has written."""
    place, shape = memory.place, (layout.layers, layout.count(length), layout.nbytes)
    if place["nbytes"] != shape[0] * shape[1] * shape[2]:
        raise StageFailed("the engine did not return the cache of this prompt; send the request again")
    return map_memory(place, torch.uint8).numpy().reshape(shape)


def _load_cache(cache: Item, layout: CacheBlockLayout, length: int) -> SharedBuffer:
    """Copy ``cache`` to where an engine reads it. Raises ``ProtocolError`` for another model or another length."""
    expected_shape, cache_array = (layout.layers, layout.count(length), layout.nbytes), cache.array
    if cache_array is None or cache_array.dtype != np.uint8 or cache_array.shape != expected_shape:
        description = "nothing" if cache_array is None else f"{cache_array.dtype} {cache_array.shape}"
        raise ProtocolError(
            f"the cache is {description}, not uint8 {expected_shape}: prefill and decode must run one model"
        )
    memory = SharedBuffer()
    memory.append(np.ascontiguousarray(cache_array))
    return memory


def _decode_ids(start: DecodeStart, id_array: np.ndarray | None) -> list[int]:
    """Return ids of which only the last is computed; those for a penalty are among the others."""
    known_ids = [0] if id_array is None else id_array.tolist()[: start.length]
    return [*known_ids, *[known_ids[0]] * (start.length - len(known_ids)), start.first_token]
