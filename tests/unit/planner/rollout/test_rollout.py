"""A plan changes once its executors are ready; failed changes are postponed and reported."""

import json

import pytest

from omnibus.plan import Plan, PriceList
from tests.unit.planner.apps import make_app, make_task
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

SPELL, COUNT = make_task("spell"), make_task("count")


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make planners wait and retry without delay."""
    monkeypatch.setenv("OMNIBUS_PLANNER_READY", "0.5")
    monkeypatch.setenv("OMNIBUS_PLANNER_RETRY", "0.5")


def list_options(plan: Plan) -> set[str]:
    return set(plan.models["m"].options)


async def test_the_first_plan_waits_for_nobody(system: PlannerSystem):
    system.crowd.broken |= {"m/E", "m/L", "m/EL"}

    async with system.planner():
        plan = await system.current(1)

    assert list_options(plan) == {"E", "L", "EL"}
    assert plan.reason == "declared"


async def test_a_change_is_staged_until_its_executors_are_ready(system: PlannerSystem):
    system.declare(["E", "L"])
    async with system.planner():
        await system.current(1)
        system.crowd.broken.add("m/EL")

        system.declare(["EL"])
        next_plan = await system.staged()
        await wait_until(lambda: "m-EL-0" in system.crowd.spawned)
        before = await system.store.plan()
        system.crowd.mend("m/EL")
        after = await system.current(next_plan.epoch)

    assert before is not None
    assert (before.epoch, list_options(before)) == (1, {"E", "L"})
    assert (after.epoch, list_options(after), after.reason) == (2, {"EL"}, "declarations changed")
    assert after.models == next_plan.models
    assert await system.store.staged_plan() is None
    assert system.announced == [1, 2]


async def test_what_starts_nothing_is_swapped_at_once(system: PlannerSystem):
    async with system.planner():
        await system.current(1)
        system.crowd.broken |= {"m/E", "m/L", "m/EL"}  # in any state of the executors, no start is needed

        system.declare(["EL"])
        await system.until(lambda plan: list_options(plan) == {"EL"})

    assert await system.store.epoch() == 2


async def test_new_prices_are_a_new_epoch_of_the_same_plan(system: PlannerSystem):
    """Requests are charged by the plan in force. Prices change without a restart."""
    async with system.planner():
        before = await system.current(1)
        declarations = json.loads(system.models.read_text())

        system.models.write_text(
            json.dumps({**declarations, "currency": "EUR", "gpus": {"cpu": {"count": 4, "price": 0.1}}})
        )
        after = await system.until(lambda plan: plan.prices.currency == "EUR")

    assert before.prices == PriceList()
    assert (after.epoch, after.prices.per_hour, after.models) == (2, {"cpu": 0.1}, before.models)


async def test_all_replicas_are_awaited(system: PlannerSystem):
    system.declare(["E", "L"])
    async with system.planner():
        await system.current(1)
        system.crowd.broken.add("m/L")

        replicas = {"components": ["thinker"], "service": "llm", "replicas": 3}
        system.declare(
            options={"E": {"components": ["vision"], "service": "encoder"}, "L": replicas},
            paths=[{"options": ["E", "L"]}],
        )
        await system.staged()
        await wait_until(lambda: "m-L-2" in system.crowd.spawned)
        assert await system.store.epoch() == 1
        system.crowd.mend("m/L")
        plan = await system.current(2)

    assert plan.models["m"].options["L"].replicas == 3


async def test_other_orders_for_the_same_option_need_other_executors(system: PlannerSystem):
    async with system.planner():
        first = await system.current(1)
        system.crowd.spawned.clear()

        system.declare(checkpoint="/other")
        second = await system.current(2)

    assert system.crowd.spawned == ["m-E-0", "m-EL-0", "m-L-0"]
    assert all(
        first.models["m"].option_origin(name) != second.models["m"].option_origin(name) for name in list_options(first)
    )


async def test_what_is_not_ready_in_time_is_put_off_said_and_tried_again(system: PlannerSystem, short_waits: None):
    system.declare(["E", "L"])
    async with system.planner():
        await system.current(1)
        system.crowd.broken.add("m/EL")

        system.declare(["EL"])
        first = await system.staged()
        await wait_until(lambda: is_reported(system))
        problem = (await system.store.plan_problems())["planner"]
        await system.wait_until_settled()
        current_plan = await system.store.plan()
        again = await system.staged()
        system.crowd.mend("m/EL")
        await system.until(lambda plan: list_options(plan) == {"EL"})
        await wait_until(lambda: is_silent(system))

    assert "m stays as it was: after 0.5 s 0 of 1 executors of m/EL@" in problem.message
    assert problem.again > problem.at
    assert current_plan is not None
    assert list_options(current_plan) == {"E", "L"}
    assert again.models == first.models


async def is_reported(town: PlannerSystem) -> bool:
    return "planner" in await town.store.plan_problems()


async def is_silent(town: PlannerSystem) -> bool:
    return not await town.store.plan_problems()


async def test_a_model_whose_executors_do_not_come_holds_up_no_other(system: PlannerSystem):
    async with system.planner():
        await system.current(1)
        system.crowd.broken.add("count/count")

        await system.store.put_app(make_app("bad", COUNT), 0)
        await system.staged()
        await system.store.put_app(make_app("poem", SPELL), 0)
        await system.until(lambda plan: "spell" in plan.models)
        next_plan = await system.staged()
        assert list(next_plan.models) == ["m", "count", "spell"]
        system.crowd.mend("count/count")
        plan = await system.until(lambda plan: "count" in plan.models)

    assert plan.reason == "app bad registered, app poem registered"
    assert system.crowd.spawned.count("count-count-0") == 1


async def test_what_nobody_wants_any_more_is_staged_no_more(system: PlannerSystem):
    async with system.planner():
        await system.current(1)
        system.crowd.broken.add("spell/spell")

        await system.store.put_app(make_app("poem", SPELL), 0)
        await system.staged()
        await system.store.drop_app("poem", None)
        await system.wait_until_settled()

        assert await system.store.epoch() == 1
        await wait_until(lambda: {kind.model for kind in system.crowd.there.values()} == {"m"})


async def test_declarations_that_are_no_good_change_nothing_and_are_said(system: PlannerSystem):
    async with system.planner():
        await system.current(1)

        system.models.write_text("{")
        await wait_until(lambda: is_file_reported(system))
        assert await system.store.epoch() == 1
        system.declare(["EL"])
        await system.until(lambda plan: list_options(plan) == {"EL"})
        await wait_until(lambda: is_silent(system))


async def is_file_reported(town: PlannerSystem) -> bool:
    return str(town.models) in await town.store.plan_problems()


# Planners that die during a change


async def test_a_planner_that_starts_again_goes_on_with_what_is_staged(system: PlannerSystem):
    system.declare(["E", "L"])
    system.crowd.broken.add("m/EL")
    async with system.planner():
        await system.current(1)
        system.declare(["EL"])
        next_plan = await system.staged()
        await wait_until(lambda: "m-EL-0" in system.crowd.spawned)

    async with system.planner():
        system.crowd.mend("m/EL")
        plan = await system.current(2)

    assert plan.models == next_plan.models
    assert system.crowd.spawned.count("m-EL-0") == 1


async def test_a_planner_that_starts_with_other_declarations_drops_what_is_staged(system: PlannerSystem):
    system.declare(["E", "L"])
    system.crowd.broken.add("m/EL")
    async with system.planner():
        await system.current(1)
        system.declare(["EL"])
        await system.staged()

    system.declare(["E", "L"])
    async with system.planner():
        await system.wait_until_settled()
        plan = await system.current(1)

    assert list_options(plan) == {"E", "L"}


@pytest.mark.parametrize("body", ["{", '{"v": 2}', '{"epoch":9,"seed":0,"created":0,"models":{},"v":9}'])
async def test_a_staged_plan_of_another_build_is_replaced(system: PlannerSystem, body: str):
    system.declare(["E", "L"])
    async with system.planner():
        await system.current(1)
    await system.raw.set("omnibus:plan:staged", body)

    system.declare(["EL"])
    async with system.planner():
        plan = await system.until(lambda plan: list_options(plan) == {"EL"})

    assert await system.store.staged_plan() is None
    assert await system.store.epoch() == plan.epoch


# Stores that fail during a change


async def test_a_store_that_loses_everything_in_the_middle_of_a_change_gets_both_plans_again(system: PlannerSystem):
    system.declare(["E", "L"])
    system.crowd.broken.add("m/EL")
    async with system.planner():
        await system.current(1)
        system.declare(["EL"])
        await system.staged()

        await system.raw.flushall()
        await system.raw.publish("omnibus:plan", "0")
        restored_plan = await system.current(2)
        await system.staged()
        system.crowd.mend("m/EL")
        plan = await system.current(3)

    assert (list_options(restored_plan), restored_plan.reason) == ({"E", "L"}, "the store had lost it")
    assert list_options(plan) == {"EL"}


async def test_a_store_that_takes_nothing_for_a_while_gets_the_swap_afterwards(system: PlannerSystem):
    system.declare(["E", "L"])
    system.crowd.broken.add("m/EL")
    async with system.planner():
        await system.current(1)
        system.declare(["EL"])
        await system.staged()

        await system.raw.config_set("maxmemory", "1")  # reads go on, writes are refused
        system.crowd.mend("m/EL")
        await wait_until(lambda: is_write_refused(system))
        assert await system.store.epoch() == 1
        await system.raw.config_set("maxmemory", "0")

        assert list_options(await system.current(2)) == {"EL"}


async def is_write_refused(town: PlannerSystem) -> bool:
    """Return True if the server has refused a write."""
    info = await town.raw.info("errorstats")
    return any("OOM" in name for name in info)
