"""A new rate, or a new mix, for options whose profiles did not change: within milliseconds, and few new replicas.

The least cost is known before anything is solved: no deployment beats the shortest paths (``bounds.py``),
rounded up. What is left is to find one of that cost, among the options that run already and those that
waste least, that starts the fewest replicas. Where there is none, the question is asked in full.
"""

import math

import msgspec
import numpy as np

from omnibus.errors import DeadlineExceeded
from services.planner.solve import column_selection
from services.planner.solve.constraints import Terms
from services.planner.solve.problem import require
from services.planner.solve.query import Answer, Run
from services.planner.solve.solution import Solution
from services.planner.solve.solver import Solver

#: How many options are asked beside those that run, and for how many seconds.
_FIRST, _PATIENCE = 12, 1.0


def replan(solver: Solver, rate: float, running: dict[str, int], terms: Terms | None = None) -> Solution:
    """Least cost for ``rate`` req/s, then the least that must be started beside ``running``.

    The cost is proven; that no fewer starts would do is proven among the options that were asked.
    ``terms.scenarios`` gives a new mix. Raises as ``Solver.least`` does.
    """
    terms = msgspec.structs.replace(terms or Terms(), running=running)
    require(math.isfinite(rate) and rate >= 0, f"the rate is {rate}: it must be a finite number, 0 or more")
    run = solver.run(terms)
    bounds = solver.bounds(run, solver.frame.costs)
    lowest = max(each.each for each in bounds) * rate
    if rate > 0 and lowest > 0 and solver.cost.whole and column_selection.sharp(run):
        run.lowest = run.highest = rate
        run.limit(solver.cost, math.ceil(lowest - 1e-6))
        keep = column_selection.least_waste(run, bounds, _FIRST) | (column_selection.every(run) & (run.running > 0))
        answer = _quickly(solver, run, keep)
        if answer is not None:
            return solver.solution(run, answer, "cost", lowest, 0.0, settled=answer.proven, quick=True)
    return solver.least(rate, terms)


def _quickly(solver: Solver, run: Run, keep: np.ndarray) -> Answer | None:
    try:
        return run.ask(solver.spawn, keep, limit=_PATIENCE)
    except DeadlineExceeded:
        return None
