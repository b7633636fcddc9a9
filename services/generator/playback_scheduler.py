"""Scheduling of sound: the next sound made is for the listener who would run out of it first. No clock here.

Sound is made faster than it is played, so a listener who has some seconds of it can wait for one who has none.
What is due first is done first (earliest deadline): while every listener can be kept from silence, none hears it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count


class Playback:
    """Playback state of one listener, as far as the sender knows. Times are in seconds of one clock, of any kind.

    A listener plays from the first sample on, pauses when there is nothing to play, and goes on with what comes
    next. ``dry`` is when there will be nothing; before it ``plays`` that is ``patience`` after ``begun``.
    """

    def __init__(self, rate: int, begun: float, patience: float) -> None:
        self.dry = begun + patience
        self._rate = rate
        self.plays = False

    def record_sent(self, samples: int, now: float) -> None:
        """``samples`` are on their way to the listener since ``now``."""
        if samples:
            self.dry = (max(self.dry, now) if self.plays else now) + samples / self._rate
            self.plays = True


class DeadlineLock:
    """One at a time; of those who wait it is the turn of who is due first, and of equals of who came first."""

    def __init__(self) -> None:
        self._taken = False
        self._numbers = count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def hold_turn(self, due: float) -> AsyncIterator[None]:
        """Wait for the floor, and keep it until the block ends."""
        await self._acquire_turn(due)
        try:
            yield
        finally:
            self._release_turn()

    async def _acquire_turn(self, due: float) -> None:
        if not self._taken:
            self._taken = True
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (due, next(self._numbers), granted))
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._release_turn()  # it came too late: the next one's turn
            raise

    def _release_turn(self) -> None:
        while self._waiting:
            *_, granted = heappop(self._waiting)
            if not granted.done():
                granted.set_result(None)
                return
        self._taken = False
