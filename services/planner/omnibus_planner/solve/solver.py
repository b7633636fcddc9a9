"""The best deployment: most requests within GPUs, or fewest GPUs for a rate (Appendix B), exactly.

There are many optima. Ties are broken in this order: least cost, fewest GPUs, least to start, fewest executors of
options that do not run yet, fewest executors. Then follows a fixed order of the options (of those that waste least).
Among the routings the one with most headroom wins, then the fewest arcs, if there are few candidates. The same question
always has the same answer.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from omnibus.errors import BadRequest
from omnibus_planner.solve import column_selection
from omnibus_planner.solve import constraints as given
from omnibus_planner.solve.bounds import Bound, compute_bound, unreached_types
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_matrix import FlowMatrix
from omnibus_planner.solve.flow_network import Network, keep_arcs
from omnibus_planner.solve.highs import Deadline, Vector
from omnibus_planner.solve.milp import Objective
from omnibus_planner.solve.problem import Infeasible, check_amount, require
from omnibus_planner.solve.query import SERVED_TOLERANCE, SolverAnswer, SolverRun
from omnibus_planner.solve.routing import route_flows
from omnibus_planner.solve.solution import Solution

#: A rate below this fraction of the bound counts as 0.
_RATE_TOLERANCE = 1e-9
#: Number of cached bounds.
_MAX_CACHED_BOUNDS = 64


class LeastAnswer(NamedTuple):
    """The answer of least cost. If ``settled``, the order among equals is proven."""

    answer: SolverAnswer
    settled: bool


class Solver:
    """Answers questions about one network, whose matrix it keeps.

    With ``arc_gb``, the GB that a request receives on each arc, executors send each other at most ``most_gb_s``.
    """

    def __init__(self, network: Network, arc_gb: Sequence[float] | None = None, most_gb_s: float = 0.0) -> None:
        if arc_gb is not None and most_gb_s <= 0:
            network = keep_arcs(network, [gb <= 0 for gb in arc_gb])
            arc_gb = None
        self.frame = FlowMatrix(network, None if arc_gb is None else [gb / most_gb_s for gb in arc_gb])
        self._order = np.sqrt(_first_primes(self.frame.count))
        self._bounds: dict[tuple[tuple[float, ...], bytes], Bound] = {}

    def solve_most(self, terms: Terms, *, packed: bool = False) -> Solution:
        """Return the deployment with the most req/s within ``terms.gpus`` or ``terms.nodes``.

        The rate is 0 if nothing fits. With ``packed``, each replica must fit onto one of the nodes; otherwise only GPUs
        are counted. Raises ``BadRequest`` for contradictory terms, ``Infeasible`` if a request type has no path, and
        ``DeadlineExceeded`` if nothing was found in time.
        """
        run, have = self.create_run(terms), given.available_gpus(terms)
        run.packed = packed
        if have is None:
            raise BadRequest("say how many GPUs there are, or which rate is wanted")
        bounds = self.mix_bounds(run, self.frame.gpus)
        each = max(at.each for at in bounds)
        require(each > 0, "requests take no time on any option: profile them")
        run.highest = sum(have.values()) / each
        arcs = self.frame.allowed_arcs(column_selection.allowed_options(run))
        blocked = any(unreached_types(self.frame.network, mix, arcs) for mix in run.mixes)
        best = None if blocked else self.find_most(run, bounds)
        if best is None or best.rate <= run.highest * _RATE_TOLERANCE:
            if best is not None and not best.proven:  # the search started from nothing and timed out
                raise run.deadline.exceeded_error()
            return self._empty_solution(0.0, run.highest, "rate")
        run.lowest = best.rate
        answer, settled = self._settle_most(run, bounds, best)
        if answer.rate < best.rate * (1 - SERVED_TOLERANCE):
            answer, settled = best, False
        gap = 0.0 if best.proven else max(0.0, min(best.bound, run.highest) / best.rate - 1)
        return self.build_solution(run, answer, "rate", run.highest, gap, settled=settled)

    def solve_least(self, rate: float, terms: Terms | None = None, *, packed: bool = False) -> Solution:
        """Return the deployment of least cost that serves ``rate`` req/s.

        It is within ``terms.gpus`` if they are set. The cost is ``SolverOption.price``, else GPUs. Raises the errors of
        ``solve_most``, and ``Infeasible`` if no deployment within the terms serves the rate.
        """
        run = self.create_run(terms or Terms())
        run.packed = packed
        if check_amount(rate, "the rate") == 0:
            return self._empty_solution(0.0, 0.0, "cost")
        bounds = self.mix_bounds(run, self.frame.costs)
        lowest = max(each.each for each in bounds) * rate
        run.lowest = run.highest = rate
        least = self.find_least(run, bounds)
        if least is None:
            raise Infeasible(_describe_shortage(run, rate, lowest))
        value = self.cost_objective.value(least.answer.replicas, run.running)
        known = max(least.answer.bound, math.ceil(lowest - 1e-6) if self.cost_objective.is_integral else lowest)
        gap = 0.0 if least.answer.proven or value <= known else 1 - known / value
        return self.build_solution(run, least.answer, "cost", lowest, gap, settled=least.settled)

    # Searches

    def is_divisible(self, run: SolverRun) -> bool:
        """Return True if ``run`` is solved in parts."""
        return False

    def find_most(self, run: SolverRun, bounds: list[Bound]) -> SolverAnswer | None:
        """Return an answer of the highest rate, before ties are broken; None if nothing fits."""
        return column_selection.find_best(run, None, bounds)

    def find_least(self, run: SolverRun, bounds: list[Bound]) -> "LeastAnswer | None":
        """Return the answer of least cost for the rate of ``run``; None if there is none."""
        rate = run.lowest
        run.top = np.minimum(run.top, self._useful_replicas(run, rate))
        found = column_selection.find_best(run, self.cost_objective, bounds)
        if found is None:
            return None
        value = self.cost_objective.value(found.replicas, run.running)
        run.hold_goal(self.cost_objective, found.replicas)
        keep = column_selection.options_within_waste(run, bounds, [value - each.each * rate for each in bounds])
        answer, settled = self._break_ties(run, bounds, found, keep)
        return LeastAnswer(replace(answer, bound=found.bound, proven=found.proven), settled)

    def _settle_most(self, run: SolverRun, bounds: list[Bound], best: SolverAnswer) -> tuple[SolverAnswer, bool]:
        """Break ties among answers as good as ``best``; True if they are proven."""
        keep = column_selection.options_within_waste(run, bounds, column_selection.spare_gpus(run, bounds, best.rate))
        by_gpus = np.array_equal(self.frame.costs, self.frame.gpus)
        fewest = math.ceil(max(at.each for at in bounds) * best.rate - 1e-6) if by_gpus else -np.inf
        return self._break_ties(run, bounds, best, keep, fewest)

    # Construction of questions

    def create_run(self, terms: Terms) -> SolverRun:
        """Create a question under ``terms``, checked."""
        given.check_terms(terms, self.frame)
        run = SolverRun(self.frame, terms, Deadline(terms.within, terms.branches))
        arcs = self.frame.allowed_arcs(
            np.array([name not in terms.without for name in self.frame.network.option_names])
        )
        for mix in run.mixes:
            if kinds := unreached_types(self.frame.network, mix, arcs):
                raise given.no_path_error(kinds)
        for group in terms.covers:
            if not set(group) - set(terms.without):
                raise Infeasible(f"one of {', '.join(group) or 'no option'} must run, and none may")
        return run

    def mix_bounds(self, run: SolverRun, prices: Vector) -> list[Bound]:
        """Return the bound under each mix; the last few are cached."""
        found = []
        for mix in run.mixes:
            key = mix, prices.tobytes()
            if key not in self._bounds:
                while len(self._bounds) >= _MAX_CACHED_BOUNDS:
                    del self._bounds[next(iter(self._bounds))]
                self._bounds[key] = compute_bound(self.frame.network, mix, prices)
            found.append(self._bounds[key])
        return found

    def fractional_bound(self, terms: Terms, *, by_rate: bool) -> float:
        """Return a bound without whole numbers: the most req/s within the GPUs, or the least cost of 1 req/s.

        Raises the errors of ``solve_most``.
        """
        run = self.create_run(terms)
        each = max(at.each for at in self.mix_bounds(run, self.frame.gpus if by_rate else self.frame.costs))
        return sum((given.available_gpus(terms) or {}).values()) / each if by_rate else each

    @property
    def cost_objective(self) -> Objective:
        return Objective("cost", self.frame.costs)

    def _break_ties(
        self, run: SolverRun, bounds: list[Bound], answer: SolverAnswer, keep: Vector, fewest: float = -np.inf
    ) -> tuple[SolverAnswer, bool]:
        """Choose among deployments of equal rate by several goals in turn.

        ``fewest`` is a lower bound of the cost.
        """
        goals = [self.cost_objective, Objective("gpus", self.frame.gpus)]
        if run.terms.running is not None:
            goals += [self.spawn_objective, self.novelty_objective(run)]
        goals.append(Objective("executors", np.ones(self.frame.count)))
        answer, settled = column_selection.break_ties(run, goals, answer, keep, fewest)
        if not settled:
            return answer, False
        return column_selection.break_ties(
            run, [Objective("order", self._order)], answer, keep & column_selection.likely_options(run, bounds, answer)
        )

    @property
    def spawn_objective(self) -> Objective:
        """GPU-seconds until all new replicas serve."""
        starts = np.array([option.start_s * option.gpus for option in self.frame.network.options.values()])
        return Objective("spawn", np.zeros(self.frame.count), starts)

    def novelty_objective(self, run: SolverRun) -> Objective:
        """Return the objective of executors of options that do not run yet."""
        return Objective("novelty", (run.running == 0).astype(float))

    def _useful_replicas(self, run: SolverRun, rate: float) -> Vector:
        """Return the most replicas of each option that can have work.

        This assumes that all requests take the path with the most work for it.
        """
        network, most = self.frame.network, self._most_seconds
        work = np.max([rate * (np.array(mix) @ most) for mix in run.mixes], axis=0)
        found = np.ceil(work)
        for name, levels in run.terms.admissible.items():
            at = network.option_numbers[name]
            found[at] = next((count for count, level in enumerate(levels, 1) if level >= work[at]), len(levels))
        return np.maximum(
            found, np.max([*given.covering_rows(run.terms, self.frame), np.zeros(self.frame.count)], axis=0)
        )

    @cached_property
    def _most_seconds(self) -> Vector:
        """The most seconds of each request type, by row, on each option along one path.

        A path may come back to an option: ED encodes, P prefills, ED decodes.
        """
        network = self.frame.network
        found = np.zeros((len(network.types), self.frame.count))
        reached: dict[tuple[int, int], Vector] = {}
        for arc in sorted(network.arcs, key=lambda arc: arc.tail.bit_count()):
            seconds = reached.get((arc.kind, arc.tail), np.zeros(self.frame.count)).copy()
            for use in arc.uses:
                seconds[use.option] += use.seconds
            reached[arc.kind, arc.head] = np.maximum(reached.get((arc.kind, arc.head), seconds), seconds)
        for kind, whole in enumerate(network.whole):
            found[kind] = reached.get((kind, whole), found[kind])
        return found

    def build_solution(
        self,
        run: SolverRun,
        answer: SolverAnswer,
        goal: str,
        limit: float,
        gap: float,
        *,
        settled: bool,
        quick: bool = False,
    ) -> Solution:
        """Build the solution of ``answer`` with its paths; no deployment beats ``limit``."""
        rate = answer.rate if goal == "rate" else run.lowest
        supply, deadline = given.work_supply(run.terms, self.frame, answer.replicas), None if quick else run.deadline
        flows = [
            route_flows(self.frame, served, supply, mix, rate, deadline)
            for served, mix in zip(answer.served, run.mixes, strict=True)
        ]
        return Solution(
            goal=goal,
            rate=rate,
            capacity=answer.rate,
            gpus=round(float(self.frame.gpus @ answer.replicas)),
            cost=float(self.frame.costs @ answer.replicas),
            replicas=given.replicas_by_name(self.frame, answer.replicas),
            flows=flows[0],
            bound=limit,
            gap=gap,
            proven=gap == 0.0,
            settled=settled,
            spawned=round(float(np.maximum(answer.replicas - run.running, 0.0).sum())),
            scenarios=tuple(flows[1:]),
        )

    def _empty_solution(self, rate: float, limit: float, goal: str) -> Solution:
        return Solution(goal, rate, rate, 0, 0.0, {}, (), limit)


def _describe_shortage(run: SolverRun, rate: float, lowest: float) -> str:
    have = given.available_gpus(run.terms)
    if have is None:
        return f"no number of replicas serves {rate:g} req/s: what is admissible ends too early"
    there = " and ".join(f"{count} GPUs{kind and ' of type '}{kind}" for kind, count in have.items()) or "no GPUs"
    return f"{there} cannot serve {rate:g} req/s; it takes more than {lowest:.4g} GPUs, or their price"


def _first_primes(count: int) -> list[int]:
    """Return primes for an order: their roots have no whole combination in common, so no deployments tie."""
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found if prime * prime <= number):
            found.append(number)
        number += 1
    return found
