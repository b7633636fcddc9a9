"""Goals: what is promised within them is what a simulation serves within them, and no other plan serves more."""

import pytest

from omnibus.cli.format.plan import plan_lines
from omnibus.plan import Plan
from omnibus.profile import ModelProfile
from services.planner.optimize.planner import Planner
from services.planner.optimize.promise import PromiseChecker
from services.planner.optimize.result import PlanningResult
from services.planner.simulate.arrivals import TypeRate, poisson_arrivals
from services.planner.simulate.cluster import SimulatedModel
from services.planner.simulate.run import SimulatedPlan, simulate_plan
from tests.unit.planner.optimize import testbed
from tests.unit.planner.score import engines

#: Seconds; an answer alone takes 0.9, with an image 1.0.
GOALS = {"done": 1.6}


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    return engines.measured_profile()


def planned(profile: ModelProfile, within: float) -> tuple[Planner, PlanningResult]:
    made = testbed.planner(profile, goals=testbed.goals(**GOALS))
    return made, PromiseChecker(made).plan(within=within)


def share_met(result: PlanningResult, rate: float) -> float:
    """The share of ``rate`` req/s that engines serve within the goals."""
    rates = [TypeRate("q", kind, about.share * rate, about.quantities) for kind, about in engines.TYPES.items()]
    plan = SimulatedPlan({"q": SimulatedModel(result.models["q"], engines.devices())}, {"q": GOALS})
    seconds = 3000 / rate
    found = simulate_plan(plan, poisson_arrivals(rates, seconds, seed=7), seconds)
    return sum(each.met * each.came for each in found.types) / sum(each.came for each in found.types)


def test_what_is_promised_within_goals_is_served_within_them_and_not_much_more_is(profile: ModelProfile):
    _, made = planned(profile, within=4.0)

    rate = made.explain["planned"]["models"]["q"]["promise"]["goodput"]
    assert share_met(made, 0.9 * rate) >= 0.98
    assert share_met(made, 1.25 * rate) < 0.98
    shown = "\n".join(plan_lines(Plan(1, 0, 0.0, made.models, explain=made.explain), None))
    assert "req/s of which 99 of 100 are within the goals, simulated" in shown


def test_other_replicas_are_tried_as_long_as_there_is_time(profile: ModelProfile):
    _, short = planned(profile, within=1e-9)
    _, long = planned(profile, within=4.0)

    rates = [each.explain["planned"]["models"]["q"]["promise"]["goodput"] for each in (short, long)]
    assert rates[1] >= rates[0] > 0
    assert sum(each.replicas for each in long.models["q"].options.values()) <= 8


def test_a_plan_without_goals_says_nothing_of_them():
    found = PromiseChecker(testbed.planner()).plan(within=0.1)

    assert "goodput" not in found.explain["planned"]["models"]["q"]["promise"]
