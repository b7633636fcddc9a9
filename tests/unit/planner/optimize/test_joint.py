"""Models planned together within the same GPUs, with shared components."""

from typing import Any

import msgspec
import pytest

from omnibus.cluster.presence import desired_executors
from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus.plan import DeploymentOption, ModelPlan, Plan, decode_plan, encode_plan
from omnibus.profile import ModelProfile, Point
from omnibus.settings import read_settings
from omnibus_planner.declared.model import Model
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.load import ModelLoad
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.usable_models import usable_models
from omnibus_planner.solve.problem import Infeasible
from tests.unit.planner.optimize.testbed import (
    EIGHT,
    EL,
    SEEN,
    TEXT,
    E,
    L,
    count_replicas,
    gpus_of,
    make_goals,
    make_model,
    make_option,
    make_profile,
    read_rates,
)

SHARES = {"shares": {"vision": "a"}}
APART = make_profile({"E": E, "L": L})
MANY = {"H100": GpuType(64, 80.0)}


def make_joint_planner(
    shares: dict[str, Any] = SHARES, gpus: dict[str, GpuType] = MANY, b: ModelProfile = APART, **asked: Any
) -> Planner:
    """Return a planner of models a and b; usually each for 2 req/s of images."""
    fields = {"goal": "gpus", "rate": 2.0, "headroom": 0.0, "mix": {SEEN: 1.0}, **asked}
    models = {"a": make_model("a", **fields), "b": make_model("b", shares, **fields)}
    return Planner(models, {"a": APART, "b": b}, gpus, {})


def test_a_shared_encoder_takes_fewer_gpus_than_one_each():
    # 2 req/s take .4 of an encoder and .6 of a thinker: two encoders apart, one when both use it.
    apart, shared_result = make_joint_planner({}).plan(), make_joint_planner().plan()

    assert gpus_of(*apart.models.values()) == 4
    assert gpus_of(*shared_result.models.values()) == 3
    assert count_replicas(shared_result.models["a"]) == {"E": 1, "L": 1}
    assert count_replicas(shared_result.models["b"]) == {"L": 1}


def test_the_shared_option_is_the_other_models():
    model_plan = make_joint_planner().plan().models["b"]

    assert model_plan.options["a/E"] == DeploymentOption(("vision",), "encoder", replicas=0, of="a/E")
    assert model_plan.tasks["vision"] == "encode-a-vision"
    assert read_rates(model_plan)[SEEN].keys() == {"a/E>L"}
    assert model_plan.types[SEEN][0].options == {"vision": "a/E", "thinker": "L"}


def test_the_borrower_need_not_have_measured_what_it_borrows():
    result = make_joint_planner(b=make_profile({"L": L})).plan()

    assert gpus_of(*result.models.values()) == 3


def test_what_a_borrowed_component_costs_the_borrower_is_its_own():
    heavy = make_profile({"E": make_option("vision", ("vision", 0.4, SEEN), gpu="H100"), "L": L})

    light, much = make_joint_planner().plan(), make_joint_planner(b=heavy).plan()

    assert count_replicas(light.models["a"])["E"] == 1
    assert count_replicas(much.models["a"])["E"] == 2  # 2 * .2 + 2 * .4


def test_an_executor_of_more_than_what_is_shared_is_used_for_that():
    whole = make_profile({"EL": make_option(SEEN, (SEEN, 0.4, SEEN), ("vision", 0.2), ("thinker", 0.3), gpu="H100")})
    models = {
        "a": make_model("a", goal="gpus", rate=1.0),
        "b": make_model("b", SHARES, goal="gpus", rate=1.0, mix={SEEN: 1.0}),
    }

    model_plan = Planner(models, {"a": whole, "b": make_profile({"L": L})}, MANY, {}).plan().models["b"]

    assert model_plan.options["a/EL"] == DeploymentOption(("vision",), "llm", replicas=0, of="a/EL")
    assert model_plan.types[SEEN][0].options == {"vision": "a/EL", "thinker": "L"}


def test_models_get_gpus_by_the_rates_that_they_declare():
    fields = {"goal": "throughput", "headroom": 0.0, "mix": {TEXT: 1.0}}
    models = {"a": make_model("a", rate=3.0, **fields), "b": make_model("b", rate=1.0, **fields)}
    profiles = {"a": make_profile({"E": E, "L": L}), "b": make_profile({"E": E, "L": L})}

    result = Planner(models, profiles, {"H100": GpuType(10)}, {}).plan()

    assert {name: count_replicas(plan) for name, plan in result.models.items()} == {
        "a": {"E": 1, "L": 6},
        "b": {"E": 1, "L": 2},
    }
    assert result.capacity["a"] == pytest.approx(3 * result.capacity["b"])


def test_models_get_gpus_by_the_load_that_was_measured():
    fields = {"goal": "throughput", "mix": {TEXT: 1.0}}
    models = {name: make_model(name, **fields) for name in ("a", "b")}
    planner = Planner(models, {"a": APART, "b": APART}, {"H100": GpuType(10)}, {})

    result = planner.plan({"a": ModelLoad(1.0, {TEXT: 1.0}), "b": ModelLoad(3.0, {TEXT: 1.0})})

    assert {name: count_replicas(plan)["L"] for name, plan in result.models.items()} == {"a": 2, "b": 6}


def test_a_rate_comes_before_throughput():
    models = {
        "most": make_model("most"),
        "some": make_model("some", goal="gpus", rate=4.0, headroom=0.0, mix={TEXT: 1.0}),
    }

    result = Planner(models, {"most": make_profile(), "some": APART}, EIGHT, {}).plan()

    assert count_replicas(result.models["some"]) == {"E": 1, "L": 2}
    assert gpus_of(result.models["most"]) == 5
    assert list(result.models) == ["most", "some"]


def test_a_rate_that_leaves_no_gpu_is_infeasible_for_the_others():
    models = {
        "most": make_model("most"),
        "some": make_model("some", goal="gpus", rate=20.0, headroom=0.0, mix={TEXT: 1.0}),
    }

    with pytest.raises(Infeasible):
        Planner(models, {"most": make_profile(), "some": APART}, {"H100": GpuType(7)}, {}).plan()


def test_the_capacity_of_shared_executors_is_for_both():
    planner = make_joint_planner()
    result = planner.plan()

    # One encoder does 5 images in a second; each thinker 3.3 answers.
    assert planner.capacity(result.models)["a"] == pytest.approx(2.5)
    alone = {"a": ModelLoad(2.0, {SEEN: 1.0}), "b": ModelLoad(2.0, {TEXT: 1.0})}
    assert planner.capacity(result.models, alone)["b"] == pytest.approx(1 / 0.3)


# Mismatches


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "other goal": ({"goal": "throughput", "mix": None}, "shares with a, which is planned for another goal or in cells"),
    "in cells": (
        {"goal": "gpus", "rate": 1.0, "cells": 2},
        "shares with a, which is planned for another goal or in cells",
    ),
}


@pytest.mark.parametrize(("fields", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_models_that_share_are_planned_alike(fields: dict[str, Any], fault: str):
    models = {"a": make_model("a", goal="gpus", rate=1.0), "b": make_model("b", SHARES, **fields)}

    with pytest.raises(BadRequest, match=f"^model b: {fault}"):
        Planner(models, {"a": APART, "b": APART}, MANY, {})


def test_cells_take_all_gpus_that_are_left_and_so_are_alone():
    models = {"a": make_model("a", cells=2), "b": make_model("b")}

    with pytest.raises(
        BadRequest, match="model a: cells and policies with goal 'throughput' take all GPUs that are left"
    ):
        Planner(models, {"a": APART, "b": APART}, MANY, {})


def test_one_that_cannot_be_planned_takes_those_that_share_with_it_along():
    models: dict[str, Model] = {"a": make_model("a"), "b": make_model("b", SHARES), "c": make_model("c")}

    good, faults = usable_models(models, {"a": make_profile({"L": L}), "b": APART, "c": APART}, EIGHT)

    assert list(good) == ["c"]
    assert faults["a"].startswith("model a: no option of its profile runs component vision")
    assert faults["b"].startswith("model b: shares with a, which is not planned")


def test_one_with_the_same_encoder_as_one_that_cannot_be_planned_is_planned_with_its_own():
    twin = make_model("b")
    twin.shares = twin.equal_shares = {"vision": "a"}
    models: dict[str, Model] = {"a": make_model("a"), "b": twin}

    good, faults = usable_models(models, {"a": make_profile({"L": L}), "b": APART}, EIGHT)

    assert {name: each.shares for name, each in good.items()} == {"b": {}}
    assert list(faults) == ["a"]
    assert twin.shares == {"vision": "a"}  # for when a can be planned again


def test_one_keeps_encoders_where_the_other_model_has_none_by_themselves():
    twin = make_model("b", goal="gpus", rate=2.0)
    twin.shares = twin.equal_shares = {"vision": "a"}
    models = {"a": make_model("a", goal="gpus", rate=2.0), "b": twin}

    planner = Planner(models, {"a": make_profile({"EL": EL}), "b": APART}, MANY, {})

    assert planner.inputs["b"].options.keys() == {"E", "L", "a/EL"}


def test_who_lends_to_one_that_cannot_be_planned_stays_as_it_is():
    models = {"a": make_model("a"), "b": make_model("b", SHARES)}

    good, faults = usable_models(models, {"a": APART, "b": make_profile({"E": E})}, EIGHT)

    assert good == {}
    assert faults["a"] == "model a: b, with which it shares executors, cannot be planned"


def test_what_runs_of_a_model_is_not_taken_for_what_runs_of_its_next_version():
    planner = make_joint_planner()
    result = planner.plan()
    other = {name: _move_checkpoint(plan) for name, plan in result.models.items()}

    assert planner.plan(None, other).models == result.models
    assert planner.reroute_running(other).capacity == {"a": 0.0, "b": 0.0}
    assert planner.reroute_running(result.models).capacity["a"] == pytest.approx(2.5)


def _move_checkpoint(plan: ModelPlan) -> ModelPlan:
    return msgspec.structs.replace(plan, checkpoint="/next")


# Goals of each model


def goals_of(plan: Plan, model_name: str) -> tuple[float, float]:
    """Return the step goals in the settings of ``model_name``'s executor."""
    [env] = [each.env for kind, each in desired_executors(plan).items() if kind.model == model_name]
    settings = read_settings(ExecutorSettings, {"OMNIBUS_EXECUTOR_TTFT": "9", "OMNIBUS_EXECUTOR_TBT": "0.9", **env})
    return settings.ttft, settings.tbt


def test_executors_are_told_the_goals_of_their_own_model():
    own = {"a": make_goals(first_token=4.0, token=0.08), "b": make_goals(first_token=8.0), "c": make_goals()}
    models = {
        name: make_model(name, goal="gpus", rate=1.0, goals=model_goals, options=("EL",))
        for name, model_goals in own.items()
    }
    curve = (Point(at_once=1, rate=1.0, first_token=0.1, token=0.01, done=1.0),)
    model_profile = make_profile({"EL": msgspec.structs.replace(EL, curve=curve)})

    result = Planner(models, dict.fromkeys(models, model_profile), MANY, {}).plan()
    plan = decode_plan(encode_plan(Plan(1, 0, 0.0, result.models)))

    assert {name: goals_of(plan, name) for name in models} == {"a": (4.0, 0.08), "b": (8.0, 0.9), "c": (9.0, 0.9)}


def test_executors_with_other_goals_are_others_and_without_any_they_are_what_they_were():
    free, bound, other = (
        make_model("a", goals=model_goals).build_plan({"L": DeploymentOption(("thinker",), "llm")}, {})
        for model_goals in (make_goals(), make_goals(token=0.1), make_goals(token=0.2))
    )

    assert len({each.option_origin("L") for each in (free, bound, other)}) == 3
    assert msgspec.structs.replace(bound, tbt=0.0).option_origin("L") == free.option_origin("L")
