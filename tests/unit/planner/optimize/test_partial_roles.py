"""An option may leave out a component that it could run, where that pays."""

import pytest

from omnibus.plan import ModelPlan
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.planner import Planner
from tests.unit.planner.optimize.testbed import (
    SEEN,
    count_replicas,
    make_option,
    make_planner,
    make_profile,
    make_types,
)

#: A thinker alone takes two GPUs; with the encoder on one GPU it is slow, because its cache is small.
EL = make_option(
    "vision+thinker", ("vision", 0.3, SEEN), ("thinker", 1.5, SEEN), (SEEN, 1.8, SEEN), service="llm", gpu="H100"
)
L2 = make_option("thinker", ("thinker", 0.5, SEEN), service="llm", gpu="H100", gpus=2)


def plan_for(gpus: int, **options: object) -> tuple[Planner, ModelPlan, float]:
    profile = make_profile({"EL": EL, "L2": L2}, types=make_types(vision_thinker=1.0))
    planner = make_planner(profile, {"H100": GpuType(gpus, 80.0)}, **options)
    result = planner.plan()
    return planner, result.models["q"], result.capacity["q"]


def test_an_option_encodes_and_another_answers():
    planner, plan, capacity = plan_for(3)

    assert count_replicas(plan) == {"EL": 1, "L2": 1}
    assert capacity == pytest.approx(2.0 + (1 - 2.0 * 0.3) / 1.8)  # what L2 answers, and what EL has time for
    assert {tuple(path.options.values()) for path in plan.types[SEEN]} == {("EL", "L2"), ("EL", "EL")}
    assert planner.reroute_running({"q": plan}).capacity["q"] == pytest.approx(capacity)
    assert planner.capacity({"q": plan})["q"] == pytest.approx(capacity, rel=1e-3)


def test_whole_roles_alone_serve_less():
    planner, plan, capacity = plan_for(3)

    assert planner.reroute_running({"q": plan}, partial=False).capacity["q"] == pytest.approx(1 / 1.8)
    assert capacity > 3 / 1.8


def test_fewer_gpus_are_enough_for_a_rate():
    _, plan, _ = plan_for(8, goal="gpus", rate=2.0, headroom=0.0)

    assert count_replicas(plan) == {"EL": 1, "L2": 1}


def test_a_plan_without_a_clear_gain_keeps_whole_roles():
    _, plan, _ = plan_for(2)

    assert count_replicas(plan) == {"EL": 2}
    assert [tuple(path.options.values()) for path in plan.types[SEEN]] == [("EL", "EL")]
