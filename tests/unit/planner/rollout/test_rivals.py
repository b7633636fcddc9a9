"""Several planners: one leads each change, the others follow, and continue if it dies."""

import asyncio

import msgspec
import pytest

from omnibus.plan import Plan
from omnibus.store import PlanLed
from tests.unit.planner.apps import make_app, make_task
from tests.unit.planner.rollout.test_rollout import list_options
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

SPELL = make_task("spell")


async def test_planners_that_plan_the_same_make_one_change_of_it(system: PlannerSystem):
    system.declare(["E", "L"])
    async with system.planner(), system.planner(), system.planner():
        await system.current(1)
        system.crowd.broken.add("m/EL")

        system.declare(["EL"])
        staged_plan = await system.staged()
        await wait_until(lambda: "m-EL-0" in system.crowd.spawned)
        system.crowd.mend("m/EL")
        plan = await system.current(2)
        await asyncio.sleep(0.3)  # time for others to make a mistake

    assert staged_plan.epoch == 2
    assert plan.models == staged_plan.models
    assert await system.store.epoch() == 2
    assert system.crowd.spawned.count("m-EL-0") == 1


async def test_another_planner_goes_on_with_a_change_whose_leader_is_gone(system: PlannerSystem):
    system.declare(["E", "L"])
    async with system.planner():
        await system.current(1)
        system.crowd.broken.add("m/EL")
        async with system.planner():
            system.declare(["EL"])
            await system.staged()
        system.crowd.mend("m/EL")

        assert list_options(await system.current(2)) == {"EL"}


@pytest.fixture
async def ended_plan(system: PlannerSystem) -> Plan:
    """The plan of a planner that has ended."""
    system.declare(["E", "L"])
    async with system.planner():
        return await system.current(1)


def without_encoder(plan: Plan, epoch: int) -> Plan:
    """Return another planner's plan, which requires a new executor."""
    model = plan.models["m"]
    more = {**model.options, "L": msgspec.structs.replace(model.options["L"], replicas=2)}
    models = {"m": msgspec.structs.replace(model, options=more)}
    return msgspec.structs.replace(plan, epoch=epoch, models=models, reason="somebody else's")


async def test_a_change_that_another_one_leads_is_left_alone_until_that_one_is_silent(
    system: PlannerSystem, ended_plan: Plan
):
    system.crowd.broken.add("m/L")
    other_plan = without_encoder(ended_plan, 2)
    await system.store.stage_plan(other_plan, "somebody", 30.0)
    await wait_until(lambda: "m-L-1" in system.crowd.spawned)

    async with system.planner():
        system.declare(["EL"])
        await asyncio.sleep(1.5)  # several checks of the file and of the leader
        left = await system.store.staged_plan()
        led = await system.store.lead_plan("somebody", 0.001)
        plan = await system.until(lambda plan: list_options(plan) == {"EL"})

    assert left == other_plan
    assert led
    assert plan.epoch > other_plan.epoch
    assert await system.store.staged_plan() is None


async def test_two_that_stage_at_once_are_told_who_leads(system: PlannerSystem, ended_plan: Plan):
    other_plans = [without_encoder(ended_plan, 2), without_encoder(ended_plan, 3)]

    results = await asyncio.gather(
        *(system.store.stage_plan(plan, f"planner-{plan.epoch}", 30.0) for plan in other_plans), return_exceptions=True
    )

    errors = [error for error in results if error is not None]
    leading_plan = await system.store.staged_plan()
    assert leading_plan in other_plans
    assert [type(error) for error in errors] == [PlanLed]
    assert f"planner-{leading_plan.epoch} leads" in str(errors[0])


async def test_an_epoch_of_another_planner_is_followed_until_there_is_something_new(
    system: PlannerSystem, ended_plan: Plan
):
    async with system.planner():
        other_plan = without_encoder(ended_plan, 2)
        await system.store.swap_plan(other_plan)
        await asyncio.sleep(1.5)  # it has checked by then
        followed_plan = await system.store.plan()

        await system.store.put_app(make_app("poem", SPELL), 0)
        plan = await system.until(lambda plan: "spell" in plan.models)

    assert followed_plan == other_plan
    assert plan.models["m"] == ended_plan.models["m"]


async def test_a_lost_store_gets_the_plan_that_was_followed(system: PlannerSystem, ended_plan: Plan):
    async with system.planner():
        other_plan = without_encoder(ended_plan, 5)
        await system.store.swap_plan(other_plan)
        await system.wait_until_known(5)

        await system.raw.flushall()
        await system.raw.publish("omnibus:plan", "0")

        assert (await system.current(6)).models == other_plan.models
