"""Goodput of plans beyond their promise, and choice by it.

Goodput is the rate of requests that end within the deadline and all goals. Executors bound the requests that they admit
(``OMNIBUS_EXECUTOR_CREDITS``); others are rejected. Two plans that promise the same rate may differ in
overload. In one of them, requests of a slow type may take the places of the others.

With goals, that bound may be too high: then all requests wait in executors, and miss the goals. So a plan with goals
has its own bound for each option (``DeploymentOption.credits``) if it serves more in time under overload.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import NamedTuple, TypeVar

from omnibus.plan import ModelPlan
from omnibus.plan_goals import ModelGoals
from omnibus_planner.simulate.arrivals import TypeRate
from omnibus_planner.simulate.outcome import SimulationOutcome, TypeOutcome

#: Loads of a curve as multiples of the promise. Near-equal plans are compared at the last two.
CURVE_LOADS = (0.8, 1.0, 1.3, 2.0)
_OVERLOADS = CURVE_LOADS[2:]
#: Plans whose rates differ less than this fraction are near-equal, and the most of them that are compared.
NEAR_FRACTION, _MAX_COMPARED = 0.03, 2
#: Most and fewest requests of a simulation at one load. Queues fill up in its first, unobserved fraction.
_CURVE_REQUESTS, _MIN_REQUESTS, CURVE_WARM_UP = 1500, 200, 0.3

#: Figures of goals that a longer residence misses, and residences of the compared bounds: parts of the usual and slack.
_RESIDENCE_FIGURES = ("done", "first_token", "first_audio")
_RESIDENCES = ((1.0, 1.0), (1.0, 0.7), (1.0, 0.4), (1.0, 0.2), (1.0, 0.05), (0.8, 0.0), (0.6, 0.0))
#: Fewest credits of an executor: the next request is admitted before the last one ends.
_MIN_CREDITS = 2
#: Goodput that differs less than this fraction is equal. If it is lower by the second one, lower bounds are worse, too.
#: The third is the fraction of the most that suffices in overload.
_EQUAL_FRACTION, _WORSE_FRACTION, _ENOUGH_FRACTION = 0.02, 0.1, 0.95

P = TypeVar("P")
#: Requests in flight at each executor, by model and option.
Credits = Mapping[tuple[str, str], int]


class LoadPoint(NamedTuple):
    """Req/s at ``load``, a multiple of the promise: offered, and served in time."""

    load: float
    offered: float
    goodput: float


def curve_requests(budget: float) -> int:
    """Return the requests of each simulation; 0 if the ``budget`` of all does not suffice."""
    share = int(min(_CURVE_REQUESTS, budget / len(CURVE_LOADS)))
    return share if share >= _MIN_REQUESTS else 0


def near_plans(plans: Sequence[P], rate_of: Callable[[P], float]) -> list[P]:
    """Return the best of ``plans`` by rate, and those near it."""
    best_first = sorted(plans, key=rate_of, reverse=True)
    least = rate_of(best_first[0]) * (1 - NEAR_FRACTION)
    return [each for each in best_first if rate_of(each) >= least][:_MAX_COMPARED]


def most_robust(plans: Sequence[P], goodput_at: Callable[[P, float], float], margin: float) -> P:
    """Return the plan with the most goodput at its worst overload.

    ``goodput_at`` returns the goodput of a plan at a load. The first plan is kept unless another is better by the
    fraction ``margin``.
    """
    if len(plans) < 2:
        return plans[0]
    least = [min(goodput_at(plan, load) for load in _OVERLOADS) for plan in plans]
    best = max(range(len(plans)), key=least.__getitem__)
    return plans[best] if least[best] > least[0] * (1 + margin) else plans[0]


def model_curves(
    rates: Mapping[str, float], outcomes: Mapping[float, SimulationOutcome]
) -> dict[str, tuple[LoadPoint, ...]]:
    """Return the curve of each model with a promise in ``rates``; ``outcomes`` are by load."""
    return {
        name: tuple(
            LoadPoint(load, rate * load, sum(each.goodput for each in outcome.types if each.model == name))
            for load, outcome in sorted(outcomes.items())
        )
        for name, rate in rates.items()
    }


# Requests in flight


class Residence(NamedTuple):
    """Seconds that requests of a type stay before overload, and how many more still keep their goals."""

    usual: float
    slack: float


def credit_ladder(
    plans: Mapping[str, ModelPlan], rates: Sequence[TypeRate], residences: Mapping[tuple[str, str], Residence | None]
) -> list[Credits]:
    """Return bounds to compare, in descending order.

    By Little's law, executors have as many requests in flight as arrive at ``rates`` in their residence.
    ``residences`` are by model and request type; types without one do not count.
    """
    usual, slack = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
    for each in rates:
        plan, residence = plans[each.model], residences.get((each.model, each.kind))
        if residence is None:
            continue
        paths = plan.paths_for(frozenset(each.kind.split("+")))
        total = sum(path.rate for path in paths)
        for path in paths if total > 0 else ():
            for option in dict.fromkeys(path.options.values()):
                owner, own = key = executors_of(plan, each.model, option)
                rate = each.rate * path.rate / total / max(1, plans[owner].options[own].replicas)
                usual[key] += rate * residence.usual
                slack[key] += rate * residence.slack
    ladder = [{key: max(_MIN_CREDITS, ceil(a * usual[key] + b * slack[key])) for key in usual} for a, b in _RESIDENCES]
    return [credits for number, credits in enumerate(ladder) if credits not in ladder[:number]]


def find_residence(goals: ModelGoals, outcome: TypeOutcome) -> Residence | None:
    """Return the residence of a type's requests, as in ``outcome`` before overload; None for a model without goals.

    Types without such a goal may stay twice as long as usual.
    """
    limits, usual = goals.of_type(outcome.kind), outcome.median
    if not goals or "done" not in usual:
        return None
    slack = [limits[figure] - usual[figure] for figure in _RESIDENCE_FIGURES if figure in limits and figure in usual]
    return Residence(usual["done"], max(0.0, min(slack, default=usual["done"])))


def choose_credits(count: int, goodput_at: Callable[[int, float], float], keeps_promise: Callable[[int], bool]) -> int:
    """Return the number of the largest of ``count`` bounds that serves most in overload.

    ``goodput_at`` returns the goodput with a bound at a load; number 0 has no bound. A bound must not serve less than
    number 0 at a lower load. ``keeps_promise`` returns True for a bound that leaves room for bursts of random arrivals.
    """
    most = max(goodput_at(0, load) for load in CURVE_LOADS)
    if min(goodput_at(0, load) for load in _OVERLOADS) >= _ENOUGH_FRACTION * most:
        return 0
    worst = list[float]()
    for number in range(count):
        if number and not keeps_promise(number):
            break  # nor do lower ones
        worst.append(goodput_at(number, CURVE_LOADS[-1]))
        if worst[-1] < (1 - _WORSE_FRACTION) * max(worst):
            break
    best = [number for number, goodput in enumerate(worst) if goodput >= (1 - _EQUAL_FRACTION) * max(worst)]
    return next((number for number in best if _serves_as_much(number, goodput_at)), 0)


def _serves_as_much(number: int, goodput_at: Callable[[int, float], float]) -> bool:
    """Return True if a bound serves as much as none at the lower loads."""
    return all(goodput_at(number, load) >= (1 - _EQUAL_FRACTION) * goodput_at(0, load) for load in CURVE_LOADS[:-1])


def with_credits(models: Mapping[str, ModelPlan], credits: Credits) -> dict[str, ModelPlan]:
    """Return ``models`` whose executors get at most ``credits`` requests at a time."""
    return {
        name: model.with_credits({option: most for (owner, option), most in credits.items() if owner == name})
        for name, model in models.items()
    }


def executors_of(plan: ModelPlan, model: str, option: str) -> tuple[str, str]:
    """Return the model and option whose executors run ``option`` of ``model``."""
    owner, _, own = plan.options[option].of.rpartition("/")
    return (owner, own) if owner else (model, option)
