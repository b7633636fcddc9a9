"""Plans by epoch."""

from collections.abc import AsyncIterator

from omnibus import plan as plans
from omnibus.errors import StoreUnavailable
from omnibus.plan import Plan
from omnibus.store.connection import Connection, Refused


class StaleEpoch(StoreUnavailable):
    """Another planner wrote a newer plan. ``current`` is its epoch."""

    code = "stale_epoch"

    def __init__(self, current: int) -> None:
        super().__init__(f"epoch {current} is already current: read it and plan again")
        self.current = current


class Plans(Connection):
    """The current plan and its predecessors."""

    async def epoch(self) -> int:
        """The current epoch, 0 before the first plan."""
        return int(await self._call(self._redis.get(self._key("plan:epoch"))) or 0)

    async def plan(self, epoch: int = 0) -> Plan | None:
        """The current plan, or that of ``epoch``; None when there is none."""
        number = epoch or await self.epoch()
        body = await self._call(self._redis.get(self._key(f"plan:{number}"))) if number else None
        return plans.decode(body) if body else None

    async def swap_plan(self, plan: Plan) -> None:
        """Make ``plan`` current in one atomic step. Raises ``StaleEpoch`` unless it is the newest."""
        keys = ("plan:epoch", f"plan:{plan.epoch}", "plan:history", "plan")
        try:
            await self._run("omnibus_swap_plan", keys, str(plan.epoch), plans.encode(plan).decode())
        except Refused as error:
            raise StaleEpoch(int(error.what)) from error

    def swaps(self) -> AsyncIterator[int]:
        """Epochs as they become current; 0 when the store has lost its plan. Reconnects by itself."""
        return self._follow("plan", self.epoch)
