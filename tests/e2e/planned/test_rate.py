"""A rate rises and falls; executors are added and removed without failures.

No request fails even if store or planner die.
"""

import asyncio

import pytest

from omnibus.plan import Plan
from tests.e2e.planned.cell import SEEN, TEXT
from tests.e2e.planned.conftest import Planned
from tests.e2e.planned.load import pace_requests
from tests.e2e.planned.settled import FOLLOWED, FOLLOWING, read_capacity, read_replicas, wait_for_plan
from tests.e2e.system import System, command_line

pytestmark = pytest.mark.e2e

LOW, HIGH = 4.0, 20.0  # req/s
PLANNED = "planned vl in"
ASKED = {"goal": "gpus", "rate": LOW, "mix": {SEEN: 0.5, TEXT: 0.5}}


async def test_executors_come_with_the_rate_and_go_with_it_also_when_the_planner_dies(run_planned: Planned):
    with run_planned(**ASKED) as system:
        async with system.store() as store, pace_requests(system, 0.5, LOW) as pace:
            low = await wait_for_plan(system, store)
            pace.rate = HIGH
            high = await wait_for_plan(system, store, low.epoch, serves_high)
            await planner_dies(system)
            pace.rate = LOW
            again = await wait_for_plan(
                system, store, high.epoch, lambda plan: read_replicas(plan) == read_replicas(low)
            )
            plans = [past.plan for past in reversed(await store.plan_history()) if past.plan is not None]

    assert set(pace.traffic.answers) == {200}
    assert sum(read_replicas(low).values()) < sum(read_replicas(high).values()) > sum(read_replicas(again).values())
    assert (plans[0].epoch, plans[-1].epoch) == (low.epoch, again.epoch)
    # However often it is met in parts, as it comes or as it is seen, no plan goes back on the one before.
    counts = [sum(read_replicas(plan).values()) for plan in plans]
    most = counts.index(max(counts))
    assert counts == sorted(counts[: most + 1]) + sorted(counts[most + 1 :], reverse=True)
    assert high.reason.startswith(FOLLOWING)


async def test_a_plan_that_is_wanted_while_the_store_is_away_comes_later(run_planned: Planned):
    with run_planned(**ASKED) as system:
        async with system.store() as store, pace_requests(system, 0.5, LOW) as pace:
            low = await wait_for_plan(system, store)
            valkey = system.server("valkey-server")
            valkey.suspend()
            pace.rate = HIGH
            try:
                await wait_for_log(system, FOLLOWED)
            finally:
                valkey.kill()
            high = await wait_for_plan(system, store, low.epoch, serves_high)

    assert set(pace.traffic.answers) == {200}
    assert sum(read_replicas(low).values()) < sum(read_replicas(high).values())
    assert high.reason.startswith(FOLLOWING)


def serves_high(plan: Plan) -> bool:
    return read_capacity(plan) >= HIGH


async def planner_dies(system: System) -> None:
    """Kill the planner; return once its successor has planned."""
    plans = system.log.count(PLANNED)
    next(one for one in system.processes() if "omnibus_planner" in command_line(one)).kill()
    await wait_for_log(system, PLANNED, plans + 1)


async def wait_for_log(system: System, words: str, times: int = 1) -> None:
    """Wait until processes have logged this so many times."""
    async with asyncio.timeout(60):
        while system.log.count(words) < times:
            await asyncio.sleep(0.05)
