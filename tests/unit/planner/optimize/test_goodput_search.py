"""Goals: a simulation serves the promised rate within them, and no other plan serves more."""

import time
from typing import Any

import pytest

from omnibus.cli.format.plan import plan_lines
from omnibus.plan import Plan
from omnibus.profile import ModelProfile
from omnibus_planner.optimize import goodput_search
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate import run
from omnibus_planner.simulate.arrivals import TypeRate, poisson_arrivals
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.run import PlanSimulation, SimulatedPlan, simulate_plan
from tests.unit.planner.optimize import testbed
from tests.unit.planner.score import engines

#: Seconds; an answer alone takes 0.9, the longest of a hundred 1.8 in full batches.
GOALS = {"done": 2.4}


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    return engines.measured_profile()


@pytest.fixture(scope="module")
def planned_result(profile: ModelProfile) -> PlanningResult:
    """The plan for the goals, with time to search for better ones."""
    return plan_within(profile, 2.0)


def plan_within(profile: ModelProfile, seconds: float) -> PlanningResult:
    return PromiseChecker(testbed.make_planner(profile, goals=testbed.make_goals(**GOALS))).plan(within=seconds)


def read_goodput(result: PlanningResult) -> float:
    rate = result.explain["planned"]["models"]["q"]["promise"]["goodput"]
    assert isinstance(rate, float)
    return rate


def share_met(result: PlanningResult, rate: float) -> float:
    """Return the share of ``rate`` that engines serve within the goals."""
    rates = [TypeRate("q", kind, about.share * rate, about.quantities) for kind, about in engines.TYPES.items()]
    plan = SimulatedPlan({"q": SimulatedModel(result.models["q"], engines.make_devices())}, {"q": GOALS})
    seconds = 3000 / rate
    outcome = simulate_plan(plan, poisson_arrivals(rates, seconds, seed=7), seconds)
    return sum(each.met * each.came for each in outcome.types) / sum(each.came for each in outcome.types)


def test_what_is_promised_within_goals_is_served_within_them_and_not_much_more_is(planned_result: PlanningResult):
    assert share_met(planned_result, 0.9 * read_goodput(planned_result)) >= 0.98
    assert share_met(planned_result, 1.4 * read_goodput(planned_result)) < 0.98
    text = "\n".join(plan_lines(Plan(1, 0, 0.0, planned_result.models, explain=planned_result.explain), None))
    assert "req/s of which 99 of 100 are within the goals, simulated" in text


def test_other_replicas_are_tried_as_long_as_replays_are_left(profile: ModelProfile, planned_result: PlanningResult):
    assert read_goodput(planned_result) >= read_goodput(plan_within(profile, 1e-9)) > 0
    assert sum(each.replicas for each in planned_result.models["q"].options.values()) <= 8


def test_the_same_question_has_the_same_answer_on_a_slower_machine(
    profile: ModelProfile, planned_result: PlanningResult, monkeypatch: pytest.MonkeyPatch
):
    class SlowSimulation(PlanSimulation):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            end = time.thread_time() + 0.5
            while time.thread_time() < end:
                pass

    for module in (run, goodput_search):
        monkeypatch.setattr(module, "PlanSimulation", SlowSimulation)

    slow = plan_within(profile, 2.0)

    assert (slow.models, slow.capacity, read_goodput(slow)) == (
        planned_result.models,
        planned_result.capacity,
        read_goodput(planned_result),
    )


def test_a_plan_without_goals_says_nothing_of_them():
    result = PromiseChecker(testbed.make_planner()).plan(within=0.1)

    assert "goodput" not in result.explain["planned"]["models"]["q"]["promise"]
