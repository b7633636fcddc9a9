"""Goals: a simulation serves the promised rate within them, and no other plan serves more."""

import time
from typing import Any

import pytest

from omnibus.cli.format.plan import plan_lines
from omnibus.plan import ModelPlan, Plan
from omnibus.plan_goals import ModelGoals
from omnibus.profile import ModelProfile
from omnibus_planner.declared.planned_spec import TailLatencyGoals, TypeLatencyGoals
from omnibus_planner.optimize.goodput_search import avoid_largest_options
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate import in_time, run
from omnibus_planner.simulate.arrivals import TypeRate, even_arrivals, poisson_arrivals
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
    plan = SimulatedPlan({"q": SimulatedModel(result.models["q"], engines.make_devices())}, {"q": ModelGoals(GOALS)})
    seconds = 3000 / rate
    outcome = simulate_plan(plan, poisson_arrivals(rates, seconds, seed=7), seconds)
    return sum(each.met * each.came for each in outcome.types) / sum(each.came for each in outcome.types)


def rate_in_time(model: ModelPlan, rate: float) -> float:
    """Return the req/s of ``rate`` that engines serve within the goals."""
    rates = [TypeRate("q", kind, about.share * rate, about.quantities) for kind, about in engines.TYPES.items()]
    plan = SimulatedPlan({"q": SimulatedModel(model, engines.make_devices())}, {"q": ModelGoals(GOALS)})
    return simulate_plan(plan, even_arrivals(rates, 1500 / rate), 1500 / rate, warm_up=0.3).goodput


def test_what_is_promised_within_goals_is_served_within_them_and_not_much_more_is(planned_result: PlanningResult):
    assert share_met(planned_result, 0.9 * read_goodput(planned_result)) >= 0.98
    assert share_met(planned_result, 1.4 * read_goodput(planned_result)) < 0.98
    text = "\n".join(plan_lines(Plan(1, 0, 0.0, planned_result.models, explain=planned_result.explain), None))
    assert "req/s of which 99 of 100 are within the goals, simulated" in text


def test_requests_in_flight_are_bounded_so_that_overload_leaves_as_much_in_time(planned_result: PlanningResult):
    model = planned_result.models["q"]
    assert model.credits.keys() == model.options.keys()
    curve = {at["load"]: at for at in planned_result.explain["planned"]["models"]["q"]["promise"]["curve"]}
    bounded, unbounded = (
        {load: rate_in_time(plan, curve[load]["offered"]) for load in (0.8, 2.0)}
        for plan in (model, model.with_credits({}))
    )

    assert curve[2.0]["goodput"] >= 0.9 * max(each["goodput"] for each in curve.values())
    assert bounded[2.0] >= 0.9 * max(bounded.values())
    assert unbounded[2.0] < 0.75 * max(unbounded.values())
    assert bounded[0.8] >= 0.98 * unbounded[0.8]
    executors = next(line for line in plan_lines(Plan(1, 0, 0.0, planned_result.models), None) if "q/EL" in line)
    assert f"8 ({model.options['EL'].credits} in flight)" in executors
    assert len(executors) <= 80


def test_other_replicas_are_tried_as_long_as_replays_are_left(profile: ModelProfile, planned_result: PlanningResult):
    assert read_goodput(planned_result) >= read_goodput(plan_within(profile, 1e-9)) > 0
    assert sum(each.replicas for each in planned_result.models["q"].options.values()) <= 8


def test_plans_that_avoid_the_largest_options_are_tried():
    planner = testbed.make_planner(goals=testbed.make_goals(**GOALS))

    plans = [planner.plan(), *avoid_largest_options(planner, None, planner.plan())]

    avoided = set[str]()
    for plan in plans:
        options = plan.models["q"].options
        assert not avoided & options.keys()
        avoided.add(max(options, key=lambda name: options[name].replicas * options[name].gpus))
    assert len(plans) >= 2


def test_the_same_question_has_the_same_answer_on_a_slower_machine(
    profile: ModelProfile, planned_result: PlanningResult, monkeypatch: pytest.MonkeyPatch
):
    class SlowSimulation(PlanSimulation):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            end = time.thread_time() + 0.2
            while time.thread_time() < end:
                pass

    for module in (run, in_time):
        monkeypatch.setattr(module, "PlanSimulation", SlowSimulation)

    slow = plan_within(profile, 2.0)

    assert (slow.models, slow.capacity, read_goodput(slow)) == (
        planned_result.models,
        planned_result.capacity,
        read_goodput(planned_result),
    )


def test_goals_of_a_type_bind_its_requests_alone(profile: ModelProfile, planned_result: PlanningResult):
    goals = TailLatencyGoals(done=GOALS["done"], types={"vision": TypeLatencyGoals(done=2.2)})
    result = PromiseChecker(testbed.make_planner(profile, goals=goals)).plan(within=2.0)

    assert read_goodput(result) < read_goodput(planned_result)
    assert result.models["q"].latency_goals.of_type("thinker") == {"done": 2.4}
    assert result.models["q"].latency_goals.of_type("vision+thinker") == {"done": 2.2}
    assert result.explain["planned"]["models"]["q"]["goals"] == "done within 2.4 s; vision: done within 2.2 s"


def test_a_plan_without_goals_says_nothing_of_them():
    result = PromiseChecker(testbed.make_planner()).plan(within=0.1)

    assert "goodput" not in result.explain["planned"]["models"]["q"]["promise"]
