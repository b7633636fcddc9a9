"""Scheduling of audio: the listener who would run out first is served first. There is no clock here.

Audio is generated faster than it is played. A listener with a few seconds in hand can wait for a listener with none.
The order is earliest deadline first: while every listener can be kept from silence, no listener hears any.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from omnibus.executor.due_queue import Due, DueQueue
from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare


class Playback:
    """Playback state of one listener, as far as the sender knows.

    Times are in seconds, of any single clock. A listener plays from the first sample, pauses when the audio runs out,
    and resumes when more arrives. ``dry`` is when the audio runs out. Before the first sample (``plays`` is False) it
    is ``patience`` seconds after ``begin_time``.
    """

    def __init__(self, rate: int, begin_time: float, patience: float) -> None:
        self.dry = begin_time + patience
        self._rate = rate
        self.plays = False

    def record_sent(self, samples: int, now: float) -> None:
        """Record that ``samples`` were sent to the listener at ``now``."""
        if samples:
            self.dry = (max(self.dry, now) if self.plays else now) + samples / self._rate
            self.plays = True


class DeadlineLock:
    """A lock that grants turns by tenant, due time and arrival.

    The next turn is for the tenant that has had the least. Of its listeners, the one due first is next.
    """

    def __init__(self) -> None:
        self._taken = False
        self._numbers = count()
        self._order = TenantOrder()
        self._waiting: DueQueue[asyncio.Future[None]] = DueQueue(self._order)

    @asynccontextmanager
    async def hold_turn(self, due: float, tenant: TenantShare = NO_TENANT, size: int = 1) -> AsyncIterator[None]:
        """Wait for the turn and keep it until the block ends; ``size`` of the work is charged to ``tenant``."""
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
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(Due(due, next(self._numbers), grant, size, tenant=tenant))
        try:
            await grant
        except asyncio.CancelledError:
            if not grant.cancelled():
                self._release_turn()  # granted too late: pass the turn on
            raise

    def _release_turn(self) -> None:
        while (due := self._waiting.pop()) is not None:
            if not due.key.done():
                self._order.charge(due.tenant, due.size)
                due.key.set_result(None)
                return
        self._taken = False
