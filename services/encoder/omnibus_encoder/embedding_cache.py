"""Embeddings by content: each is computed once for all concurrent requests, and the latest are kept.

The cache keeps arrays of this process, not blocks of the arena. A block belongs to an invocation and its deadline, and
blocks kept here would be missing for requests. A hit costs one copy into the arena.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from omnibus.errors import StageUnavailable
from omnibus.metrics import ENCODER

P = TypeVar("P")

#: Bytes that an entry counts for in addition to its array.
ENTRY_OVERHEAD_BYTES = 1024


class EncoderResult(NamedTuple):
    """Output of an encoder for one item. All receivers share it, so neither part may be changed."""

    meta: dict[str, Any]
    embeds: np.ndarray


class _Flight(Generic[P]):
    """A computation in progress, and the number of waiting callers."""

    __slots__ = ("read", "task", "waiting")

    def __init__(self) -> None:
        self.task: asyncio.Task[EncoderResult]
        self.read = asyncio.Event()  # the bytes of the item are no longer needed
        self.waiting = 0


class EmbeddingCache(Generic[P]):
    """At most ``limit`` bytes of results of ``component``; the least recently used are evicted first.

    ``work`` computes a result from the value that ``read`` returned.
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
        """Return the result of ``key`` if cached or being computed, else None.

        Raises as ``get`` does.
        """
        result, flight = self._kept.get(key), self._flights.get(key)
        if result is not None:
            self._kept.move_to_end(key)
            self._count_event("hits")
            return result
        if flight is not None:
            self._count_event("coalesced")
            return await self._await_flight(key, flight)
        return None

    def peek(self, key: bytes) -> EncoderResult | None:
        """Return the result of ``key`` if it is cached. Nothing is counted: on a miss the caller computes it."""
        result = self._kept.get(key)
        if result is not None:
            self._kept.move_to_end(key)
        return result

    def store(self, key: bytes, result: EncoderResult) -> None:
        """Keep ``result`` under ``key``, unless it is larger than the whole cache."""
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
        """Return the result of ``key``, computing it if necessary.

        ``read`` may use the caller's memory: ``get`` returns only after ``read`` has ended. If ``read`` or ``work``
        raises, every waiting caller receives the error, and nothing is kept.
        """
        result = await self.find(key)
        if result is not None:
            return result
        self._count_event("misses")
        flight = self._flights[key] = _Flight()
        flight.task = asyncio.get_running_loop().create_task(self._compute_result(key, flight, read))
        flight.task.add_done_callback(lambda _: self._end_flight(key, flight))  # also if cancelled before its start
        try:
            return await self._await_flight(key, flight)
        finally:
            await _wait_uncancelled(flight.read)

    async def close(self) -> None:
        """Stop all computations; callers that wait for them receive ``StageUnavailable``."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stats(self) -> dict[str, int]:
        """Return counts since the start, current items and bytes, and the limit."""
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
                self._flights.pop(key, None)  # later callers start a new computation
                flight.task.cancel()

    async def _compute_result(self, key: bytes, flight: _Flight[P], read: Callable[[], Awaitable[P]]) -> EncoderResult:
        try:
            try:
                item = await read()
            finally:
                flight.read.set()
            result = await self._work(item)
            result.embeds.setflags(write=False)
            self.store(key, result)
            return result
        finally:
            self._end_flight(key, flight)

    def _end_flight(self, key: bytes, flight: _Flight[P]) -> None:
        flight.read.set()
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _count_event(self, event: str) -> None:
        self._counts[event] += 1
        ENCODER.result_counter(self._component, event).inc()


def _result_bytes(result: EncoderResult) -> int:
    return int(result.embeds.nbytes) + ENTRY_OVERHEAD_BYTES


async def _wait_uncancelled(event: asyncio.Event) -> None:
    """Wait for ``event``, even when cancelled: a thread reads memory that the caller would release."""
    was_cancelled = False
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        raise asyncio.CancelledError
