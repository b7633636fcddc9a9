"""Costs of steps by their size, and the budgets that goals leave. No clock here.

When an engine starts it measures steps of 1, 2, 4, ... decoding sequences, and of prompts and media of doubling
sizes, up to about twice the goal. Every step then holds as much as fits beside the sequences that decode in it:
cost(decode of n) + cost(prefill of m) <= time between tokens. Method: TriInfer, algorithm 1, which finds one size
for each kind of work and so has to find it for as many sequences as there may ever be.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from math import floor, inf
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


class CostTable:
    """Seconds of a step's work by its size, as measured: on straight lines between sizes and beyond the largest.

    What is smaller than the smallest costs as much as that one. A larger size never costs less: a measurement
    that says so was disturbed before.
    """

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        self._sizes: list[int] = []
        self._seconds: list[float] = []
        for size, seconds in sorted(points):
            self._sizes.append(size)
            self._seconds.append(max(seconds, *self._seconds[-1:], 0.0))
        if not self._sizes:
            raise ValueError("a table of costs needs a measured size")

    @property
    def sizes(self) -> list[int]:
        """The measured sizes, ascending."""
        return list(self._sizes)

    def seconds(self, size: float) -> float:
        """Seconds of work of ``size``; none costs nothing."""
        if size <= 0:
            return 0.0
        if size <= self._sizes[0]:
            return self._seconds[0]
        at = min(bisect_left(self._sizes, size), len(self._sizes) - 1)
        return self._seconds[at] + (size - self._sizes[at]) * self._slope(at)

    def largest_size(self, seconds: float, most: int) -> int:
        """The largest size up to ``most`` that takes at most ``seconds``; 0 when none does."""
        if seconds < self._seconds[0]:
            return 0
        at = min(bisect_right(self._seconds, seconds), len(self._sizes) - 1)
        slope = self._slope(at)
        if slope <= 0:
            return most
        # Seconds are sums of floats: what ends a billionth of a size short of a whole one means that one.
        return min(most, floor(self._sizes[at] + (seconds - self._seconds[at]) / slope + 1e-9))

    def _slope(self, at: int) -> float:
        """Seconds per size on the line that ends at point ``at``; through nothing where there is one point."""
        if at == 0:
            return self._seconds[0] / self._sizes[0]
        return (self._seconds[at] - self._seconds[at - 1]) / (self._sizes[at] - self._sizes[at - 1])


def measure_costs(cost: Cost, low: int, high: int, goal: float = inf) -> CostTable:
    """Measure ``low``, its doubles and ``high``; nothing larger than the first size that takes more than ``goal``."""
    points = [(low, cost(low))]
    while points[-1][0] < high and points[-1][1] <= goal:
        size = min(2 * points[-1][0], high)
        points.append((size, cost(size)))
    return CostTable(points)


class StepCosts(NamedTuple):
    """Goals, and the seconds of a decode step by its number of sequences; None: nothing decodes here."""

    goals: StepGoals = NO_GOALS
    decode: CostTable | None = None

    def seconds_left(self, decoding: int) -> float | None:
        """Seconds for prompts and media beside so many sequences that decode; None when no goal bounds the step.

        They may be negative: then the sequences alone take longer than the goal.
        """
        goal = self.goals.tbt if decoding else self.goals.first_step_seconds
        if not goal:
            return None
        return goal - (self.decode.seconds(decoding) if self.decode is not None else 0.0)


#: No goal, and nothing measured.
NO_COSTS = StepCosts()


class BudgetSizes(NamedTuple):
    """Sizes that a budget is chosen from: ``least`` and ``most`` in one step, and the ``usual`` one without a goal."""

    least: int
    most: int
    usual: int


def find_budget(cost: Cost, goals: StepGoals, decode: float, sizes: BudgetSizes) -> tuple[int, int]:
    """Most of one kind of work beside the least decode step, which takes ``decode`` seconds, and without one.

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
