"""Goodput beyond the promise: near-equal plans are compared by it, and engines serve the promised curve."""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from omnibus.cli.format.plan import plan_lines
from omnibus.plan import Path, Plan
from omnibus.plan_goals import ModelGoals
from omnibus.profile import ModelProfile
from omnibus_planner.optimize import ModelLoad, overload
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate.arrivals import TypeRate, even_arrivals
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.outcome import TypeOutcome
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan
from tests.nightly import mark_nightly
from tests.unit.planner.simulate.omni import TYPES, make_omni_planner, measured_profile, true_devices
from tests.unit.planner.simulate.world import make_plan

#: Req/s of plans at their promise, at 130 and at 200 %.
RATES: Mapping[str, tuple[float, float, float]] = {
    "fast": (10.0, 6.0, 4.0),
    "robust": (9.8, 9.0, 9.5),
    "slow": (9.5, 9.9, 9.9),
}
GPUS = 8
MIXES = {"declared": None, "speech-heavy": (0.15, 0.45, 0.1, 0.3), "image-heavy": (0.8, 0.05, 0.1, 0.05)}


def goodput_at(name: str, load: float) -> float:
    return RATES[name][(1.0, 1.3, 2.0).index(load)]


def test_near_equal_plans_are_chosen_by_their_worst_overload():
    near = overload.near_plans(list(RATES), lambda name: RATES[name][0])

    assert near == ["fast", "robust"]
    assert overload.most_robust(near, goodput_at, 0.0) == "robust"
    assert overload.most_robust(near, goodput_at, 2.0) == "fast"
    assert overload.most_robust(["slow"], goodput_at, 0.0) == "slow"


@pytest.mark.parametrize(("budget", "requests"), [(10_000.0, 1500), (2000.0, 500), (100.0, 0), (0.0, 0)])
def test_a_curve_takes_a_part_of_the_budget_of_requests_or_none(budget: float, requests: int):
    assert overload.curve_requests(budget) == requests


#: Req/s in time by load: without a bound, and with tighter and tighter ones.
BOUNDED = (
    (57.0, 67.0, 32.0, 30.0),
    (57.0, 67.0, 44.0, 41.0),
    (57.0, 67.0, 67.0, 69.0),
    (56.5, 66.5, 68.0, 70.0),
    (50.0, 60.0, 69.0, 71.0),
    (40.0, 45.0, 50.0, 60.0),
    (90.0, 90.0, 90.0, 90.0),
)


@pytest.mark.parametrize(
    ("count", "best"),
    [
        (1, 0),  # nothing to compare
        (2, 1),
        (4, 2),  # the fourth serves hardly more
        (5, 3),  # the fifth serves less at lower loads, and the third less in overload
        (7, 3),  # bounds after one that is much worse are not simulated
    ],
)
def test_the_largest_bound_that_serves_most_in_overload_is_chosen_if_others_lose_nothing(count: int, best: int):
    simulated = set[tuple[int, float]]()

    def goodput_at(number: int, load: float) -> float:
        simulated.add((number, load))
        return BOUNDED[number][overload.CURVE_LOADS.index(load)]

    assert overload.choose_credits(count, goodput_at, lambda number: True) == best
    assert len(simulated) <= 4 + 5 + 2 * 3


def test_bounds_that_break_the_promise_are_not_chosen():
    def goodput_at(number: int, load: float) -> float:
        return BOUNDED[number][overload.CURVE_LOADS.index(load)]

    assert overload.choose_credits(7, goodput_at, lambda number: number < 3) == 2


def test_plans_that_hold_under_overload_have_no_bound():
    assert overload.choose_credits(7, lambda number, load: 96.0 + 10 * number if load > 1 else 100.0, bool) == 0


def test_bounds_are_requests_in_flight_that_keep_the_goals():
    path = Path("E>L", {"vision": "E", "thinker": "L"}, 1.0)
    text = Path("L", {"thinker": "L"}, 1.0)
    plan = make_plan({"E": 2, "L": 4}, {"vision+thinker": (path,), "thinker": (text,)})
    rates = [TypeRate("vl", "vision+thinker", 8.0), TypeRate("vl", "thinker", 4.0)]
    goals = ModelGoals({"done": 2.0}, {"vision": {"done": 6.0, "first_token": 3.0}})
    residences = {
        ("vl", each.kind): overload.find_residence(goals, each)
        for each in (
            make_outcome("vision+thinker", done=3.0, first_token=1.0),
            make_outcome("thinker", done=1.0, first_token=0.5),
        )
    }

    ladder = overload.credit_ladder({"vl": plan}, rates, residences)

    assert residences == {("vl", "vision+thinker"): (3.0, 2.0), ("vl", "thinker"): (1.0, 1.0)}
    assert ladder[0] == {("vl", "E"): 4 * 5, ("vl", "L"): 2 * 5 + 1 * 2}
    assert ladder[-1] == {("vl", "E"): 8, ("vl", "L"): 5}  # 0.6 times usual
    assert all(one != other for one, other in pairwise(ladder))
    assert overload.find_residence(ModelGoals(), make_outcome("thinker", done=1.0)) is None
    for other in (ModelGoals({"token": 0.1}), ModelGoals({}, {"vision": {"done": 6.0}})):
        assert overload.find_residence(other, make_outcome("thinker", done=1.0)) == (1.0, 1.0)


def make_outcome(kind: str, **median: float) -> TypeOutcome:
    return TypeOutcome("vl", kind, 100, 0, 0, 1.0, median, {}, {}, 1.0)


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    return measured_profile()


def plan_mix(profile: ModelProfile, mix: str) -> tuple[PlanningResult, list[float]]:
    """Return the plan and the shares of the request types."""
    shares = MIXES[mix]
    load = None if shares is None else {"omni": ModelLoad(1.0, dict(zip(TYPES, shares, strict=True)))}
    result = PromiseChecker(make_omni_planner(profile, GPUS)).plan(load, within=3.0)
    return result, list(shares or [about.share for about in TYPES.values()])


@pytest.mark.parametrize("mix", ["declared", *mark_nightly("speech-heavy", "image-heavy")])
def test_engines_serve_the_promised_curve_and_hold_under_overload(profile: ModelProfile, mix: str):
    result, shares = plan_mix(profile, mix)

    promise = result.explain["planned"]["models"]["omni"]["promise"]
    simulated = SimulatedPlan({"omni": SimulatedModel(result.models["omni"], true_devices())})
    measured = {}
    for point in promise["curve"]:
        seconds = 3000 / point["offered"]
        rates = [
            TypeRate("omni", kind, share * point["offered"], about.quantities)
            for (kind, about), share in zip(TYPES.items(), shares, strict=True)
        ]
        outcome = simulate_plan(simulated, even_arrivals(rates, seconds), seconds, warm_up=0.3)
        measured[point["load"]] = outcome.goodput
        assert 0.9 <= outcome.goodput / point["goodput"] <= 1.1
    assert list(measured) == [0.8, 1.0, 1.3, 2.0]
    assert measured[2.0] >= 0.9 * max(measured.values())
    lines = plan_lines(Plan(1, 0, 0.0, result.models, explain=result.explain), None)
    told = next(line for line in lines if "served in time by load" in line)
    assert "80% " in told
    assert "200% " in told
    assert len(told) <= 80
