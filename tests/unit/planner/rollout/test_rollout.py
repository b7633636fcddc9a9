"""A plan changes once its executors are ready; failed changes are postponed and reported."""

import json

import pytest

from omnibus.plan import Plan, PriceList
from tests.unit.planner.apps import app, task
from tests.unit.planner.town import Town
from tests.unit.sidecar.node import until

SPELL, COUNT = task("spell"), task("count")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make planners wait and retry without delay."""
    monkeypatch.setenv("OMNIBUS_PLANNER_READY", "0.5")
    monkeypatch.setenv("OMNIBUS_PLANNER_RETRY", "0.5")


def options(plan: Plan) -> set[str]:
    return set(plan.models["m"].options)


async def test_the_first_plan_waits_for_nobody(town: Town):
    town.crowd.broken |= {"m/E", "m/L", "m/EL"}

    async with town.planner():
        plan = await town.current(1)

    assert options(plan) == {"E", "L", "EL"}
    assert plan.reason == "declared"


async def test_a_change_is_staged_until_its_executors_are_ready(town: Town):
    town.declare(["E", "L"])
    async with town.planner():
        await town.current(1)
        town.crowd.broken.add("m/EL")

        town.declare(["EL"])
        staged = await town.staged()
        await until(lambda: "m-EL-0" in town.crowd.spawned)
        before = await town.store.plan()
        town.crowd.mend("m/EL")
        after = await town.current(staged.epoch)

    assert before is not None
    assert (before.epoch, options(before)) == (1, {"E", "L"})
    assert (after.epoch, options(after), after.reason) == (2, {"EL"}, "declarations changed")
    assert after.models == staged.models
    assert await town.store.staged_plan() is None
    assert town.announced == [1, 2]


async def test_what_starts_nothing_is_swapped_at_once(town: Town):
    async with town.planner():
        await town.current(1)
        town.crowd.broken |= {"m/E", "m/L", "m/EL"}  # in any state of the executors, no start is needed

        town.declare(["EL"])
        await town.until(lambda plan: options(plan) == {"EL"})

    assert await town.store.epoch() == 2


async def test_new_prices_are_a_new_epoch_of_the_same_plan(town: Town):
    """Requests are charged by the plan in force. Prices change without a restart."""
    async with town.planner():
        before = await town.current(1)
        declared = json.loads(town.models.read_text())

        town.models.write_text(json.dumps({**declared, "currency": "EUR", "gpus": {"cpu": {"count": 4, "price": 0.1}}}))
        after = await town.until(lambda plan: plan.prices.currency == "EUR")

    assert before.prices == PriceList()
    assert (after.epoch, after.prices.per_hour, after.models) == (2, {"cpu": 0.1}, before.models)


async def test_all_replicas_are_awaited(town: Town):
    town.declare(["E", "L"])
    async with town.planner():
        await town.current(1)
        town.crowd.broken.add("m/L")

        replicas = {"components": ["thinker"], "service": "llm", "replicas": 3}
        town.declare(
            options={"E": {"components": ["vision"], "service": "encoder"}, "L": replicas},
            paths=[{"options": ["E", "L"]}],
        )
        await town.staged()
        await until(lambda: "m-L-2" in town.crowd.spawned)
        assert await town.store.epoch() == 1
        town.crowd.mend("m/L")
        plan = await town.current(2)

    assert plan.models["m"].options["L"].replicas == 3


async def test_other_orders_for_the_same_option_need_other_executors(town: Town):
    async with town.planner():
        first = await town.current(1)
        town.crowd.spawned.clear()

        town.declare(checkpoint="/other")
        second = await town.current(2)

    assert town.crowd.spawned == ["m-E-0", "m-EL-0", "m-L-0"]
    assert all(
        first.models["m"].option_origin(name) != second.models["m"].option_origin(name) for name in options(first)
    )


async def test_what_is_not_ready_in_time_is_put_off_said_and_tried_again(town: Town, hasty: None):
    town.declare(["E", "L"])
    async with town.planner():
        await town.current(1)
        town.crowd.broken.add("m/EL")

        town.declare(["EL"])
        first = await town.staged()
        await until(lambda: said(town))
        problem = (await town.store.plan_problems())["planner"]
        await town.settled()
        kept = await town.store.plan()
        again = await town.staged()
        town.crowd.mend("m/EL")
        await town.until(lambda plan: options(plan) == {"EL"})
        await until(lambda: quiet(town))

    assert "m stays as it was: after 0.5 s 0 of 1 executors of m/EL@" in problem.message
    assert problem.again > problem.at
    assert kept is not None
    assert options(kept) == {"E", "L"}
    assert again.models == first.models


async def said(town: Town) -> bool:
    return "planner" in await town.store.plan_problems()


async def quiet(town: Town) -> bool:
    return not await town.store.plan_problems()


async def test_a_model_whose_executors_do_not_come_holds_up_no_other(town: Town):
    async with town.planner():
        await town.current(1)
        town.crowd.broken.add("count/count")

        await town.store.put_app(app("bad", COUNT), 0)
        await town.staged()
        await town.store.put_app(app("poem", SPELL), 0)
        await town.until(lambda plan: "spell" in plan.models)
        staged = await town.staged()
        assert list(staged.models) == ["m", "count", "spell"]
        town.crowd.mend("count/count")
        plan = await town.until(lambda plan: "count" in plan.models)

    assert plan.reason == "app bad registered, app poem registered"
    assert town.crowd.spawned.count("count-count-0") == 1


async def test_what_nobody_wants_any_more_is_staged_no_more(town: Town):
    async with town.planner():
        await town.current(1)
        town.crowd.broken.add("spell/spell")

        await town.store.put_app(app("poem", SPELL), 0)
        await town.staged()
        await town.store.drop_app("poem", None)
        await town.settled()

        assert await town.store.epoch() == 1
        await until(lambda: {kind.model for kind in town.crowd.there.values()} == {"m"})


async def test_declarations_that_are_no_good_change_nothing_and_are_said(town: Town):
    async with town.planner():
        await town.current(1)

        town.models.write_text("{")
        await until(lambda: complaint(town))
        assert await town.store.epoch() == 1
        town.declare(["EL"])
        await town.until(lambda plan: options(plan) == {"EL"})
        await until(lambda: quiet(town))


async def complaint(town: Town) -> bool:
    return str(town.models) in await town.store.plan_problems()


# Planners that die during a change


async def test_a_planner_that_starts_again_goes_on_with_what_is_staged(town: Town):
    town.declare(["E", "L"])
    town.crowd.broken.add("m/EL")
    async with town.planner():
        await town.current(1)
        town.declare(["EL"])
        staged = await town.staged()
        await until(lambda: "m-EL-0" in town.crowd.spawned)

    async with town.planner():
        town.crowd.mend("m/EL")
        plan = await town.current(2)

    assert plan.models == staged.models
    assert town.crowd.spawned.count("m-EL-0") == 1


async def test_a_planner_that_starts_with_other_declarations_drops_what_is_staged(town: Town):
    town.declare(["E", "L"])
    town.crowd.broken.add("m/EL")
    async with town.planner():
        await town.current(1)
        town.declare(["EL"])
        await town.staged()

    town.declare(["E", "L"])
    async with town.planner():
        await town.settled()
        plan = await town.current(1)

    assert options(plan) == {"E", "L"}


@pytest.mark.parametrize("body", ["{", '{"v": 2}', '{"epoch":9,"seed":0,"created":0,"models":{},"v":9}'])
async def test_a_staged_plan_of_another_build_is_replaced(town: Town, body: str):
    town.declare(["E", "L"])
    async with town.planner():
        await town.current(1)
    await town.raw.set("omnibus:plan:staged", body)

    town.declare(["EL"])
    async with town.planner():
        plan = await town.until(lambda plan: options(plan) == {"EL"})

    assert await town.store.staged_plan() is None
    assert await town.store.epoch() == plan.epoch


# Stores that fail during a change


async def test_a_store_that_loses_everything_in_the_middle_of_a_change_gets_both_plans_again(town: Town):
    town.declare(["E", "L"])
    town.crowd.broken.add("m/EL")
    async with town.planner():
        await town.current(1)
        town.declare(["EL"])
        await town.staged()

        await town.raw.flushall()
        await town.raw.publish("omnibus:plan", "0")
        lost = await town.current(2)
        await town.staged()
        town.crowd.mend("m/EL")
        plan = await town.current(3)

    assert (options(lost), lost.reason) == ({"E", "L"}, "the store had lost it")
    assert options(plan) == {"EL"}


async def test_a_store_that_takes_nothing_for_a_while_gets_the_swap_afterwards(town: Town):
    town.declare(["E", "L"])
    town.crowd.broken.add("m/EL")
    async with town.planner():
        await town.current(1)
        town.declare(["EL"])
        await town.staged()

        await town.raw.config_set("maxmemory", "1")  # reads go on, writes are refused
        town.crowd.mend("m/EL")
        await until(lambda: refused(town))
        assert await town.store.epoch() == 1
        await town.raw.config_set("maxmemory", "0")

        assert options(await town.current(2)) == {"EL"}


async def refused(town: Town) -> bool:
    """Return True if the server has refused a write."""
    info = await town.raw.info("errorstats")
    return any("OOM" in name for name in info)
