"""Plans for a burst prefer running options, unless others are better."""

from typing import Any

import msgspec
import pytest

from omnibus.cluster.roles import SWITCH_SECONDS
from omnibus.plan import ModelPlan
from omnibus_planner.autoscale.candidates import deployment_capacity, faster_plan
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import GpuType, PlannedModel
from omnibus_planner.optimize import ModelLoad
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from tests.bench.burst import measured_profile
from tests.e2e.planned import cell
from tests.unit.planner.optimize.testbed import SPLIT, make_option, make_planner, make_profile, make_split_profile

MANY: dict[str, float] = {
    "prompt_tokens": 10 * cell.IMAGE + cell.WORDS,
    "image_tokens": 10 * cell.IMAGE,
    "completion_tokens": cell.ANSWER,
}


def make_burst(rate: float) -> dict[str, ModelLoad]:
    return {cell.MODEL: ModelLoad(rate, {cell.SEEN: 1.0}, {cell.SEEN: MANY})}


def count_replicas(result: PlanningResult) -> dict[str, int]:
    return {name: option.replicas for name, option in result.models[cell.MODEL].options.items()}


@pytest.fixture
def checker() -> PromiseChecker:
    """A checker of a model with options E, L and EL. There are 24 GPUs."""
    options: dict[str, Any] = {"goal": "gpus", "rate": 4.0, "mix": {cell.SEEN: 1.0}}
    model = Model(cell.MODEL, DeclaredModel(cell.FAMILY, "/m", planned=PlannedModel(**options)))
    planner = Planner({cell.MODEL: model}, {cell.MODEL: measured_profile()}, {"cpu": GpuType(24)}, {})
    return PromiseChecker(planner)


@pytest.fixture
def running_models(checker: PromiseChecker) -> dict[str, ModelPlan]:
    result = checker.planner.plan()
    assert count_replicas(result) == {"E": 1, "L": 1}
    return result.models


def test_of_plans_that_start_as_many_executors_the_one_of_options_that_run_is_taken(
    checker: PromiseChecker, running_models: dict[str, ModelPlan]
):
    result = checker.planner.plan(make_burst(5.5), running_models)

    assert count_replicas(result) == {"E": 10, "L": 2}  # 10 E, 1 L and 1 EL serve it as well
    assert result.capacity[cell.MODEL] >= 5.5 * 1.2


def test_a_burst_takes_one_gpu_more_where_requests_are_faster_by_it(
    checker: PromiseChecker, running_models: dict[str, ModelPlan]
):
    fewest = checker.planner.plan(make_burst(4.5), running_models)
    assert count_replicas(fewest) == {"E": 8, "L": 1, "EL": 1}

    faster_result = faster_plan(checker, fewest, running_models, make_burst(4.5), make_burst(4.0))

    assert count_replicas(faster_result) == {"E": 9, "L": 2}
    assert checker.predict_p99(faster_result, make_burst(4.0)) < checker.predict_p99(fewest, make_burst(4.0)) / 1.1


def test_a_plan_of_running_options_is_left_as_it_is_and_without_a_simulation_any(
    checker: PromiseChecker, running_models: dict[str, ModelPlan]
):
    same, mixed_result = (checker.planner.plan(make_burst(rate), running_models) for rate in (5.5, 4.5))

    assert faster_plan(checker, same, running_models, make_burst(5.5), make_burst(4.0)) is same
    assert faster_plan(None, mixed_result, running_models, make_burst(4.5), make_burst(4.0)) is mixed_result


def test_options_that_run_and_do_not_serve_a_load_are_no_plan(
    checker: PromiseChecker, running_models: dict[str, ModelPlan]
):
    assert checker.planner.plan_of_running_options(make_burst(1000.0), running_models) is None
    assert checker.planner.plan_of_running_options(make_burst(4.5), running_models) is not None


def test_executors_that_take_another_role_cost_seconds_and_new_ones_a_start():
    singles = {"E": ("vision", 0.2), "P": ("prefill", 0.1), "D": ("decode", 0.4)}
    options = {
        name: make_option(part, (part, each), service="llm", gpu="H100", start_s=60.0)
        for name, (part, each) in singles.items()
    }
    whole = make_split_profile()
    plans = make_planner(
        make_profile(options, components=whole.components, types=whole.types, order=whole.order), declaration=SPLIT
    )
    result = plans.plan()
    there = result.models["q"].options
    before = {name: there[name].replicas + more for name, more in (("E", 0), ("P", 1), ("D", -1))}
    running = {name: msgspec.structs.replace(there[name], replicas=count) for name, count in before.items()}
    models = {"q": msgspec.structs.replace(result.models["q"], options=running)}

    costs = [deployment_capacity(plans, models, result, switches=can).starts for can in (False, True)]

    assert costs == [60.0, SWITCH_SECONDS]
