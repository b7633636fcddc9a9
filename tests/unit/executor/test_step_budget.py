"""Budgets are the largest steps within the goals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.executor.step_budget import ALPHA, NO_GOALS, BudgetSizes, StepGoals, find_budget, largest_within_goal


class Measured:
    """A cost of ``slope`` seconds per size, that counts what measuring it took."""

    def __init__(self, slope: float, base: float = 0.0) -> None:
        self.slope = slope
        self.base = base
        self.seconds: list[float] = []

    def __call__(self, size: int) -> float:
        self.seconds.append(self.base + self.slope * size)
        return self.seconds[-1]


@given(st.integers(1, 50), st.integers(1, 5000), st.integers(0, 6000))
def test_a_search_finds_the_largest_size_within_the_goal(low: int, high: int, goal: int):
    found = largest_within_goal(float, float(goal), low, max(low, high))

    assert found == min(max(goal, low), max(low, high))


def test_a_search_measures_little_beyond_the_goal():
    cost = Measured(0.001)

    assert largest_within_goal(cost, 0.3, 16, 1_000_000) in (299, 300)
    assert max(cost.seconds) <= 2 * 0.3
    assert len(cost.seconds) < 16


def test_a_goal_that_cannot_be_met_leaves_the_least():
    assert largest_within_goal(Measured(1.0), 0.5, 16, 4096) == 16
    assert largest_within_goal(Measured(1.0), -0.5, 16, 4096) == 16


def test_a_step_that_decodes_is_bound_by_the_time_between_tokens_less_the_decoding():
    beside, alone = find_budget(Measured(0.001), StepGoals(ttft=1.0, tbt=0.1), 0.0405, BudgetSizes(1, 4096, 512))

    assert (beside, alone) == (59, round(ALPHA * 1000))


@pytest.mark.parametrize(
    ("goals", "expected"),
    [
        (NO_GOALS, (512, 512)),
        (StepGoals(ttft=0.2), (100, 100)),
        (StepGoals(ttft=4.0), (512, 2000)),
        (StepGoals(tbt=0.1), (100, 512)),
        (StepGoals(tbt=2.0), (2000, 2000)),
    ],
)
def test_without_one_of_the_goals_the_usual_size_holds_within_the_other(goals: StepGoals, expected: tuple[int, int]):
    # A quarter of a step above: products of floats are not exact.
    assert find_budget(Measured(0.001, -0.00025), goals, 0.0, BudgetSizes(1, 4096, 512)) == expected
