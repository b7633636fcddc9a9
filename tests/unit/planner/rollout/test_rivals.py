"""Several planners: one leads each change, the others follow, and continue if it dies."""

import asyncio

import msgspec
import pytest

from omnibus.plan import Plan
from omnibus.store import PlanLed
from tests.unit.planner.apps import app, task
from tests.unit.planner.rollout.test_rollout import options
from tests.unit.planner.town import Town
from tests.unit.sidecar.node import until

SPELL = task("spell")


async def test_planners_that_plan_the_same_make_one_change_of_it(town: Town):
    town.declare(["E", "L"])
    async with town.planner(), town.planner(), town.planner():
        await town.current(1)
        town.crowd.broken.add("m/EL")

        town.declare(["EL"])
        staged = await town.staged()
        await until(lambda: "m-EL-0" in town.crowd.spawned)
        town.crowd.mend("m/EL")
        plan = await town.current(2)
        await asyncio.sleep(0.3)  # time for others to make a mistake

    assert staged.epoch == 2
    assert plan.models == staged.models
    assert await town.store.epoch() == 2
    assert town.crowd.spawned.count("m-EL-0") == 1


async def test_another_planner_goes_on_with_a_change_whose_leader_is_gone(town: Town):
    town.declare(["E", "L"])
    async with town.planner():
        await town.current(1)
        town.crowd.broken.add("m/EL")
        async with town.planner():
            town.declare(["EL"])
            await town.staged()
        town.crowd.mend("m/EL")

        assert options(await town.current(2)) == {"EL"}


@pytest.fixture
async def planned(town: Town) -> Plan:
    """The plan of a planner that has ended."""
    town.declare(["E", "L"])
    async with town.planner():
        return await town.current(1)


def without_encoder(plan: Plan, epoch: int) -> Plan:
    """Return another planner's plan, which requires a new executor."""
    model = plan.models["m"]
    more = {**model.options, "L": msgspec.structs.replace(model.options["L"], replicas=2)}
    models = {"m": msgspec.structs.replace(model, options=more)}
    return msgspec.structs.replace(plan, epoch=epoch, models=models, reason="somebody else's")


async def test_a_change_that_another_one_leads_is_left_alone_until_that_one_is_silent(town: Town, planned: Plan):
    town.crowd.broken.add("m/L")
    theirs = without_encoder(planned, 2)
    await town.store.stage_plan(theirs, "somebody", 30.0)
    await until(lambda: "m-L-1" in town.crowd.spawned)

    async with town.planner():
        town.declare(["EL"])
        await asyncio.sleep(1.5)  # several checks of the file and of the leader
        left = await town.store.staged_plan()
        led = await town.store.lead_plan("somebody", 0.001)
        plan = await town.until(lambda plan: options(plan) == {"EL"})

    assert left == theirs
    assert led
    assert plan.epoch > theirs.epoch
    assert await town.store.staged_plan() is None


async def test_two_that_stage_at_once_are_told_who_leads(town: Town, planned: Plan):
    theirs = [without_encoder(planned, 2), without_encoder(planned, 3)]

    results = await asyncio.gather(
        *(town.store.stage_plan(plan, f"planner-{plan.epoch}", 30.0) for plan in theirs), return_exceptions=True
    )

    refused = [error for error in results if error is not None]
    staged = await town.store.staged_plan()
    assert staged in theirs
    assert [type(error) for error in refused] == [PlanLed]
    assert f"planner-{staged.epoch} leads" in str(refused[0])


async def test_an_epoch_of_another_planner_is_followed_until_there_is_something_new(town: Town, planned: Plan):
    async with town.planner():
        theirs = without_encoder(planned, 2)
        await town.store.swap_plan(theirs)
        await asyncio.sleep(1.5)  # it has checked by then
        followed = await town.store.plan()

        await town.store.put_app(app("poem", SPELL), 0)
        plan = await town.until(lambda plan: "spell" in plan.models)

    assert followed == theirs
    assert plan.models["m"] == planned.models["m"]


async def test_a_lost_store_gets_the_plan_that_was_followed(town: Town, planned: Plan):
    async with town.planner():
        theirs = without_encoder(planned, 5)
        await town.store.swap_plan(theirs)
        await town.known(5)

        await town.raw.flushall()
        await town.raw.publish("omnibus:plan", "0")

        assert (await town.current(6)).models == theirs.models
