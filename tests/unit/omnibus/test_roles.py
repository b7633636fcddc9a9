"""Executors that can switch roles of their model, and such switches."""

import pytest

from omnibus.cluster.presence import ExecutorKind
from omnibus.cluster.roles import ExecutorRole, executor_role, find_switches, role_switches, switching_executors
from omnibus.plan import DeploymentOption, ModelPlan, Plan

PARTS = {"E": ("vision",), "P": ("prefill",), "D": ("decode",), "PD": ("prefill", "decode"), "L": ("thinker",)}
PARTS |= {"EP": ("vision", "prefill"), "ED": ("vision", "decode"), "Q": ("prefill",)}


def make_model(checkpoint: str = "/m", more: dict[str, object] | None = None, **replicas: int) -> ModelPlan:
    options = {name: DeploymentOption(PARTS[name], "llm", count, **(more or {})) for name, count in replicas.items()}
    return ModelPlan("f", checkpoint, ("vision", "prefill", "decode"), {}, options, {})


def count_switches(before: ModelPlan, after: ModelPlan) -> dict[tuple[str, str], int]:
    switches = role_switches({"m": before}, {"m": after})
    return {(one.option, other.option): count for (one, other), count in switches.items()}


def test_what_there_is_too_much_of_becomes_what_lacks():
    assert count_switches(make_model(P=2, D=1), make_model(P=1, D=2)) == {("P", "D"): 1}
    assert count_switches(make_model(P=1, D=3), make_model(P=3, D=1)) == {("D", "P"): 2}
    assert count_switches(make_model(P=2, D=2), make_model(P=1, D=1, PD=3)) == {("D", "PD"): 1, ("P", "PD"): 1}


def test_one_of_each_kind_stays_until_the_plan_is_another():
    assert count_switches(make_model(PD=2), make_model(P=1, D=1)) == {("PD", "D"): 1}
    assert count_switches(make_model(PD=1), make_model(P=1)) == {}


def test_an_encoder_beside_the_language_model_has_to_be_there_before_and_after():
    assert count_switches(make_model(EP=2, ED=1), make_model(EP=1, ED=2)) == {("EP", "ED"): 1}
    assert count_switches(make_model(EP=2, D=1), make_model(EP=1, D=2)) == {}
    assert count_switches(make_model(E=2, P=1), make_model(E=1, P=2)) == {}


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(make_model("/other", P=1, D=2), id="another checkpoint"),
        pytest.param(make_model(more={"batch": 4}, P=1, D=2), id="another batch"),
        pytest.param(make_model(more={"gpus": 2}, P=1, D=2), id="more GPUs"),
        pytest.param(make_model(P=1, Q=1), id="the same parts under another name"),
    ],
)
def test_executors_that_differ_in_more_than_their_role_are_replaced(after: ModelPlan):
    assert count_switches(make_model(P=2, D=1), after) == {}


@pytest.mark.parametrize(
    ("engine", "can"),
    [("", True), ("omnibus_engines:sim", True), ("omnibus_engines:vllm", False), ("mine:engine", False)],
)
def test_engines_say_which_parts_they_serve_with_what_they_have_loaded(engine: str, can: bool):
    assert (
        count_switches(make_model(more={"engine": engine}, L=2, P=1), make_model(more={"engine": engine}, L=1, P=2))
        != {}
    ) == can


def test_halves_in_vllm_take_each_others_place():
    more = {"engine": "omnibus_engines:vllm"}
    assert count_switches(make_model(more=more, P=2, D=1), make_model(more=more, P=1, D=2)) == {("P", "D"): 1}


def test_placement_is_a_part_of_what_has_to_be_the_same():
    env = {"OMNIBUS_EXECUTOR_COMPONENTS": "prefill"}
    one, other = executor_role(env, "here"), executor_role({**env, "OMNIBUS_EXECUTOR_COMPONENTS": "decode"}, "there")

    assert isinstance(one, ExecutorRole)
    assert isinstance(other, ExecutorRole)
    assert not one.can_become(other)
    assert executor_role({"OMNIBUS_EXECUTOR_COMPONENTS": "vocoder"}) is None


def test_nobody_becomes_two():
    kinds = [ExecutorKind("m", name, "") for name in ("A", "B", "C")]
    roles = {kind: ExecutorRole(frozenset(kind.option), "same") for kind in kinds}
    a, b, c = kinds

    assert find_switches({a: 2}, {a: 1, b: 1, c: 1}, roles) == {(a, b): 1}


def test_executors_of_two_plans_together_are_without_those_that_switch():
    before, after = Plan(1, 0, 0.0, {"m": make_model(P=2, D=1)}), Plan(2, 0, 0.0, {"m": make_model(P=1, D=2)})

    counts = {kind.option: each.replicas for kind, each in switching_executors(before, after).items()}

    assert counts == {"P": 1, "D": 2}
    assert {kind.option: each.replicas for kind, each in switching_executors(before).items()} == {"P": 2, "D": 1}
