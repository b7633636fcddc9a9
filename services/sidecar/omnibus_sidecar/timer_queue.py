"""Timers for items with a due time: one heap, one timer of the event loop, no polling."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """An item with a due time in ``loop.time()`` seconds; ``inf`` if nothing is due."""

    due: float


T = TypeVar("T", bound=Timed)


class TimerQueue(Generic[T]):
    """Calls ``ring(item)`` when ``item.due`` is reached.

    To cancel, set ``item.due`` to ``inf``. The heap's entry is then a tombstone. It is removed when it reaches the top,
    or when tombstones outnumber the live entries of the last cleanup.
    """

    def __init__(self, loop: AbstractEventLoop, ring: Callable[[T], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._heap: list[tuple[float, int, T]] = []
        self._order = count()
        self._clean_at = 256
        self._timer: TimerHandle | None = None
        self._armed = inf

    def __len__(self) -> int:
        return len(self._heap)

    def set_due(self, item: T, when: float) -> None:
        """Set the due time of ``item`` to ``when``, replacing an earlier one."""
        item.due = when
        heappush(self._heap, (when, next(self._order), item))
        if when < self._armed:
            self._arm_timer(when)
        elif len(self._heap) > self._clean_at:
            self._drop_tombstones()

    def close(self) -> None:
        """Cancel all timers."""
        self._heap.clear()
        self._arm_timer(inf)

    def _arm_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = when
        self._timer = None if when == inf else self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        while self._heap and (self._heap[0][0] <= now or self._is_tombstone(self._heap[0])):
            entry = heappop(self._heap)
            if not self._is_tombstone(entry):
                entry[2].due = inf
                self._ring(entry[2])
        self._arm_timer(self._heap[0][0] if self._heap else inf)

    def _drop_tombstones(self) -> None:
        self._heap = [entry for entry in self._heap if not self._is_tombstone(entry)]
        heapify(self._heap)
        self._clean_at = 2 * len(self._heap) + 256

    @staticmethod
    def _is_tombstone(entry: tuple[float, int, T]) -> bool:
        return entry[0] != entry[2].due
