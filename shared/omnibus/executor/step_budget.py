"""Costs of steps by their size, and the budgets that goals leave. No clock here.

When an engine starts, it measures steps of 1, 2, 4, ... decoding sequences. It also measures prompts and media of
doubling sizes, up to about twice the goal. Every step then holds as much as fits next to its decoding sequences:
cost(decode of n) + cost(prefill of m) <= time between tokens. Method: TriInfer, algorithm 1. That algorithm finds one
size for each kind of work, so it must assume the largest possible number of sequences.
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
    """Latency goals in seconds: time to the first token, and between two tokens. 0 means no goal."""

    ttft: float = 0.0
    tbt: float = 0.0

    @property
    def first_step_seconds(self) -> float:
        """Most seconds of a step without decoding sequences; 0 means no goal."""
        return ALPHA * self.ttft

    def __bool__(self) -> bool:
        return self.ttft > 0 or self.tbt > 0


#: No goal: work is divided by fixed sizes.
NO_GOALS = StepGoals()


class CostTable:
    """Measured seconds of a step's work by its size, interpolated linearly.

    Sizes beyond the largest are extrapolated; sizes below the smallest cost as much as the smallest. A larger size
    never costs less: a measurement with a lower cost means that an earlier one was disturbed.
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
        """Return the seconds of work of ``size``; 0 for size 0."""
        if size <= 0:
            return 0.0
        if size <= self._sizes[0]:
            return self._seconds[0]
        at = min(bisect_left(self._sizes, size), len(self._sizes) - 1)
        return self._seconds[at] + (size - self._sizes[at]) * self._slope(at)

    def largest_size(self, seconds: float, most: int) -> int:
        """Return the largest size up to ``most`` within ``seconds``, or 0."""
        if seconds < self._seconds[0]:
            return 0
        at = min(bisect_right(self._seconds, seconds), len(self._sizes) - 1)
        slope = self._slope(at)
        if slope <= 0:
            return most
        # Seconds are sums of floats: a size that is a billionth below an integer means that integer.
        return min(most, floor(self._sizes[at] + (seconds - self._seconds[at]) / slope + 1e-9))

    def _slope(self, at: int) -> float:
        """Return the slope of the line to point ``at``; the first starts at 0."""
        if at == 0:
            return self._seconds[0] / self._sizes[0]
        return (self._seconds[at] - self._seconds[at - 1]) / (self._sizes[at] - self._sizes[at - 1])


def measure_costs(cost: Cost, low: int, high: int, goal: float = inf) -> CostTable:
    """Measure ``low``, its doubles and ``high`` until one takes more than ``goal``."""
    points = [(low, cost(low))]
    while points[-1][0] < high and points[-1][1] <= goal:
        size = min(2 * points[-1][0], high)
        points.append((size, cost(size)))
    return CostTable(points)


class StepCosts(NamedTuple):
    """Goals, and seconds of a decode step by its number of sequences.

    ``decode`` is None if nothing decodes here.
    """

    goals: StepGoals = NO_GOALS
    decode: CostTable | None = None

    def seconds_left(self, decoding: int) -> float | None:
        """Return the seconds for prompts and media next to ``decoding`` sequences.

        None if the step has no goal. Negative if the sequences alone take longer than the goal.
        """
        goal = self.goals.tbt if decoding else self.goals.first_step_seconds
        if not goal:
            return None
        return goal - (self.decode.seconds(decoding) if self.decode is not None else 0.0)


#: No goal, and nothing measured.
NO_COSTS = StepCosts()


class BudgetSizes(NamedTuple):
    """Sizes of a budget: ``least`` and ``most`` in a step, and ``usual`` without a goal."""

    least: int
    most: int
    usual: int


def find_budget(cost: Cost, goals: StepGoals, decode: float, sizes: BudgetSizes) -> tuple[int, int]:
    """Return the budgets of a kind of work with and without decoding.

    The least decode step takes ``decode`` seconds. A step with decoding sequences is bound by the time between tokens,
    any other by the time to the first token.
    """
    least, most, usual = sizes
    beside = largest_within_goal(cost, goals.tbt - decode, least, most) if goals.tbt else usual
    alone = largest_within_goal(cost, goals.first_step_seconds, least, most) if goals.ttft else max(usual, beside)
    return (beside if goals.tbt else min(usual, alone)), alone


def largest_within_goal(cost: Cost, goal: float, low: int, high: int) -> int:
    """Return the largest size within ``goal``, from ``low`` to ``high``.

    ``low`` if that is also too large: an unreachable goal must not stop the work.
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
