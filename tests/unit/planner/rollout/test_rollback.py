"""An operator pins an earlier plan: it is served as a new epoch, and stays until it is unpinned."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from omnibus.errors import NotFound
from omnibus.plan import Plan
from tests.unit.planner.apps import app, task
from tests.unit.planner.rollout.test_rollout import options
from tests.unit.planner.town import Town
from tests.unit.sidecar.node import until

SPELL = task("spell")


@pytest.fixture
async def changed(town: Town) -> AsyncIterator[Town]:
    """A running planner, and a town with E and L, then EL. These are the epochs 1 and 2."""
    town.declare(["E", "L"])
    async with town.planner():
        await town.current(1)
        town.declare(["EL"])
        await town.current(2)
        yield town


async def test_a_pinned_plan_is_served_as_a_new_epoch_once_its_executors_are_ready(changed: Town):
    changed.crowd.broken.add("m/L")

    await changed.store.pin_plan(1)
    staged = await changed.staged()
    assert await changed.store.epoch() == 2
    changed.crowd.mend("m/L")
    plan = await changed.current(3)

    assert plan.reason == staged.reason == "rollback to 1"
    assert options(plan) == {"E", "L"}
    assert plan.models == (await past(changed, 1)).models


async def past(town: Town, epoch: int) -> Plan:
    plan = await town.store.plan(epoch)
    assert plan is not None
    return plan


async def test_nothing_changes_while_a_plan_is_pinned_and_all_does_afterwards(changed: Town):
    await changed.store.pin_plan(1)
    await changed.current(3)

    await changed.store.put_app(app("poem", SPELL), 0)
    changed.declare(["EL"], share=1, context=99)
    await asyncio.sleep(1.5)  # the planner has read the file by then
    during = await changed.store.epoch()
    await changed.store.unpin_plan()
    plan = await changed.until(lambda plan: "spell" in plan.models and plan.models["m"].context == 99)

    assert during == 3
    assert options(plan) == {"EL"}
    assert plan.reason == "resumed"


async def test_a_planner_that_starts_serves_what_is_pinned(town: Town):
    town.declare(["E", "L"])
    async with town.planner():
        await town.current(1)
        town.declare(["EL"])
        await town.current(2)
    await town.store.pin_plan(1)

    async with town.planner():
        first = await town.current(3)
    async with town.planner():
        await asyncio.sleep(0.3)
        again = await town.store.plan()

    assert options(first) == {"E", "L"}
    assert again == first


async def test_another_plan_may_be_pinned_instead(changed: Town):
    await changed.store.pin_plan(1)
    await changed.current(3)

    await changed.store.pin_plan(2)
    plan = await changed.current(4)

    assert (options(plan), plan.reason) == ({"EL"}, "rollback to 2")


async def test_what_is_pinned_stays_so_when_the_store_loses_everything(changed: Town):
    await changed.store.pin_plan(1)
    pinned = await changed.known(3)

    await changed.raw.flushall()
    await changed.raw.publish("omnibus:plan", "0")
    plan = await changed.current(4)
    await asyncio.sleep(0.3)

    assert plan.models == pinned.models
    assert await changed.store.epoch() == 4
    assert (await changed.store.plan_state()).pin == 4


async def test_a_plan_that_is_not_kept_cannot_be_pinned(changed: Town):
    for epoch in (7, 0, -1):
        with pytest.raises(NotFound, match=f"no plan of epoch {epoch}"):
            await changed.store.pin_plan(epoch)

    assert (await changed.store.plan_state()).pin == 0


async def test_a_pinned_plan_of_another_build_is_said_and_changes_nothing(changed: Town):
    await changed.raw.set("omnibus:plan:1", '{"v": 9}')

    await changed.store.pin_plan(1)
    await until(lambda: complaint(changed))

    assert await changed.store.epoch() == 2
    await changed.store.unpin_plan()
    await until(lambda: silence(changed))


async def complaint(town: Town) -> bool:
    return "epoch 1 cannot be served" in str(await town.store.plan_problems())


async def silence(town: Town) -> bool:
    return not await town.store.plan_problems()
