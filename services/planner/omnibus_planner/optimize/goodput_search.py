"""Goodput of plans by simulation, and the plan with most of it.

Goodput is the rate at which 99 of 100 requests meet all goals. Goals bound the utilisation of each option, from
measurements of one replica. But only a simulation of the whole plan shows if requests through several options are in
time. So the search replays random arrivals on the plans of all rounds of a promise, and on those by the rules of
others. It improves the best one by moving one replica after the other to another option (``solve.goodput``), as
TriInfer's objective requires (section 2.2).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from omnibus.errors import BadRequest, OmnibusError
from omnibus.plan import ModelPlan
from omnibus_planner.declared.planned_spec import EXACT, THROUGHPUT
from omnibus_planner.optimize.load import Loads
from omnibus_planner.optimize.plan_builder import reference_plan
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate.arrivals import TypeRate, poisson_arrivals
from omnibus_planner.simulate.outcome import goal_shares
from omnibus_planner.simulate.run import REQUESTS_PER_SECOND, PlanSimulation, SimulatedPlan
from omnibus_planner.solve.goodput import improve_goodput

#: The share of requests that must meet all goals, as for gateways (``autoscale.attainment``).
MET_SHARE = 0.99
#: Requests of one replay, the fraction of them that warms executors up, and steps of rates as a fraction of the
#: promise.
_REPLAYED_REQUESTS, _WARM_UP_FRACTION, _STEP_FRACTION = 800, 0.15, 0.04

#: Requests by type of a plan at req/s, and a plan in the form for simulations.
TypesAtRate = Callable[[float], list[TypeRate]]
Simulable = Callable[[PlanningResult], SimulatedPlan]


class Goodput(NamedTuple):
    """A plan, and the req/s at which ``MET_SHARE`` meet all goals."""

    result: PlanningResult
    rate: float


class GoodputSearch:
    """Search for the plan of a single model with the most goodput.

    The number of replays is what one core simulates in about ``within`` seconds. It is a count, so that each machine
    finds the same plan.
    """

    def __init__(
        self, planner: Planner, load: Loads | None, types: TypesAtRate, simulable: Simulable, within: float
    ) -> None:
        self._planner = planner
        self._load = load
        self._types = types
        self._simulable = simulable
        self._replays_left = within * REQUESTS_PER_SECOND / _REPLAYED_REQUESTS
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
        return bool(asked.goals.active_goals()) and plain and same_gpus and not ready.lent and not planner.nodes

    def find_best(self, results: Sequence[PlanningResult], margin: float = 0.0) -> Goodput | None:
        """Return the best of ``results`` and their neighbours, while replays are left.

        Returns the first of them unless another is better by the fraction ``margin``, and None if none meets the goals.
        """
        for result in results:
            self._known.setdefault(_key(_replica_counts(result.models[self._name])), result)
        first = next(iter(self._known))
        self._step = _STEP_FRACTION * max(result.capacity[self._name] for result in results)
        if self._step <= 0:
            return None
        gpus = {name: option.gpus for name, option in self._ready.options.items()}
        replicas, rate = improve_goodput([dict(key) for key in self._known], gpus, self._judge)
        best = first if rate <= self._rates.get(first, 0.0) * (1 + margin) else _key(replicas)
        return Goodput(self._known[best], self._rates[best]) if rate > 0 else None

    def _judge(self, replicas: Mapping[str, int], beyond: float) -> float:
        """Return the goodput of ``replicas`` with the best paths; 0 or ``beyond`` if it is not more, or without replays
        left.
        """
        if beyond > 0 and self._replays_left <= 0:
            return 0.0
        result = self._known.get(_key(replicas)) or self._routed(replicas)
        if result is None:
            return 0.0
        self._known[_key(replicas)] = result
        low = round(beyond / self._step)
        high = low + 1 if beyond else max(1, round(result.capacity[self._name] / self._step))
        plan = self._simulable(result)
        while self._meets_goals(plan, high * self._step):
            low, high = high, 2 * high
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
        self._replays_left -= 1
        seconds = _REPLAYED_REQUESTS / rate
        run = PlanSimulation(plan, seconds, seconds * _WARM_UP_FRACTION, 1)
        try:
            run.send_requests(poisson_arrivals(self._types(rate), seconds))
        except BadRequest:  # a request that the plan has no path for
            return False
        rows = [row for each in run.seen.types.values() for row in each.rows]
        came = sum(each.came for each in run.seen.types.values())
        return goal_shares(rows, plan.goals[self._name], came)[1] >= MET_SHARE


def _replica_counts(plan: ModelPlan) -> dict[str, int]:
    return {name: option.replicas for name, option in plan.options.items() if option.replicas}


def _key(replicas: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, count) for name, count in replicas.items() if count))
