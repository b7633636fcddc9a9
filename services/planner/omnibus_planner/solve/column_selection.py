"""Choice of the options to solve over, and tie-breaking among equal answers.

Few options can be part of an optimum. The solver first tries those with the least waste (``bounds.py``). The answer
bounds the waste of any better one, and so shows if other options must be tried too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve.bounds import Bound
from omnibus_planner.solve.constraints import available_gpus
from omnibus_planner.solve.highs import Vector
from omnibus_planner.solve.milp import Objective
from omnibus_planner.solve.query import RATE_TOLERANCE, SolverAnswer, SolverRun

#: Number of options in the first attempt.
INITIAL_OPTION_COUNT = 16
#: GPUs that rounding may hide.
_ROUNDING_GPUS = 1e-6


def allowed_options(run: SolverRun) -> Vector:
    """Return the options of which the terms allow a replica."""
    return run.top > 0


def is_waste_decisive(run: SolverRun) -> bool:
    """Return True if waste separates options.

    It does if all GPUs are of one type and replicas may be fully busy.
    """
    kinds = {option.gpu for option in run.frame.network.options.values()}
    return len(kinds) == 1 and not run.terms.admissible


def spare_gpus(run: SolverRun, bounds: Sequence[Bound], rate: float) -> list[float]:
    """Return the GPUs that ``rate`` req/s may waste under each mix."""
    have = sum((available_gpus(run.terms) or {}).values())
    return [have - each.each * rate for each in bounds]


def options_within_waste(run: SolverRun, bounds: Sequence[Bound], left: Sequence[float]) -> Vector:
    """Return the options whose replica wastes at most ``left`` under any mix."""
    return _replica_limits(run, bounds, left) > 0


def _replica_limits(run: SolverRun, bounds: Sequence[Bound], left: Sequence[float]) -> Vector:
    counts = run.top
    for each, most in zip(bounds, left, strict=True):
        most += _ROUNDING_GPUS * max(1.0, abs(most))
        with np.errstate(divide="ignore", invalid="ignore"):
            counts = np.minimum(counts, np.where(each.waste > 0, np.floor(max(most, 0.0) / each.waste), np.inf))
    return counts


def least_waste(run: SolverRun, bounds: Sequence[Bound], count: int) -> Vector:
    """Return the ``count`` allowed options that waste least."""
    waste = np.where(allowed_options(run), np.max([each.waste for each in bounds], axis=0), np.inf)
    ranks = np.empty(len(waste))
    ranks[np.argsort(waste, kind="stable")] = np.arange(len(waste))
    return allowed_options(run) & (ranks < count)


def find_best(run: SolverRun, goal: Objective | None, bounds: Sequence[Bound]) -> SolverAnswer | None:
    """Return the best answer over all options; None if there is none.

    It is the best by ``goal``, or the highest rate.
    """
    if not is_waste_decisive(run):
        return run.solve_over(goal, allowed_options(run))
    found = _find_by_growing(run, goal, bounds)
    run.fresh = None
    return found


def _find_by_growing(run: SolverRun, goal: Objective | None, bounds: Sequence[Bound]) -> SolverAnswer | None:
    """Solve over more and more options, until no better answer remains.

    Each attempt must use an option that was not in the previous ones.
    """
    count, keep, found = INITIAL_OPTION_COUNT, least_waste(run, bounds, INITIAL_OPTION_COUNT), None
    while True:
        try:
            answer = run.solve_over(goal, keep)
        except DeadlineExceeded:
            if found is None:
                raise
            return _mark_unproven(found, goal)
        if answer is not None and (found is None or _answer_value(run, goal, answer) < _answer_value(run, goal, found)):
            found = answer
        if goal is None and found is not None and found.rate >= run.highest:
            return replace(found, proven=True)
        needed = (
            allowed_options(run)
            if found is None
            else options_within_waste(run, bounds, _allowed_waste(run, goal, bounds, found))
        )
        if not np.any(needed & ~keep):
            return found
        if answer is not None and not answer.proven:
            return _mark_unproven(answer if found is None else found, goal)
        if goal is None and found is not None:
            run.lowest = found.rate * (1 + 2 * RATE_TOLERANCE)
        run.fresh = ~keep
        count *= 2
        keep = keep | needed if needed.sum() <= count else keep | least_waste(run, bounds, count)


def _answer_value(run: SolverRun, goal: Objective | None, answer: SolverAnswer) -> float:
    return -answer.rate if goal is None else goal.value(answer.replicas, run.running)


def _mark_unproven(found: SolverAnswer, goal: Objective | None) -> SolverAnswer:
    """Mark ``found`` as unproven: its bound covers only the options that were tried."""
    return replace(found, proven=False, bound=np.inf if goal is None else -np.inf)


def _allowed_waste(run: SolverRun, goal: Objective | None, bounds: Sequence[Bound], found: SolverAnswer) -> list[float]:
    """Return the waste per mix that any better answer stays below."""
    if goal is None:
        return spare_gpus(run, bounds, found.rate)
    step = 1.0 if goal.is_integral else 0.0
    return [goal.value(found.replicas, run.running) - step - each.each * run.lowest for each in bounds]


def likely_options(run: SolverRun, bounds: Sequence[Bound], answer: SolverAnswer) -> Vector:
    """Return the options of the first attempt, and those that ``answer`` uses."""
    return least_waste(run, bounds, INITIAL_OPTION_COUNT) | (answer.replicas > 0)


def break_ties(
    run: SolverRun, goals: Sequence[Objective], answer: SolverAnswer, keep: Vector, lowest: float = -np.inf
) -> tuple[SolverAnswer, bool]:
    """Break ties over the options ``keep`` by one goal after the other.

    Returns the answer, and True if each step was proven. ``lowest`` is a lower bound of the first goal.
    """
    settled = True
    for goal in goals:
        value = goal.value(answer.replicas, run.running)
        if value > lowest and not run.is_decided(goal):
            try:
                better = run.solve_over(goal, keep)
            except DeadlineExceeded:
                return answer, False
            if better is None or goal.value(better.replicas, run.running) > value:
                return answer, False
            answer, settled = better, settled and better.proven
        run.hold_goal(goal, answer.replicas)
        lowest = -np.inf
    return answer, settled
