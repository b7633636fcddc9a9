"""A new rate or mix for unchanged profiles: within milliseconds, with few new replicas.

The least cost is known before solving: no deployment beats the shortest paths (``bounds.py``), rounded up. The search
for a deployment of that cost uses the running options and those that waste least. It prefers the fewest new replicas,
then the fewest of options that do not run yet. If it finds none, the full problem is solved. Models that share no
option are small problems, and are solved in full.
"""

import math

import msgspec

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve import column_selection
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.highs import Vector
from omnibus_planner.solve.milp import Objective
from omnibus_planner.solve.problem import require
from omnibus_planner.solve.query import SolverAnswer, SolverRun
from omnibus_planner.solve.solution import Solution
from omnibus_planner.solve.solver import Solver

#: Number of options in addition to those that run, and the most branches.
_EXTRA_OPTION_COUNT, _MAX_BRANCHES = 12, 2000


def replan_deployment(solver: Solver, rate: float, running: dict[str, int], terms: Terms | None = None) -> Solution:
    """Return the deployment of least cost for ``rate``, with few starts.

    ``rate`` is in req/s. ``running`` are the current replicas. The cost is proven; the fewest starts are proven only
    among the options of the search. ``terms.scenarios`` contains a new mix. Raises the same errors as
    ``Solver.solve_least``.
    """
    terms = msgspec.structs.replace(terms or Terms(), running=running)
    require(math.isfinite(rate) and rate >= 0, f"the rate is {rate}: it must be a finite number, 0 or more")
    run = solver.create_run(terms)
    if solver.is_divisible(run):
        return solver.solve_least(rate, terms)
    bounds = solver.mix_bounds(run, solver.frame.costs)
    lowest = max(each.each for each in bounds) * rate
    if rate > 0 and lowest > 0 and solver.cost_objective.is_integral and column_selection.is_waste_decisive(run):
        run.lowest = run.highest = rate
        run.limit_goal(solver.cost_objective, math.ceil(lowest - 1e-6))
        keep = column_selection.least_waste(run, bounds, _EXTRA_OPTION_COUNT) | (
            column_selection.allowed_options(run) & (run.running > 0)
        )
        answer = _solve_quickly(run, solver.spawn_objective, keep)
        if answer is not None:
            answer = _prefer_running_options(solver, run, answer, keep)
            return solver.build_solution(run, answer, "cost", lowest, 0.0, settled=answer.proven, quick=True)
    return solver.solve_least(rate, terms)


def _solve_quickly(run: SolverRun, goal: Objective, keep: Vector) -> SolverAnswer | None:
    try:
        return run.solve_over(goal, keep, branches=_MAX_BRANCHES)
    except DeadlineExceeded:
        return None


def _prefer_running_options(solver: Solver, run: SolverRun, answer: SolverAnswer, keep: Vector) -> SolverAnswer:
    """Return an answer with fewest replicas of new options.

    It has as few starts as ``answer``.
    """
    novelty = solver.novelty_objective(run)
    if novelty.value(answer.replicas, run.running) == 0:
        return answer
    run.hold_goal(solver.spawn_objective, answer.replicas)
    return _solve_quickly(run, novelty, keep) or answer
