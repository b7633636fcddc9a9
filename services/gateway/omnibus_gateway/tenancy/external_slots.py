"""Slots for work outside executors, which no tenant can block."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from omnibus.errors import Overloaded

#: Part of the slots that one tenant may hold.
_MAX_TENANT_SHARE = 1 / 4


class TenantSlots:
    """``slots``, of which a named tenant holds at most a quarter.

    The tenant with the fewest slots is next; of equals, the one whose last turn was longest ago. While others wait, a
    tenant waits for at most one turn of each of them. A named tenant may have ``queue`` requests that wait.
    """

    def __init__(self, slots: int, queue: int = 0) -> None:
        self._slots = slots
        self._free = slots
        self._queue = queue
        self._turns = count()
        self._last: dict[str, int] = {}  # turn of each tenant that is here
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot during the block. Raises ``Overloaded`` if too many of ``tenant`` wait."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot, which ``release`` frees. Raises as ``hold``."""
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(tenant, deque())
        if tenant and self._queue and sum(not each.done() for each in waiting) >= self._queue:
            raise Overloaded(f"{self._queue} requests of this tenant wait here: try again later", retry_after=1.0)
        waiting.append(turn)
        self._admit_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment as its timeout
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Free a slot that ``tenant`` holds."""
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
            if tenant not in self._waiting:
                self._last.pop(tenant, None)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._free and (ready := [name for name in self._waiting if self._held[name] < self._tenant_limit(name)]):
            name = min(ready, key=lambda each: (self._held[each], self._last.get(each, -1)))
            turns = self._waiting[name]
            turn = turns.popleft()
            if not turns:
                del self._waiting[name]
            if not turn.done():  # not cancelled
                self._free -= 1
                self._held[name] += 1
                self._last[name] = next(self._turns)
                turn.set_result(None)

    def _tenant_limit(self, tenant: str) -> int:
        return max(1, int(self._slots * _MAX_TENANT_SHARE)) if tenant else self._slots
