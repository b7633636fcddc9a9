"""Choice of the options to solve over, and tie-breaking among equal answers by one goal after the other.

Few options can be part of an optimum. Those with the least waste (``bounds.py``) are tried first; the answer
says how much any better one may waste, and so whether others must be tried as well.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from omnibus.errors import DeadlineExceeded
from services.planner.solve.bounds import Bound
from services.planner.solve.constraints import at_hand
from services.planner.solve.highs import Vector
from services.planner.solve.milp import Goal
from services.planner.solve.query import HELD, Answer, Run

#: How many options are asked first.
FIRST = 16
#: GPUs that rounding may hide.
_HIDDEN = 1e-6


def every(run: Run) -> Vector:
    """Options of which the terms allow a replica."""
    return run.top > 0


def sharp(run: Run) -> bool:
    """Return whether waste tells options apart: all GPUs are of one type, and replicas are worked to the full."""
    kinds = {option.gpu for option in run.frame.network.options.values()}
    return len(kinds) == 1 and not run.terms.admissible


def spare(run: Run, bounds: Sequence[Bound], rate: float) -> list[float]:
    """GPUs that a deployment of ``rate`` req/s may waste under each mix."""
    have = sum((at_hand(run.terms) or {}).values())
    return [have - each.each * rate for each in bounds]


def within(run: Run, bounds: Sequence[Bound], left: Sequence[float]) -> Vector:
    """Options of which one replica wastes no more than is ``left`` under any mix."""
    return _counts(run, bounds, left) > 0


def _counts(run: Run, bounds: Sequence[Bound], left: Sequence[float]) -> Vector:
    """Return the largest number of replicas of each option that wastes no more than is ``left`` under any mix."""
    counts = run.top
    for each, most in zip(bounds, left, strict=True):
        most += _HIDDEN * max(1.0, abs(most))
        with np.errstate(divide="ignore", invalid="ignore"):
            counts = np.minimum(counts, np.where(each.waste > 0, np.floor(max(most, 0.0) / each.waste), np.inf))
    return counts


def least_waste(run: Run, bounds: Sequence[Bound], count: int) -> Vector:
    """The ``count`` allowed options that waste least."""
    waste = np.where(every(run), np.max([each.waste for each in bounds], axis=0), np.inf)
    ranks = np.empty(len(waste))
    ranks[np.argsort(waste, kind="stable")] = np.arange(len(waste))
    return every(run) & (ranks < count)


def best(run: Run, goal: Goal | None, bounds: Sequence[Bound]) -> Answer | None:
    """The best answer by ``goal``, or the highest rate, over all options; None when there is none."""
    if not sharp(run):
        return run.ask(goal, every(run))
    found = _growing(run, goal, bounds)
    run.fresh = None
    return found


def _growing(run: Run, goal: Goal | None, bounds: Sequence[Bound]) -> Answer | None:
    """Asks more and more options, each time for what is better and uses one that was not asked before."""
    count, keep, found = FIRST, least_waste(run, bounds, FIRST), None
    while True:
        try:
            answer = run.ask(goal, keep)
        except DeadlineExceeded:
            if found is None:
                raise
            return _unproven(found, goal)
        if answer is not None and (found is None or _value(run, goal, answer) < _value(run, goal, found)):
            found = answer
        needed = every(run) if found is None else within(run, bounds, _better(run, goal, bounds, found))
        if not np.any(needed & ~keep):
            return found
        if answer is not None and not answer.proven:
            return _unproven(answer if found is None else found, goal)
        if goal is None and found is not None:
            run.lowest = found.rate * (1 + 2 * HELD)
        run.fresh = ~keep
        count *= 2
        keep = keep | needed if needed.sum() <= count else keep | least_waste(run, bounds, count)


def _value(run: Run, goal: Goal | None, answer: Answer) -> float:
    return -answer.rate if goal is None else goal.value(answer.replicas, run.running)


def _unproven(found: Answer, goal: Goal | None) -> Answer:
    """``found`` when not all options that matter were asked: its bound is theirs alone."""
    return replace(found, proven=False, bound=np.inf if goal is None else -np.inf)


def _better(run: Run, goal: Goal | None, bounds: Sequence[Bound], found: Answer) -> list[float]:
    """Return the most that an answer better than ``found`` may waste under each mix."""
    if goal is None:
        return spare(run, bounds, found.rate)
    step = 1.0 if goal.whole else 0.0
    return [goal.value(found.replicas, run.running) - step - each.each * run.lowest for each in bounds]


def likely(run: Run, bounds: Sequence[Bound], answer: Answer) -> Vector:
    """Options that were asked first, and those that ``answer`` uses."""
    return least_waste(run, bounds, FIRST) | (answer.replicas > 0)


def settle(
    run: Run, goals: Sequence[Goal], answer: Answer, keep: Vector, lowest: float = -np.inf
) -> tuple[Answer, bool]:
    """The best among equals over the options ``keep`` by one goal after the other, and whether each was proven.

    ``lowest`` is a value that the first goal cannot go below.
    """
    settled = True
    for goal in goals:
        value = goal.value(answer.replicas, run.running)
        if value > lowest and not run.decided(goal):
            try:
                better = run.ask(goal, keep)
            except DeadlineExceeded:
                return answer, False
            if better is None or goal.value(better.replicas, run.running) > value:
                return answer, False
            answer, settled = better, settled and better.proven
        run.hold(goal, answer.replicas)
        lowest = -np.inf
    return answer, settled
