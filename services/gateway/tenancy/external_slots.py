"""Places for work that waits for strangers, so that the strangers of one tenant hold up no other tenant."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: Part of the slots that one tenant may hold.
_MAX_TENANT_SHARE = 1 / 4


class TenantSlots:
    """``count`` slots; a tenant with a name holds at most a quarter of them, and who holds fewest is next."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        """A slot for as long as the block takes."""
        await self._acquire_slot(tenant)
        try:
            yield
        finally:
            self._release_slot(tenant)

    async def _acquire_slot(self, tenant: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._admit_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came, and so did the end of its patience
                self._release_slot(tenant)
            raise

    def _release_slot(self, tenant: str) -> None:
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._free and (ready := [name for name in self._waiting if self._held[name] < self._tenant_limit(name)]):
            name = min(ready, key=self._held.__getitem__)
            turns = self._waiting[name]
            turn = turns.popleft()
            if not turns:
                del self._waiting[name]
            if not turn.done():  # else it was cancelled
                self._free -= 1
                self._held[name] += 1
                turn.set_result(None)

    def _tenant_limit(self, tenant: str) -> int:
        return max(1, int(self._count * _MAX_TENANT_SHARE)) if tenant else self._count
