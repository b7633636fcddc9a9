"""Changing a plan in steps if all GPUs are in use. Some executors stop, and others start in their place."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from omnibus.cluster.desired import desired_executors
from omnibus.families import catalog
from omnibus.plan import Plan
from tests.unit.planner.apps import app, task
from tests.unit.planner.town import Town
from tests.unit.sidecar.node import until

GPU, GPUS = "H100", 4
PARTS = {"E": (["vision"], "encoder"), "L": (["thinker"], "llm"), "EL": (["vision", "thinker"], "llm")}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make planners wait and retry without delay."""
    monkeypatch.setenv("OMNIBUS_PLANNER_READY", "1")
    monkeypatch.setenv("OMNIBUS_PLANNER_RETRY", "1")


def declare(town: Town, gpus: int = GPUS, **replicas: int) -> None:
    """Declare the model m with these replicas, on ``gpus`` GPUs."""
    declare_all(town, gpus, m=replicas)


def declare_all(town: Town, gpus: int, **models: dict[str, int]) -> None:
    declared = {name: deployed(replicas) for name, replicas in models.items()}
    town.models.write_text(json.dumps({"gpus": {GPU: {"count": gpus}}, "models": declared}))


def deployed(replicas: dict[str, int]) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: {"components": PARTS[name][0], "service": PARTS[name][1], "replicas": count, "gpus": 1, "gpu": GPU}
        for name, count in replicas.items()
    }
    paths = [{"options": path} for path in (["EL"], ["E", "L"]) if set(path) <= replicas.keys()]
    return {**catalog.model_declaration("qwen2_5_vl", "/m"), "options": options, "paths": paths}


def replicas(plan: Plan, model: str = "m") -> dict[str, int]:
    return {name: option.replicas for name, option in plan.models[model].options.items()}


def there(**wants: int) -> Callable[[Plan], bool]:
    return lambda plan: replicas(plan) == wants


async def past(town: Town) -> list[Plan]:
    """Return all plans so far in order.

    Checks that no two consecutive ones need more GPUs than there are, and that each serves all requests.
    """
    plans = [each.plan for each in reversed(await town.store.plan_history()) if each.plan is not None]
    for plan, then in pairwise(plans):
        assert sum(each.replicas for each in desired_executors(plan, then).values() if each.gpus) <= GPUS
    assert all(plan.models["m"].types.keys() == {"thinker", "vision+thinker"} for plan in plans)
    return plans


async def test_executors_make_room_before_others_start(town: Town):
    declare(town, E=2, L=2)
    async with town.planner():
        await town.current(1)

        declare(town, E=1, L=3)
        await town.until(there(E=1, L=3))

    plans = await past(town)
    assert [replicas(plan) for plan in plans] == [{"E": 2, "L": 2}, {"E": 1, "L": 2}, {"E": 1, "L": 3}]
    assert [plan.reason for plan in plans[1:]] == [
        "declarations changed: makes room for 1 m/L", "declarations changed"
    ]  # fmt: skip
    assert town.crowd.most == GPUS


async def test_other_options_take_the_place_of_all_that_ran(town: Town):
    declare(town, EL=4)
    async with town.planner():
        await town.current(1)

        declare(town, E=2, L=2)
        await town.until(there(E=2, L=2))

    plans = await past(town)
    assert [replicas(plan) for plan in plans] == [{"EL": 4}, {"EL": 2}, {"E": 1, "L": 1}, {"E": 2, "L": 2}]
    assert plans[2].reason == "declarations changed: 2 of 4 new executors"
    assert town.crowd.most == GPUS


async def test_who_still_drains_has_to_leave_before_others_start(town: Town):
    declare(town, E=2, L=2)
    town.crowd.busy.add("m/E")
    async with town.planner():
        await town.current(1)

        declare(town, E=1, L=3)
        await town.until(there(E=1, L=2))
        await town.store.put_app(app("poem", task("spell")), 0)
        waits = await town.until(lambda plan: "spell" in plan.models)
        town.crowd.let_go()
        await town.until(there(E=1, L=3))

    assert replicas(waits) == {"E": 1, "L": 2}
    assert town.crowd.most == GPUS + 1  # the app needs no GPU


async def test_when_new_executors_do_not_start_the_old_ones_come_back_and_it_is_tried_again(town: Town, hasty: None):
    declare(town, EL=4)
    town.crowd.broken.add("m/L")
    async with town.planner():
        await town.current(1)

        declare(town, E=2, L=2)
        await town.until(there(EL=2))
        back = await town.until(there(EL=4))
        problem = (await town.store.plan_problems())["planner"]
        await town.until(there(EL=2))
        town.crowd.mend("m/L")
        await town.until(there(E=2, L=2))
        await until(lambda: quiet(town))

    assert back.reason == "declarations changed: goes back for now"
    assert "m stays as it was: after 1 s 0 of 1 executors of m/L@" in problem.message
    assert problem.again > problem.at
    assert town.crowd.most == GPUS


async def test_a_model_whose_executors_do_not_start_holds_up_no_other(town: Town, hasty: None):
    declare_all(town, 6, m={"EL": 3}, n={"E": 2, "L": 1})
    town.crowd.broken.add("m/L")
    async with town.planner():
        await town.current(1)

        declare_all(town, 6, m={"E": 1, "L": 2}, n={"E": 1, "L": 2})
        await town.until(lambda plan: (replicas(plan), replicas(plan, "n")) == ({"EL": 3}, {"E": 1, "L": 2}))
        town.crowd.mend("m/L")
        await town.until(lambda plan: (replicas(plan), replicas(plan, "n")) == ({"E": 1, "L": 2}, {"E": 1, "L": 2}))

    assert town.crowd.most <= 6


async def quiet(town: Town) -> bool:
    return not await town.store.plan_problems()


async def test_a_planner_that_starts_in_the_middle_goes_on_from_there(town: Town):
    declare(town, EL=4)
    town.crowd.broken.add("m/L")
    async with town.planner():
        await town.current(1)
        declare(town, E=2, L=2)
        await town.until(there(EL=2))
        await until(lambda: "m-L-0" in town.crowd.spawned)

    async with town.planner():
        town.crowd.mend("m/L")
        await town.until(there(E=2, L=2))

    plans = await past(town)
    assert [replicas(plan) for plan in plans] == [{"EL": 4}, {"EL": 2}, {"E": 1, "L": 1}, {"E": 2, "L": 2}]
    assert town.crowd.spawned.count("m-L-0") == 1


async def test_where_no_way_fits_all_stays_and_what_lacks_is_said_and_others_change(town: Town):
    declare(town, gpus=1, EL=1)
    async with town.planner():
        await town.current(1)

        declare(town, gpus=2, E=1, L=1)
        await until(lambda: told(town))
        await town.store.put_app(app("poem", task("spell")), 0)
        plan = await town.until(lambda plan: "spell" in plan.models)
        assert there(EL=1)(plan)
        declare(town, gpus=3, E=1, L=1)
        await town.until(there(E=1, L=1))
        await until(lambda: quiet(town))


async def told(town: Town) -> bool:
    problem = (await town.store.plan_problems()).get("planner")
    return problem is not None and "it takes 1 more of type H100 for m/E, m/L" in problem.message


async def test_a_rollback_goes_in_steps_as_well(town: Town):
    declare(town, E=2, L=2)
    async with town.planner():
        await town.current(1)
        declare(town, E=1, L=3)
        await town.until(there(E=1, L=3))

        await town.store.pin_plan(1)
        await town.until(there(E=2, L=2))

    reasons = [plan.reason for plan in await past(town)]
    assert reasons[-2:] == ["rollback to 1: makes room for 1 m/E", "rollback to 1"]
    assert town.crowd.most == GPUS
