"""Scheduling of sound: the next sound made is for the listener who would run out of it first. No clock here.

Sound is made faster than it is played, so a listener who has some seconds of it can wait for one who has none.
What is due first is done first (earliest deadline): while every listener can be kept from silence, none hears it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from omnibus.executor.due_queue import Due, DueQueue
from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare


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
    """One at a time; of those who wait it is the turn of the tenant that has had least, of its listeners of who is due
    first, and of equals of who came first."""

    def __init__(self) -> None:
        self._taken = False
        self._numbers = count()
        self._order = TenantOrder()
        self._waiting: DueQueue[asyncio.Future[None]] = DueQueue(self._order)

    @asynccontextmanager
    async def hold_turn(self, due: float, tenant: TenantShare = NO_TENANT, size: int = 1) -> AsyncIterator[None]:
        """Wait for the floor, and keep it until the block ends; ``size`` is that of the work for ``tenant``."""
        await self._acquire_turn(due, tenant, size)
        try:
            yield
        finally:
            self._release_turn()

    async def _acquire_turn(self, due: float, tenant: TenantShare, size: int) -> None:
        if not self._taken:
            self._taken = True
            self._order.charge(tenant, size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(Due(due, next(self._numbers), granted, size, tenant=tenant))
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._release_turn()  # it came too late: the next one's turn
            raise

    def _release_turn(self) -> None:
        while (due := self._waiting.pop()) is not None:
            if not due.key.done():
                self._order.charge(due.tenant, due.size)
                due.key.set_result(None)
                return
        self._taken = False
