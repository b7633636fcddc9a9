"""Budget of work for one step: found once, when an engine starts, by measuring it. No clock here.

The times of steps grow with their size, so the largest step within a goal is found by doubling and then by
bisection; what is measured takes at most about twice the goal. Method: TriInfer, algorithm 1, lines 1 to 5.
"""

from collections.abc import Callable
from typing import NamedTuple

#: Seconds that a step of a given size takes.
Cost = Callable[[int], float]

#: The part of the time to the first token that one step may take: media and prompt need a step each.
ALPHA = 0.5


class StepGoals(NamedTuple):
    """Latency goals in seconds: time to the first token, and time between two tokens. 0: no goal."""

    ttft: float = 0.0
    tbt: float = 0.0

    @property
    def first_step_seconds(self) -> float:
        """Seconds that a step without decoding sequences may take; 0: no goal."""
        return ALPHA * self.ttft

    def __bool__(self) -> bool:
        return self.ttft > 0 or self.tbt > 0


#: No goal: work is shared out by fixed sizes.
NO_GOALS = StepGoals()


class BudgetSizes(NamedTuple):
    """Sizes that a budget is chosen from: ``least`` and ``most`` in one step, and the ``usual`` one without a goal."""

    least: int
    most: int
    usual: int


def find_budget(cost: Cost, goals: StepGoals, decode: float, sizes: BudgetSizes) -> tuple[int, int]:
    """Most of one kind of work beside a decode step, which takes ``decode`` seconds by itself, and without one.

    A step with decoding sequences is bound by the time between tokens, any other by the time to the first.
    """
    least, most, usual = sizes
    beside = largest_within_goal(cost, goals.tbt - decode, least, most) if goals.tbt else usual
    alone = largest_within_goal(cost, goals.first_step_seconds, least, most) if goals.ttft else max(usual, beside)
    return (beside if goals.tbt else min(usual, alone)), alone


def largest_within_goal(cost: Cost, goal: float, low: int, high: int) -> int:
    """The largest size from ``low`` to ``high`` whose ``cost`` is within ``goal``.

    ``low`` when even that is not: a goal that cannot be met must not stop the work.
    """
    good, bad = low, low + 1
    if cost(low) > goal:
        return low
    while good < high and cost(bad := min(2 * good, high)) <= goal:
        good = bad
    if good >= high:
        return max(low, high)
    while bad - good > 1:
        middle = (good + bad) // 2
        if cost(middle) <= goal:
            good = middle
        else:
            bad = middle
    return good
