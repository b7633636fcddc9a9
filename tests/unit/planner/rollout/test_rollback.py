"""An operator pins an earlier plan: it is served as a new epoch, and stays until it is unpinned."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from omnibus.errors import NotFound
from omnibus.plan import Plan
from tests.unit.planner.apps import make_app, make_task
from tests.unit.planner.rollout.test_rollout import list_options
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

SPELL = make_task("spell")


@pytest.fixture
async def changed_system(system: PlannerSystem) -> AsyncIterator[PlannerSystem]:
    """A running planner, and a town with E and L, then EL. These are the epochs 1 and 2."""
    system.declare(["E", "L"])
    async with system.planner():
        await system.current(1)
        system.declare(["EL"])
        await system.current(2)
        yield system


async def test_a_pinned_plan_is_served_as_a_new_epoch_once_its_executors_are_ready(changed_system: PlannerSystem):
    changed_system.crowd.broken.add("m/L")

    await changed_system.store.pin_plan(1)
    staged_plan = await changed_system.staged()
    assert await changed_system.store.epoch() == 2
    changed_system.crowd.mend("m/L")
    plan = await changed_system.current(3)

    assert plan.reason == staged_plan.reason == "rollback to 1"
    assert list_options(plan) == {"E", "L"}
    assert plan.models == (await read_past_plan(changed_system, 1)).models


async def read_past_plan(town: PlannerSystem, epoch: int) -> Plan:
    plan = await town.store.plan(epoch)
    assert plan is not None
    return plan


async def test_nothing_changes_while_a_plan_is_pinned_and_all_does_afterwards(changed_system: PlannerSystem):
    await changed_system.store.pin_plan(1)
    await changed_system.current(3)

    await changed_system.store.put_app(make_app("poem", SPELL), 0)
    changed_system.declare(["EL"], share=1, context=99)
    await asyncio.sleep(1.5)  # the planner has read the file by then
    during = await changed_system.store.epoch()
    await changed_system.store.unpin_plan()
    plan = await changed_system.until(lambda plan: "spell" in plan.models and plan.models["m"].context == 99)

    assert during == 3
    assert list_options(plan) == {"EL"}
    assert plan.reason == "resumed"


async def test_a_planner_that_starts_serves_what_is_pinned(system: PlannerSystem):
    system.declare(["E", "L"])
    async with system.planner():
        await system.current(1)
        system.declare(["EL"])
        await system.current(2)
    await system.store.pin_plan(1)

    async with system.planner():
        first = await system.current(3)
    async with system.planner():
        await asyncio.sleep(0.3)
        again = await system.store.plan()

    assert list_options(first) == {"E", "L"}
    assert again == first


async def test_another_plan_may_be_pinned_instead(changed_system: PlannerSystem):
    await changed_system.store.pin_plan(1)
    await changed_system.current(3)

    await changed_system.store.pin_plan(2)
    plan = await changed_system.current(4)

    assert (list_options(plan), plan.reason) == ({"EL"}, "rollback to 2")


async def test_what_is_pinned_stays_so_when_the_store_loses_everything(changed_system: PlannerSystem):
    await changed_system.store.pin_plan(1)
    pinned_plan = await changed_system.wait_until_known(3)

    await changed_system.raw.flushall()
    await changed_system.raw.publish("omnibus:plan", "0")
    plan = await changed_system.current(4)
    await asyncio.sleep(0.3)

    assert plan.models == pinned_plan.models
    assert await changed_system.store.epoch() == 4
    assert (await changed_system.store.plan_state()).pin == 4


async def test_a_plan_that_is_not_kept_cannot_be_pinned(changed_system: PlannerSystem):
    for epoch in (7, 0, -1):
        with pytest.raises(NotFound, match=f"no plan of epoch {epoch}"):
            await changed_system.store.pin_plan(epoch)

    assert (await changed_system.store.plan_state()).pin == 0


async def test_a_pinned_plan_of_another_build_is_said_and_changes_nothing(changed_system: PlannerSystem):
    await changed_system.raw.set("omnibus:plan:1", '{"v": 9}')

    await changed_system.store.pin_plan(1)
    await wait_until(lambda: is_reported(changed_system))

    assert await changed_system.store.epoch() == 2
    await changed_system.store.unpin_plan()
    await wait_until(lambda: is_silent(changed_system))


async def is_reported(town: PlannerSystem) -> bool:
    return "epoch 1 cannot be served" in str(await town.store.plan_problems())


async def is_silent(town: PlannerSystem) -> bool:
    return not await town.store.plan_problems()
