"""Goodput of plans by simulation, and the plan with most of it.

Goodput is the rate at which 99 of 100 requests meet all goals. Goals bound the utilisation of each option, from
measurements of one replica. But only a simulation of the whole plan shows if requests through several options are in
time. So the search replays random arrivals on the plans of all rounds of a promise, on those by the rules of others,
and on plans that avoid the largest option. It improves the best one by moving one replica after the other to another
option (``solve.goodput``), as TriInfer's objective requires (section 2.2). A plan may be the best in a short replay by
chance, so the best ones are improved once more in a longer replay.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import floor, log2
from typing import NamedTuple

import msgspec

from omnibus.errors import BadRequest, OmnibusError
from omnibus.plan import ModelPlan
from omnibus_planner.declared.planned_spec import EXACT, THROUGHPUT
from omnibus_planner.optimize.load import Loads
from omnibus_planner.optimize.plan_builder import reference_plan
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.in_time import keeps_goals
from omnibus_planner.simulate.run import REQUESTS_PER_SECOND, SimulatedPlan
from omnibus_planner.solve.goodput import improve_goodput

#: The share of requests that must meet all goals, as for gateways (``autoscale.attainment``).
MET_SHARE = 0.99
#: Requests of a replay in both passes, the fraction of them that warms executors up, and the largest step as a fraction
#: of rates.
_PASSES, _WARM_UP_FRACTION, _STEP_FRACTION = (800, 2400), 0.15, 0.04
#: Plans that the second pass starts with, and most plans that avoid the largest options.
_FINALISTS, _MOST_AVOIDED = 3, 3

#: Requests of req/s for seconds, and a plan in the form for simulations.
Traffic = Callable[[float, float], Iterable[Arrival]]
Simulable = Callable[[PlanningResult], SimulatedPlan]


class Goodput(NamedTuple):
    """A plan, and the req/s at which ``MET_SHARE`` meet all goals.

    ``keeps_rate`` returns True for another form of the plan in which as many meet them at this rate.
    """

    result: PlanningResult
    rate: float
    keeps_rate: Callable[[PlanningResult], bool]


class GoodputSearch:
    """Search for the plan of a single model with the most goodput.

    The number of replays is what one core simulates in about ``within`` seconds. It is a count, so that each machine
    finds the same plan.
    """

    def __init__(
        self, planner: Planner, load: Loads | None, traffic: Traffic, simulable: Simulable, within: float
    ) -> None:
        self._planner = planner
        self._load = load
        self._traffic = traffic
        self._simulable = simulable
        self._requests_left = within * REQUESTS_PER_SECOND
        self._replayed = _PASSES[0]
        self._name, self._ready = next(iter(planner.inputs.items()))
        self._known: dict[tuple[tuple[str, int], ...], PlanningResult] = {}
        self._rates: dict[tuple[tuple[str, int], ...], float] = {}
        self._step = 0.0

    @staticmethod
    def applies_to(planner: Planner) -> bool:
        """Return True if the search supports this planner.

        It needs one model with latency goals and the goal of most requests, on GPUs of one type. It does not support
        nodes, cells, policies, several mixes or lent options.
        """
        if len(planner.inputs) != 1:
            return False
        ready = next(iter(planner.inputs.values()))
        asked = ready.asked
        plain = asked.goal == THROUGHPUT and asked.policy == EXACT and not asked.cells and not asked.mixes
        same_gpus = len({option.gpu for option in ready.options.values()}) == 1
        return bool(asked.goals.of_model()) and plain and same_gpus and not ready.lent and not planner.nodes

    def find_best(self, results: Sequence[PlanningResult], margin: float = 0.0) -> Goodput | None:
        """Return the best of ``results`` and their neighbours, while replays are left.

        Returns the first of them unless another is better by the fraction ``margin``, and None if none meets the goals.
        """
        for result in (*results, *avoid_largest_options(self._planner, self._load, results[0])):
            self._known.setdefault(_key(_replica_counts(result.models[self._name])), result)
        first = next(iter(self._known))
        most = max(result.capacity[self._name] for result in results)
        if most <= 0:
            return None
        self._step = _rate_step(most)
        goodput = self._judge(dict(first), 0.0)
        if goodput > 0:  # far below the promise, its steps would be too large
            self._step = _rate_step(goodput)
        gpus = {name: option.gpus for name, option in self._ready.options.items()}
        gpu_types = {option.gpu for option in self._ready.options.values()}
        budget = sum(count for name, count in self._planner.gpu_counts.items() if name in gpu_types)
        starts = list(self._known)
        for self._replayed in _PASSES:
            self._rates = {}
            replicas, rate = improve_goodput(map(dict, starts), gpus, budget, self._judge)
            starts = [first, *sorted(self._rates, key=self._rates.__getitem__, reverse=True)[:_FINALISTS]]
            if self._requests_left <= 0:
                break
        best = first if rate <= self._rates.get(first, 0.0) * (1 + margin) else _key(replicas)
        if rate <= 0:
            return None
        most = self._rates[best]
        return Goodput(self._known[best], most, lambda result: self._meets_goals(self._simulable(result), most))

    def _judge(self, replicas: Mapping[str, int], beyond: float) -> float:
        """Return the goodput of ``replicas`` with the best paths; 0 or ``beyond`` if it is not more, or without replays
        left.
        """
        if beyond > 0 and self._requests_left <= 0:
            return 0.0
        result = self._known.get(_key(replicas)) or self._routed(replicas)
        if result is None:
            return 0.0
        self._known[_key(replicas)] = result
        low = round(beyond / self._step)
        high = low + 1 if beyond else max(1, round(result.capacity[self._name] / self._step))
        plan = self._simulable(result)
        stride = high - low
        while self._meets_goals(plan, high * self._step):
            stride *= 2
            low, high = high, high + stride
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._meets_goals(plan, middle * self._step) else (low, middle)
        rate = self._rates[_key(replicas)] = low * self._step
        return rate

    def _routed(self, replicas: Mapping[str, int]) -> PlanningResult | None:
        """Find the best paths over ``replicas``; None if they do not run all required components."""
        shell = reference_plan(self._ready)
        options = {
            name: msgspec.structs.replace(shell.options[name], replicas=count) for name, count in replicas.items()
        }
        running = {self._name: msgspec.structs.replace(shell, options=options)}
        try:
            found = self._planner.reroute_running(running, self._load)
        except OmnibusError:
            return None
        return found if found.capacity.get(self._name, 0.0) > 0 else None

    def _meets_goals(self, plan: SimulatedPlan, rate: float) -> bool:
        """Return True if enough of ``rate`` req/s meet all goals."""
        self._requests_left -= self._replayed
        seconds = self._replayed / rate
        arrivals = list(self._traffic(rate, seconds))
        try:
            return keeps_goals(plan, arrivals, seconds, warm_up=_WARM_UP_FRACTION, share=MET_SHARE)
        except BadRequest:  # a request that the plan has no path for
            return False


def avoid_largest_options(planner: Planner, load: Loads | None, result: PlanningResult) -> Iterator[PlanningResult]:
    """Yield the best plan without the option with the most GPUs in ``result``.

    Then it yields the best one without that of the last plan as well, and so on. ``planner`` has one model.
    """
    name, ready = next(iter(planner.inputs.items()))
    shell = reference_plan(ready)
    allowed = {option: msgspec.structs.replace(each, replicas=1) for option, each in shell.options.items()}
    for _ in range(_MOST_AVOIDED):
        used = result.models[name].options
        del allowed[max(used, key=lambda option: used[option].replicas * used[option].gpus)]
        running = {name: msgspec.structs.replace(shell, options=dict(allowed))}
        found = planner.plan_of_running_options(load or {}, running)
        if found is None:
            return
        yield found
        result = found


def _rate_step(rate: float) -> float:
    """Return the step of rates near ``rate``.

    It is a power of two: searches over other plans judge at the same rates, so that more of them never find less.
    """
    return 2.0 ** floor(log2(_STEP_FRACTION * rate))


def _replica_counts(plan: ModelPlan) -> dict[str, int]:
    return {name: option.replicas for name, option in plan.options.items() if option.replicas}


def _key(replicas: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, count) for name, count in replicas.items() if count))
