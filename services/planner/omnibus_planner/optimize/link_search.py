"""Deployments whose tensors fit the declared links between nodes.

A deployment is solved without links first, and its replicas are placed. If a link cannot carry what they send, further
deployments are solved in which executors send each other fewer GB/s. They run more components together, or send fewer
requests through separate executors. A deployment of equal cells, each whole on a node, also counts: more of its tensors
stay on their node. The best is the one that serves most over its executors and the links, as they are placed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from omnibus.errors import BadRequest, DeadlineExceeded
from omnibus_planner.declared.planned_spec import THROUGHPUT, DeclaredNode
from omnibus_planner.optimize.cells import solve_cells
from omnibus_planner.optimize.demand import ModelDemand
from omnibus_planner.optimize.joint import GpuBudget, PlanningGroup, PlanningOutcome
from omnibus_planner.optimize.transfers import TransferLoads
from omnibus_planner.solve.problem import Infeasible

#: Most limits of the GB/s between executors, and halvings of the rate that links carry.
_MAX_LIMITS, _RATE_STEPS = 6, 40
#: Req/s that count as a rate: 0 would be an unknown one.
_LEAST_RATE = 1e-12
#: Least relative gain of another deployment: the traffic between nodes is an estimate.
_LEAST_GAIN = 0.02

#: Solves within GB/s between executors; None does not limit them.
Solve = Callable[[float | None], PlanningOutcome]


class _Judged(NamedTuple):
    """A deployment, the fraction of its rate that links carry, and the pair of nodes with the busiest link."""

    outcome: PlanningOutcome
    carried: float
    link: tuple[str, str]

    @property
    def served(self) -> float:
        return self.outcome.solution.capacity * self.carried

    @property
    def target_rate(self) -> float:
        return math.inf if self.outcome.goal == THROUGHPUT else self.outcome.solution.rate

    @property
    def fits_links(self) -> bool:
        return self.carried >= 1 or self.served >= self.target_rate

    def is_better(self, other: "_Judged") -> bool:
        """Return True if it clearly serves more of the rate to serve than ``other``, or as much at a lower cost."""
        target_rate = min(self.target_rate, other.target_rate)
        mine, theirs = min(target_rate, self.served), min(target_rate, other.served)
        if mine > theirs * (1 + _LEAST_GAIN) or theirs > mine * (1 + _LEAST_GAIN):
            return mine > theirs
        return self.outcome.goal != THROUGHPUT and self.outcome.solution.cost < other.outcome.solution.cost


def carried_fraction(
    outcome: PlanningOutcome, nodes: Mapping[str, DeclaredNode], before: Sequence[PlanningOutcome] = ()
) -> tuple[float, tuple[str, str]]:
    """Return the share of capacity that links carry, and the busiest link.

    Deployments that were planned ``before`` use the links at their expected rates. Receivers that are less busy leave
    more tensors on their node, so the fraction is found by bisection.
    """

    def loads_at(fraction: float) -> TransferLoads:
        return TransferLoads([*before, _at_fraction(outcome, fraction)], nodes)

    whole = loads_at(1.0)
    busiest, utilisation = whole.busiest_link()
    if utilisation <= 1:
        return 1.0, busiest
    low, high = 0.0, 1.0
    for _ in range(_RATE_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if loads_at(middle).busiest_link()[1] <= 1 else (low, middle)
    return low, busiest


def _at_fraction(outcome: PlanningOutcome, fraction: float) -> PlanningOutcome:
    """Return ``outcome`` with a fraction of its capacity as the expected rates."""
    most = outcome.solution.capacity * fraction
    demands = {
        name: demand._replace(rate=max(most * outcome.weights[name], _LEAST_RATE))
        for name, demand in outcome.demands.items()
    }
    return outcome._replace(demands=demands)


class LinkSearch:
    """Search for deployments of one group that the links between ``nodes`` carry."""

    def __init__(self, nodes: Mapping[str, DeclaredNode], before: Sequence[PlanningOutcome] = ()) -> None:
        self._nodes = nodes
        self._before = before

    def solve(
        self, group: PlanningGroup, demands: Mapping[str, ModelDemand], running: Mapping[str, int], room: GpuBudget
    ) -> PlanningOutcome:
        """Return the best deployment, as ``PlanningGroup.solve`` does."""
        return self._find_best(
            lambda limit: group.solve(demands, running, room, most_gb_s=limit),
            lambda: self._solve_on_nodes(group, demands, room),
        )

    def route_running(
        self,
        group: PlanningGroup,
        demands: Mapping[str, ModelDemand],
        running: Mapping[str, int],
        room: GpuBudget,
        *,
        partial: bool,
    ) -> PlanningOutcome:
        """Return the best paths over ``running``, as ``PlanningGroup.route_running`` does."""
        return self._find_best(
            lambda limit: group.route_running(demands, running, room, partial=partial, most_gb_s=limit)
        )

    def _find_best(
        self, solve: Solve, solve_on_nodes: Callable[[], PlanningOutcome | None] | None = None
    ) -> PlanningOutcome:
        first = best = self._judge(solve(None))
        if first.fits_links:
            return first.outcome
        for each in (*self._limit_traffic(solve, first), *self._judge_on_nodes(solve_on_nodes)):
            best = each if each.is_better(best) else best
        return best.outcome._replace(link=first.link)

    def _judge(self, outcome: PlanningOutcome) -> _Judged:
        if not outcome.places or not any(node.link_gb_s for node in self._nodes.values()):
            return _Judged(outcome, 1.0, ("", ""))
        return _Judged(outcome, *carried_fraction(outcome, self._nodes, self._before))

    def _judge_on_nodes(self, solve: Callable[[], PlanningOutcome | None] | None) -> Iterator[_Judged]:
        outcome = solve() if solve else None
        if outcome is not None:
            yield self._judge(outcome)

    def _limit_traffic(self, solve: Solve, first: _Judged) -> Iterator[_Judged]:
        """Yield deployments with less traffic between executors.

        The first has none. Then each limit is in the middle between one that the links carry and one that they do not.
        It ends when no limit between these can serve clearly more.
        """
        low, high, best, bound = 0.0, first.outcome.sent_gb_s(), first.served, first.outcome.solution.capacity
        for number in range(_MAX_LIMITS):
            limit = (low + high) / 2 if number else 0.0
            try:
                candidate = self._judge(solve(limit))
            except (Infeasible, DeadlineExceeded):
                low = limit
                continue
            yield candidate
            best = max(best, candidate.served)
            if candidate.fits_links:
                low = limit
            else:
                high, bound = limit, candidate.outcome.solution.capacity
            if first.target_rate == math.inf and bound <= best * (1 + _LEAST_GAIN):
                return

    def _solve_on_nodes(
        self, group: PlanningGroup, demands: Mapping[str, ModelDemand], room: GpuBudget
    ) -> PlanningOutcome | None:
        """Return the best cells on one node each as one deployment, or None."""
        if len(group.ready) > 1 or group.goal != THROUGHPUT:
            return None
        try:
            found = solve_cells(group, demands, room, max(node.gpus for node in self._nodes.values()))
        except (BadRequest, DeadlineExceeded):
            return None
        return None if found.unserved or not found.places else found._replace(cells={}, cell_solutions={})
