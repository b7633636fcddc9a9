"""The capacity of deployed plans along their paths, and along better ones."""

import msgspec
import pytest

from omnibus_planner.declared.planned_spec import GpuType, TailLatencyGoals
from omnibus_planner.optimize.load import ModelLoad
from tests.unit.planner.optimize.testbed import (
    SEEN,
    TEXT,
    E,
    L,
    count_replicas,
    make_option,
    make_planner,
    make_profile,
)

IMAGES = {"q": ModelLoad(4.0, {SEEN: 1.0})}
MIXED = {"q": ModelLoad(4.0, {SEEN: 0.6, TEXT: 0.4})}


@pytest.mark.parametrize("options", [{}, {"goal": "gpus", "rate": 7.0}, {"cells": 4}], ids=["most", "fewest", "cells"])
def test_a_plan_serves_what_it_was_planned_for(options):
    plans = make_planner(**options)
    result = plans.plan()

    assert plans.capacity(result.models)["q"] == pytest.approx(result.capacity["q"], rel=1e-4)


def test_another_mix_is_served_less_along_the_same_paths_and_more_along_others():
    plans = make_planner()
    result = plans.plan(MIXED)

    here, better = plans.capacity(result.models, IMAGES)["q"], plans.reroute_running(result.models, IMAGES)
    again = plans.plan(IMAGES, result.models)

    assert here < better.capacity["q"] < again.capacity["q"] <= result.capacity["q"]
    assert count_replicas(better.models["q"]) == count_replicas(result.models["q"])
    assert plans.capacity(better.models, IMAGES)["q"] == pytest.approx(better.capacity["q"])


def test_what_was_routed_best_cannot_be_routed_better():
    plans = make_planner()
    result = plans.plan(MIXED)

    assert plans.reroute_running(result.models, MIXED).capacity["q"] == pytest.approx(result.capacity["q"], rel=1e-6)


def test_a_path_that_nobody_measured_serves_nothing_that_is_known():
    plans = make_planner(make_profile({"E": E, "L": L}))
    model_plan = plans.plan().models["q"]
    old = msgspec.structs.replace(model_plan, options={"X": model_plan.options["L"]}, types={
        kind: tuple(msgspec.structs.replace(path, options=dict.fromkeys(path.options, "X")) for path in paths)
        for kind, paths in model_plan.types.items()
    })  # fmt: skip

    assert plans.capacity({"q": old}) == {"q": 0.0}
    assert plans.reroute_running({"q": old}).capacity == {"q": 0.0}
    assert plans.capacity({}) == {}


def test_executors_that_are_not_there_serve_nothing():
    plans = make_planner(make_profile({"E": E, "L": L}))
    model_plan = plans.plan().models["q"]
    none = msgspec.structs.replace(model_plan.options["E"], replicas=0)

    assert plans.capacity({"q": msgspec.structs.replace(model_plan, options={**model_plan.options, "E": none})}) == {
        "q": 0.0
    }


def test_goals_for_the_tail_bound_what_plans_can_serve():
    free, bound = make_planner(), make_planner(goals=TailLatencyGoals(done=5.0))
    result = free.plan()

    assert bound.capacity(result.models)["q"] < free.capacity(result.models)["q"]
    assert bound.reroute_running(result.models).capacity["q"] < free.reroute_running(result.models).capacity["q"]


def test_more_replicas_than_there_are_gpus_for_may_run():
    many = make_planner(make_profile({"E": E, "L": L}), {"H100": GpuType(20)}).plan()
    few = make_planner(make_profile({"E": E, "L": L}), {"H100": GpuType(4)}, goals=TailLatencyGoals(done=5.0))

    assert few.reroute_running(many.models).capacity["q"] > few.plan().capacity["q"]


def test_the_seconds_until_executors_are_ready_are_told():
    slow = make_option("thinker", ("thinker", 0.3), gpu="H100", start_s=42.0)

    assert make_planner(make_profile({"E": E, "L": slow})).start_seconds == {("q", "E"): 1.0, ("q", "L"): 42.0}
