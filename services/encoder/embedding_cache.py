"""Embeddings by content: each is computed once however many ask for it, and the latest are kept.

They are kept as arrays of this process, not as blocks of the arena: a block belongs to an invocation and its
deadline, and what is kept there would be missing to requests. A hit costs one copy into the arena.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from omnibus.errors import StageUnavailable
from omnibus.metrics import ENCODER

P = TypeVar("P")

#: Bytes that an entry counts for besides its array.
ENTRY_OVERHEAD_BYTES = 1024


class EncoderResult(NamedTuple):
    """Output of an encoder for one item. All who receive it share it: neither part may be changed."""

    meta: dict[str, Any]
    embeds: np.ndarray


class _Flight(Generic[P]):
    """A computation under way and those who wait for it."""

    __slots__ = ("read", "task", "waiting")

    def __init__(self) -> None:
        self.task: asyncio.Task[EncoderResult]
        self.read = asyncio.Event()  # the bytes of the item are not needed any more
        self.waiting = 0


class EmbeddingCache(Generic[P]):
    """At most ``limit`` bytes of results of ``component``; the least recently used leave first.

    ``work`` makes a result of what was read.
    """

    def __init__(self, limit: int, work: Callable[[P], Awaitable[EncoderResult]], component: str) -> None:
        self.limit = limit
        self.bytes = 0
        self._work = work
        self._component = component
        self._kept: OrderedDict[bytes, EncoderResult] = OrderedDict()
        self._flights: dict[bytes, _Flight[P]] = {}
        self._counts = dict.fromkeys(("hits", "misses", "coalesced", "evicted"), 0)

    async def find(self, key: bytes) -> EncoderResult | None:
        """The result of ``key`` if it is here or computed just now, else None. Raises as ``get`` does."""
        kept, flight = self._kept.get(key), self._flights.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self._count_event("hits")
            return kept
        if flight is not None:
            self._count_event("coalesced")
            return await self._await_flight(key, flight)
        return None

    def peek(self, key: bytes) -> EncoderResult | None:
        """The result of ``key`` if it is here. Nothing is counted: whoever asks computes what is not here."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def store(self, key: bytes, result: EncoderResult) -> None:
        """Keep ``result`` as that of ``key``, unless it is larger than all that may be kept."""
        size = _result_bytes(result)
        if size > self.limit or key in self._kept:
            return
        result.embeds.setflags(write=False)
        self._kept[key] = result
        self.bytes += size
        while self.bytes > self.limit:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= _result_bytes(oldest)
            self._count_event("evicted")
        ENCODER.cache_gauge(self._component).set(self.bytes)

    async def get(self, key: bytes, read: Callable[[], Awaitable[P]]) -> EncoderResult:
        """The result of ``key``. ``read`` may use memory of the caller, who does not leave before it is over.

        Raises what ``read`` or ``work`` raised, to all who waited; nothing is kept then.
        """
        found = await self.find(key)
        if found is not None:
            return found
        self._count_event("misses")
        flight = self._flights[key] = _Flight()
        flight.task = asyncio.get_running_loop().create_task(self._compute_result(key, flight, read))
        flight.task.add_done_callback(lambda _: self._end_flight(key, flight))  # also if it was stopped before it began
        try:
            return await self._await_flight(key, flight)
        finally:
            await _wait_uncancelled(flight.read)

    async def close(self) -> None:
        """Stop what is computed: ``StageUnavailable`` for who waits for it."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stats(self) -> dict[str, int]:
        """Counts since the start, and what is held now; ``bytes`` and ``limit`` in bytes."""
        return {**self._counts, "items": len(self._kept), "bytes": self.bytes, "limit": self.limit}

    async def _await_flight(self, key: bytes, flight: _Flight[P]) -> EncoderResult:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not flight.task.cancelled():
                raise
            raise StageUnavailable("the encoder was closed; send the request again") from None
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._flights.pop(key, None)  # who comes from now on begins anew
                flight.task.cancel()

    async def _compute_result(self, key: bytes, flight: _Flight[P], read: Callable[[], Awaitable[P]]) -> EncoderResult:
        try:
            try:
                prepared = await read()
            finally:
                flight.read.set()
            result = await self._work(prepared)
            result.embeds.setflags(write=False)
            self.store(key, result)
            return result
        finally:
            self._end_flight(key, flight)

    def _end_flight(self, key: bytes, flight: _Flight[P]) -> None:
        flight.read.set()
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _count_event(self, what: str) -> None:
        self._counts[what] += 1
        ENCODER.result_counter(self._component, what).inc()


def _result_bytes(result: EncoderResult) -> int:
    return int(result.embeds.nbytes) + ENTRY_OVERHEAD_BYTES


async def _wait_uncancelled(event: asyncio.Event) -> None:
    """Wait for ``event``, even when cancelled: a thread reads memory that the caller would give back."""
    cancelled = False
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
