"""Changing a plan in steps if all GPUs are in use. Some executors stop, and others start in their place."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from omnibus.cluster.presence import desired_executors
from omnibus.families import catalog
from omnibus.plan import Plan
from tests.unit.planner.apps import make_app, make_task
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

GPU, GPUS = "H100", 4
PARTS = {"E": (["vision"], "encoder"), "L": (["thinker"], "llm"), "EL": (["vision", "thinker"], "llm")}


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make planners wait and retry without delay."""
    monkeypatch.setenv("OMNIBUS_PLANNER_READY", "1")
    monkeypatch.setenv("OMNIBUS_PLANNER_RETRY", "1")


def declare_model(town: PlannerSystem, gpus: int = GPUS, **replicas: int) -> None:
    """Declare the model m with these replicas, on ``gpus`` GPUs."""
    declare_all(town, gpus, m=replicas)


def declare_all(town: PlannerSystem, gpus: int, **models: dict[str, int]) -> None:
    declarations = {name: build_declaration(replicas) for name, replicas in models.items()}
    town.models.write_text(json.dumps({"gpus": {GPU: {"count": gpus}}, "models": declarations}))


def build_declaration(replicas: dict[str, int]) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: {"components": PARTS[name][0], "service": PARTS[name][1], "replicas": count, "gpus": 1, "gpu": GPU}
        for name, count in replicas.items()
    }
    paths = [{"options": path} for path in (["EL"], ["E", "L"]) if set(path) <= replicas.keys()]
    return {**catalog.model_declaration("qwen2_5_vl", "/m"), "options": options, "paths": paths}


def count_replicas(plan: Plan, model: str = "m") -> dict[str, int]:
    return {name: option.replicas for name, option in plan.models[model].options.items()}


def has_replicas(**wants: int) -> Callable[[Plan], bool]:
    return lambda plan: count_replicas(plan) == wants


async def read_past_plans(town: PlannerSystem) -> list[Plan]:
    """Return all plans so far in order.

    Checks that no two consecutive ones need more GPUs than there are, and that each serves all requests.
    """
    plans = [each.plan for each in reversed(await town.store.plan_history()) if each.plan is not None]
    for plan, then in pairwise(plans):
        assert sum(each.replicas for each in desired_executors(plan, then).values() if each.gpus) <= GPUS
    assert all(plan.models["m"].types.keys() == {"thinker", "vision+thinker"} for plan in plans)
    return plans


async def test_executors_make_room_before_others_start(system: PlannerSystem):
    declare_model(system, E=2, L=2)
    async with system.planner():
        await system.current(1)

        declare_model(system, E=1, L=3)
        await system.until(has_replicas(E=1, L=3))

    plans = await read_past_plans(system)
    assert [count_replicas(plan) for plan in plans] == [{"E": 2, "L": 2}, {"E": 1, "L": 2}, {"E": 1, "L": 3}]
    assert [plan.reason for plan in plans[1:]] == [
        "declarations changed: makes room for 1 m/L", "declarations changed"
    ]  # fmt: skip
    assert system.crowd.most == GPUS


async def test_other_options_take_the_place_of_all_that_ran(system: PlannerSystem):
    declare_model(system, EL=4)
    async with system.planner():
        await system.current(1)

        declare_model(system, E=2, L=2)
        await system.until(has_replicas(E=2, L=2))

    plans = await read_past_plans(system)
    assert [count_replicas(plan) for plan in plans] == [{"EL": 4}, {"EL": 2}, {"E": 1, "L": 1}, {"E": 2, "L": 2}]
    assert plans[2].reason == "declarations changed: 2 of 4 new executors"
    assert system.crowd.most == GPUS


async def test_who_still_drains_has_to_leave_before_others_start(system: PlannerSystem):
    declare_model(system, E=2, L=2)
    system.crowd.busy.add("m/E")
    async with system.planner():
        await system.current(1)

        declare_model(system, E=1, L=3)
        await system.until(has_replicas(E=1, L=2))
        await system.store.put_app(make_app("poem", make_task("spell")), 0)
        waits = await system.until(lambda plan: "spell" in plan.models)
        system.crowd.let_go()
        await system.until(has_replicas(E=1, L=3))

    assert count_replicas(waits) == {"E": 1, "L": 2}
    assert system.crowd.most == GPUS + 1  # the app needs no GPU


async def test_when_new_executors_do_not_start_the_old_ones_come_back_and_it_is_tried_again(
    system: PlannerSystem, short_waits: None
):
    declare_model(system, EL=4)
    system.crowd.broken.add("m/L")
    async with system.planner():
        await system.current(1)

        declare_model(system, E=2, L=2)
        await system.until(has_replicas(EL=2))
        back = await system.until(has_replicas(EL=4))
        problem = (await system.store.plan_problems())["planner"]
        await system.until(has_replicas(EL=2))
        system.crowd.mend("m/L")
        await system.until(has_replicas(E=2, L=2))
        await wait_until(lambda: has_no_problem(system))

    assert back.reason == "declarations changed: goes back for now"
    assert "m stays as it was: after 1 s 0 of 1 executors of m/L@" in problem.message
    assert problem.again > problem.at
    assert system.crowd.most == GPUS


async def test_a_model_whose_executors_do_not_start_holds_up_no_other(system: PlannerSystem, short_waits: None):
    declare_all(system, 6, m={"EL": 3}, n={"E": 2, "L": 1})
    system.crowd.broken.add("m/L")
    async with system.planner():
        await system.current(1)

        declare_all(system, 6, m={"E": 1, "L": 2}, n={"E": 1, "L": 2})
        await system.until(
            lambda plan: (count_replicas(plan), count_replicas(plan, "n")) == ({"EL": 3}, {"E": 1, "L": 2})
        )
        system.crowd.mend("m/L")
        await system.until(
            lambda plan: (count_replicas(plan), count_replicas(plan, "n")) == ({"E": 1, "L": 2}, {"E": 1, "L": 2})
        )

    assert system.crowd.most <= 6


async def has_no_problem(town: PlannerSystem) -> bool:
    return not await town.store.plan_problems()


async def test_a_planner_that_starts_in_the_middle_goes_on_from_there(system: PlannerSystem):
    declare_model(system, EL=4)
    system.crowd.broken.add("m/L")
    async with system.planner():
        await system.current(1)
        declare_model(system, E=2, L=2)
        await system.until(has_replicas(EL=2))
        await wait_until(lambda: "m-L-0" in system.crowd.spawned)

    async with system.planner():
        system.crowd.mend("m/L")
        await system.until(has_replicas(E=2, L=2))

    plans = await read_past_plans(system)
    assert [count_replicas(plan) for plan in plans] == [{"EL": 4}, {"EL": 2}, {"E": 1, "L": 1}, {"E": 2, "L": 2}]
    assert system.crowd.spawned.count("m-L-0") == 1


async def test_where_no_way_fits_all_stays_and_what_lacks_is_said_and_others_change(system: PlannerSystem):
    declare_model(system, gpus=1, EL=1)
    async with system.planner():
        await system.current(1)

        declare_model(system, gpus=2, E=1, L=1)
        await wait_until(lambda: is_gpu_missing(system))
        await system.store.put_app(make_app("poem", make_task("spell")), 0)
        plan = await system.until(lambda plan: "spell" in plan.models)
        assert has_replicas(EL=1)(plan)
        declare_model(system, gpus=3, E=1, L=1)
        await system.until(has_replicas(E=1, L=1))
        await wait_until(lambda: has_no_problem(system))


async def is_gpu_missing(town: PlannerSystem) -> bool:
    problem = (await town.store.plan_problems()).get("planner")
    return problem is not None and "it takes 1 more of type H100 for m/E, m/L" in problem.message


async def test_a_rollback_goes_in_steps_as_well(system: PlannerSystem):
    declare_model(system, E=2, L=2)
    async with system.planner():
        await system.current(1)
        declare_model(system, E=1, L=3)
        await system.until(has_replicas(E=1, L=3))

        await system.store.pin_plan(1)
        await system.until(has_replicas(E=2, L=2))

    reasons = [plan.reason for plan in await read_past_plans(system)]
    assert reasons[-2:] == ["rollback to 1: makes room for 1 m/E", "rollback to 1"]
    assert system.crowd.most == GPUS
