"""Spare executors of planned models: their number and kind, and no promised capacity from them."""

from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType, PlannedModel, check_planned_model
from omnibus_planner.optimize import ModelLoad
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.spares import spare_counts, without_spares
from omnibus_planner.rollout.transition_plan import is_compatible
from tests.unit.planner.optimize.testbed import E, L, count_replicas, make_planner, make_profile

APART = make_profile({"E": E, "L": L})
USUAL: dict[str, Any] = {"goal": "gpus", "rate": 3.0, "headroom": 0.0}
TWENTY = {"H100": GpuType(20, 80.0)}


def test_each_component_has_spares_beside_what_the_load_needs():
    plain, with_spares = (make_planner(APART, TWENTY, spares=count, **USUAL).plan() for count in (0, 2))

    assert count_replicas(plain.models["q"]) == {"E": 1, "L": 1}
    assert count_replicas(with_spares.models["q"]) == {"E": 3, "L": 3}
    assert spare_counts(with_spares.models["q"]) == {"E": 2, "L": 2}
    assert with_spares.capacity == plain.capacity
    assert without_spares(with_spares.models) == plain.models


def test_spares_take_only_gpus_that_are_left_and_of_each_component_before_a_second_one():
    result = make_planner(APART, {"H100": GpuType(5, 80.0)}, spares=9, **USUAL).plan()

    assert sorted(spare_counts(result.models["q"]).values()) == [1, 2]
    assert sum(count_replicas(result.models["q"]).values()) == 5


def test_running_spares_serve_a_higher_rate_without_a_start_and_are_replaced():
    model_planner = make_planner(APART, TWENTY, spares=2, **USUAL)
    running = model_planner.plan().models

    assert model_planner.capacity(running)["q"] == pytest.approx(
        make_planner(APART, TWENTY, **USUAL).plan().capacity["q"]
    )
    more = model_planner.plan({"q": ModelLoad(8.0)}, running)
    needed_replicas = count_replicas(without_spares(more.models)["q"])
    assert needed_replicas == {"E": 1, "L": 3}
    assert all(count <= count_replicas(running["q"])[name] for name, count in needed_replicas.items())
    assert spare_counts(more.models["q"]) == {"E": 2, "L": 2}


def test_other_path_rates_over_what_runs_leave_its_spares_and_credits():
    model_planner = make_planner(APART, TWENTY, spares=1, **USUAL)
    running = {name: model.with_credits({"L": 7}) for name, model in model_planner.plan().models.items()}

    rerouted_result = model_planner.reroute_running(running, {"q": ModelLoad(3.0)})

    assert count_replicas(rerouted_result.models["q"]) == count_replicas(running["q"])
    assert spare_counts(rerouted_result.models["q"]) == spare_counts(running["q"]) == {"E": 1, "L": 1}
    assert rerouted_result.capacity["q"] == pytest.approx(model_planner.capacity(running)["q"])
    assert rerouted_result.models["q"].credits == {"L": 7}
    assert is_compatible(running["q"], running["q"].with_credits({"L": 5}))


def test_a_promise_is_simulated_without_spares():
    plain, with_spares = (PromiseChecker(make_planner(APART, TWENTY, spares=count, **USUAL)) for count in (0, 2))

    assert with_spares.plan(within=1.0).capacity == plain.plan(within=1.0).capacity


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"spares": -1, "goal": "gpus", "rate": 1.0}, "spares is -1"),
        ({"spares": 1}, "spares need goal 'gpus'"),
        ({"spares": 1, "goal": "gpus", "rate": 1.0, "cells": 4}, "spares need goal 'gpus', no cells"),
    ],
)
def test_spares_that_make_no_sense_are_refused(options: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=fault):
        check_planned_model("q", PlannedModel(**options))


def test_spares_are_not_placed_on_nodes():
    with pytest.raises(BadRequest, match="spares are not placed on nodes"):
        make_planner(APART, nodes={"n": DeclaredNode(8, "H100")}, spares=1, **USUAL)
