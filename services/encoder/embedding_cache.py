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
OVERHEAD = 1024


class Result(NamedTuple):
    """Output of an encoder for one item. All who receive it share it: neither part may be changed."""

    meta: dict[str, Any]
    embeds: np.ndarray


class _Flight(Generic[P]):
    """A computation under way and those who wait for it."""

    __slots__ = ("read", "task", "waiting")

    def __init__(self) -> None:
        self.task: asyncio.Task[Result]
        self.read = asyncio.Event()  # the bytes of the item are not needed any more
        self.waiting = 0


class Results(Generic[P]):
    """At most ``limit`` bytes of results of ``component``; the least recently used leave first.

    ``work`` makes a result of what was read.
    """

    def __init__(self, limit: int, work: Callable[[P], Awaitable[Result]], component: str) -> None:
        self.limit = limit
        self.bytes = 0
        self._work = work
        self._component = component
        self._kept: OrderedDict[bytes, Result] = OrderedDict()
        self._flights: dict[bytes, _Flight[P]] = {}
        self._counts = dict.fromkeys(("hits", "misses", "coalesced", "evicted"), 0)

    async def get(self, key: bytes, read: Callable[[], Awaitable[P]]) -> Result:
        """The result of ``key``. ``read`` may use memory of the caller, who does not leave before it is over.

        Raises what ``read`` or ``work`` raised, to all who waited; nothing is kept then.
        """
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self._count("hits")
            return kept
        flight = self._flights.get(key)
        if flight is not None:
            self._count("coalesced")
            return await self._wait(key, flight)
        self._count("misses")
        flight = self._flights[key] = _Flight()
        flight.task = asyncio.get_running_loop().create_task(self._compute(key, flight, read))
        flight.task.add_done_callback(lambda _: self._ended(key, flight))  # also if it was stopped before it began
        try:
            return await self._wait(key, flight)
        finally:
            await _over(flight.read)

    async def close(self) -> None:
        """Stop what is computed: ``StageUnavailable`` for who waits for it."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stats(self) -> dict[str, int]:
        """Counts since the start, and what is held now; ``bytes`` and ``limit`` in bytes."""
        return {**self._counts, "items": len(self._kept), "bytes": self.bytes, "limit": self.limit}

    async def _wait(self, key: bytes, flight: _Flight[P]) -> Result:
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

    async def _compute(self, key: bytes, flight: _Flight[P], read: Callable[[], Awaitable[P]]) -> Result:
        try:
            try:
                prepared = await read()
            finally:
                flight.read.set()
            result = await self._work(prepared)
            result.embeds.setflags(write=False)
            self._keep(key, result)
            return result
        finally:
            self._ended(key, flight)

    def _ended(self, key: bytes, flight: _Flight[P]) -> None:
        flight.read.set()
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _keep(self, key: bytes, result: Result) -> None:
        size = _size(result)
        if size > self.limit:
            return
        self._kept[key] = result
        self.bytes += size
        while self.bytes > self.limit:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= _size(oldest)
            self._count("evicted")
        ENCODER.kept(self._component).set(self.bytes)

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        ENCODER.result(self._component, what).inc()


def _size(result: Result) -> int:
    return int(result.embeds.nbytes) + OVERHEAD


async def _over(event: asyncio.Event) -> None:
    """Wait for ``event``, even when cancelled: a thread reads memory that the caller would give back."""
    cancelled = False
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
