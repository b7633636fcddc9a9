"""A planner killed after any of its writes blocks no other."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle
from typing import Any

import pytest

from omnibus.cluster.presence import replica_counts
from omnibus.errors import StoreUnavailable
from omnibus_planner.rollout import readiness, rollout
from omnibus_planner.service import PlannerService
from tests.unit.planner.rollout.test_full import count_replicas, declare_model, has_replicas, read_past_plans
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

#: More writes than any change in steps needs; an endless one fails.
MOST_WRITES = 40


@pytest.fixture(autouse=True)
def shorten_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the lease, and the time until executors count as settled."""
    monkeypatch.setattr(rollout, "LEASE_SECONDS", 0.2)
    monkeypatch.setattr(rollout, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(readiness, "SETTLE_SECONDS", 0.05)


class MortalPlanner:
    """A planner that dies silently after ``writes`` writes to the store."""

    def __init__(self, service: PlannerService, writes: int) -> None:
        self.dead = asyncio.Event()
        self._left = writes
        self._over = False
        store: Any = service._store
        self._run, self._put = store._run_function, store.put_problem
        store._run_function, store.put_problem = self._run_function, self._put_problem

    async def _run_function(self, name: str, *arguments: Any) -> Any:
        return await self._count_write(lambda: self._run(name, *arguments))

    async def _put_problem(self, *arguments: Any) -> None:
        await self._count_write(lambda: self._put(*arguments))

    async def _count_write(self, write: Callable[[], Any]) -> Any:
        if self._over:
            raise StoreUnavailable("it is dead")
        result = await write() if not self.dead.is_set() else None
        self._left -= 1
        if self._left <= 0:
            self.dead.set()
            await asyncio.Event().wait()
        return result

    def bury(self) -> None:
        """Mark its process as dead, so that its rest may end."""
        self._over = True


@asynccontextmanager
async def start_mortal(writes: int) -> AsyncIterator[MortalPlanner]:
    service = PlannerService()
    life = MortalPlanner(service, writes)
    running = asyncio.create_task(service.startup())
    try:
        yield life
    finally:
        life.bury()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.shutdown()


async def is_reached(town: PlannerSystem, wants: dict[str, int]) -> bool:
    """Return True if the plan has these replicas and its executors run. No change may be staged."""
    plan, stand = await town.store.plan(), await town.store.plan_state()
    if plan is None or count_replicas(plan) != wants or stand.staged:
        return False
    kinds = list(town.crowd.there.values())
    return {kind: kinds.count(kind) for kind in kinds} == replica_counts(plan.models)


async def test_the_next_planner_goes_on_after_whichever_write_one_is_killed(system: PlannerSystem):
    """All GPUs are in use, so each change is made in steps: staged, swapped, staged again, swapped."""
    shapes = cycle(({"E": 2, "L": 2}, {"EL": 4}))
    declare_model(system, EL=4)
    async with system.planner():
        await system.until(has_replicas(EL=4))

    for writes in range(1, MOST_WRITES):
        wants = next(shapes)
        declare_model(system, **wants)
        async with start_mortal(writes) as life:
            await wait_until(partial(has_ended, system, life, wants))
            if not life.dead.is_set():
                break
            async with system.planner():
                await wait_until(partial(is_reached, system, wants))
                assert await system.store.plan_problems() == {}
    else:
        pytest.fail(f"a change had {MOST_WRITES} writes")

    assert writes > 4
    await read_past_plans(system)


async def has_ended(town: PlannerSystem, life: MortalPlanner, wants: dict[str, int]) -> bool:
    return life.dead.is_set() or await is_reached(town, wants)
