"""Prefill and decode in vLLM: a cache travels as the engine has arranged it, and only such an engine reads it.

As in ``services.llm.runners.prefill_decode`` decode asks for a cache when it has room, not before. Where both halves
run in one executor they share an engine: the answer goes on in it while its consumer changes, and nothing is moved.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing, nullcontext
from typing import NamedTuple

import numpy as np
import torch

from omnibus.errors import ProtocolError, StageFailed
from omnibus.executor.runner import Item, Job
from services.llm.engine.params import ThinkParams, read
from services.llm.engine.sequence import Step
from services.llm.runners.detokenize import Reply
from services.llm.runners.kv_transfer import Start, put_cache, put_start, read_start
from services.llm.runners.talker_inputs import Speech, begin
from services.llm.runners.thinker import Take, answer, tell
from services.llm.vllm.model import Asked, VllmCore
from services.llm.vllm.protocol import Layout, Taken
from services.llm.vllm.request import Rest
from services.llm.vllm.runner import VllmPart
from services.llm.vllm.shared_memory import Memory, mapped


class VllmPrefillRunner(VllmPart):
    """A ``Runner`` for the first half.

    Inputs: those of a thinker. Outputs: ``cache`` uint8 [layers, blocks, nbytes] and ``start``
    (``services.llm.runners.kv_transfer.Start``); for a talker ``prompt`` and ``layout``.
    """

    async def run(self, job: Job) -> None:
        asked = await self._core.ask(job)
        async with AsyncExitStack() as held:
            held.enter_context(closing(asked.order))
            if job.here("cache"):
                await self._stay(job, asked, held)
            else:
                await self._go(job, asked, held)

    async def _stay(self, job: Job, asked: Asked, held: AsyncExitStack) -> None:
        core, voice = self._core, asked.order.voice
        stream = await held.enter_async_context(aclosing(core.engine.generate(core.generation(asked, job.seed))))
        take = core.take(stream, voice)
        first, *steps = await self._begin(job, asked, take)
        if first.finish is not None:
            await self._send_start(job, asked, first.token, first.finish, None)
            return
        with core.going(job.invocation, take, steps, held) as going:
            await self._send_start(job, asked, first.token, None, going.number)
            await going.taken.wait()

    async def _go(self, job: Job, asked: Asked, held: AsyncExitStack) -> None:
        core = self._core
        memory = held.enter_context(closing(Memory()))
        sampling = core.sampling(asked.params, 1, job.seed)
        generation = core.generation(asked, job.seed, sampling=sampling, gives=memory.place)
        async with aclosing(core.engine.generate(generation)) as stream:
            [first] = await self._begin(job, asked, core.take(stream, asked.order.voice))
        asked.order.close()
        finish = "length" if asked.limit == 1 else None
        if first.token in core.ends(asked.params):
            finish = "stop"
        if finish is None:  # before the start: who has heard of that may give the cache room
            cache = await core.hands(_given, memory, core.engine.layout, len(asked.order.ids))
            await put_cache(job, {}, cache)
        await self._send_start(job, asked, first.token, finish, None)

    async def _begin(self, job: Job, asked: Asked, take: Take) -> Sequence[Step]:
        with self._inside():
            steps = await take()
        if asked.order.voice is not None and steps[0].side is not None:
            await begin(job, asked.order.voice.layout, steps[0].side)
        return steps

    async def _send_start(self, job: Job, asked: Asked, token: int, finish: str | None, here: int | None) -> None:
        core, order = self._core, asked.order
        start = Start(
            length=len(order.ids),
            rope_delta=0 if order.positions is None else order.positions.delta,
            first_token=token,
            seed=core.sampling(asked.params, asked.limit, job.seed).seed,
            finish=finish,
            here=here,
            layout=core.engine.layout.name,
            **asked.counts,
        )
        await put_start(job, start, order.ids, asked.params.repetition_penalty)


class Said(NamedTuple):
    """An answer as far as its decode knows it: what was asked, the ids for a penalty, and what was said."""

    params: ThinkParams
    seen: np.ndarray | None
    reply: Reply
    speech: Speech | None


class VllmDecodeRunner(VllmPart):
    """A ``Runner`` for the second half.

    Inputs: ``cache``, ``start`` and ``params`` (``ThinkParams``). Outputs: streamed ``text``; for a talker
    streamed ``rows``.
    """

    def __init__(self, core: VllmCore) -> None:
        super().__init__(core)
        self._room = Room()

    async def run(self, job: Job) -> None:
        core = self._core
        params = read(job.inputs.get("params"), ThinkParams)
        start, seen = read_start(await job.value("start"), core.engine.layout.name)
        limit = core.limit(start.length, params)
        reply = Reply(core.reader.text, params.stop)
        reply.add(start.first_token, start.finish)
        said = Said(params, seen, reply, Speech(job, limit - 1) if job.wants("rows") else None)
        await tell(job, reply, None)
        if start.here is not None:
            await self._go_on(job, start.here, said)
        elif reply.finish is None:
            await self._take(job, start, said, limit)
        job.close("text", {"finish_reason": reply.finish, "usage": start.counts | {"completion_tokens": reply.tokens}})

    async def _go_on(self, job: Job, number: int, said: Said) -> None:
        take, steps, held = self._core.resume(job.invocation, number)
        async with held:
            if said.reply.finish is None:
                with self._inside():
                    await answer(job, _after(steps, take), said.reply, said.speech)

    async def _take(self, job: Job, start: Start, said: Said, limit: int) -> None:
        core, layout = self._core, self._core.engine.layout
        async with self._room(layout.count(start.length + 1), layout.blocks, core.slots):
            cache = await job.value("cache")
            memory = await core.hands(_taken, cache, layout, start.length)
            job.done("cache")
            rest = None if said.speech is None else Rest(core.reader, start.length, [start.first_token])
            with closing(memory), nullcontext() if rest is None else closing(rest):
                generation = core.order(
                    said.params,
                    ids=_ids(start, said.seen),
                    media=(),
                    positions=None,
                    parcel=None,
                    rows=None if rest is None else rest.rows.place,
                    sampling=core.sampling(said.params, limit - 1, start.seed),
                    takes=Taken(memory.place, start.length, start.rope_delta, draws=1),
                )
                async with aclosing(core.engine.generate(generation)) as stream:
                    with self._inside():
                        await answer(job, core.take(stream, rest), said.reply, said.speech)


class Room:
    """Sequences that came with their caches: no more than there are slots, and blocks for their prompts.

    Who comes first is first. What grows beyond that the engine puts off by itself, and reads its cache again.
    """

    def __init__(self) -> None:
        self._used = 0
        self._blocks = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def __call__(self, need: int, blocks: int, slots: int) -> AsyncIterator[None]:
        """Hold a slot and ``need`` of all ``blocks`` inside of the block; waits until they are free."""
        await self._enter(need, blocks, slots)
        try:
            yield
        finally:
            self._used -= 1
            self._blocks -= need
            self._call()

    async def _enter(self, need: int, blocks: int, slots: int) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            while self._waiting[0] is not mine or not self._free(need, blocks, slots):
                await mine
                self._waiting[self._waiting.index(mine)] = mine = asyncio.get_running_loop().create_future()
        finally:
            self._waiting.remove(mine)
            self._call()
        self._used += 1
        self._blocks += need

    def _free(self, need: int, blocks: int, slots: int) -> bool:
        return not self._used or (self._used < slots and self._blocks + need <= blocks)

    def _call(self) -> None:
        """Let who is first look again."""
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)


def _after(steps: Sequence[Step], take: Take) -> Take:
    """Return a ``Take`` that gives ``steps`` first, and then what ``take`` gives."""
    made = [steps] if steps else []

    async def following() -> Sequence[Step]:
        return made.pop() if made else await take()

    return following


def _given(memory: Memory, layout: Layout, length: int) -> np.ndarray:
    """The cache that an engine has written."""
    place, shape = memory.place, (layout.layers, layout.count(length), layout.nbytes)
    if place["nbytes"] != shape[0] * shape[1] * shape[2]:
        raise StageFailed("the engine has not given the cache of this prompt; send the request again")
    return mapped(place, torch.uint8).numpy().reshape(shape)


def _taken(cache: Item, layout: Layout, length: int) -> Memory:
    """``cache`` where an engine reads it. Raises ``ProtocolError`` for that of another model or another length."""
    wanted, found = (layout.layers, layout.count(length), layout.nbytes), cache.array
    if found is None or found.dtype != np.uint8 or found.shape != wanted:
        what = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise ProtocolError(f"the cache is {what}, not uint8 {wanted}: prefill and decode must run one model")
    memory = Memory()
    memory.append(np.ascontiguousarray(found))
    return memory


def _ids(start: Start, seen: np.ndarray | None) -> list[int]:
    """Ids of which the last one alone is to be computed; those that a penalty goes by are among the others."""
    known = [0] if seen is None else seen.tolist()[: start.length]
    return [*known, *[known[0]] * (start.length - len(known)), start.first_token]
