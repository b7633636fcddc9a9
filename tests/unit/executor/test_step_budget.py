"""Budgets are the largest steps within the goals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.executor.step_budget import (
    ALPHA,
    NO_GOALS,
    BudgetSizes,
    CostTable,
    StepCosts,
    StepGoals,
    find_budget,
    largest_within_goal,
    measure_costs,
)


class MeasuredCost:
    """A cost of ``slope`` seconds per size, with the time of measuring."""

    def __init__(self, slope: float, base: float = 0.0) -> None:
        self.slope = slope
        self.base = base
        self.seconds: list[float] = []

    def __call__(self, size: int) -> float:
        self.seconds.append(self.base + self.slope * size)
        return self.seconds[-1]


@given(st.integers(1, 50), st.integers(1, 5000), st.integers(0, 6000))
def test_a_search_finds_the_largest_size_within_the_goal(low: int, high: int, goal: int):
    size = largest_within_goal(float, float(goal), low, max(low, high))

    assert size == min(max(goal, low), max(low, high))


def test_a_search_measures_little_beyond_the_goal():
    cost = MeasuredCost(0.001)

    assert largest_within_goal(cost, 0.3, 16, 1_000_000) in (299, 300)
    assert max(cost.seconds) <= 2 * 0.3
    assert len(cost.seconds) < 16


def test_a_goal_that_cannot_be_met_leaves_the_least():
    assert largest_within_goal(MeasuredCost(1.0), 0.5, 16, 4096) == 16
    assert largest_within_goal(MeasuredCost(1.0), -0.5, 16, 4096) == 16


def test_a_step_that_decodes_is_bound_by_the_time_between_tokens_less_the_decoding():
    beside, alone = find_budget(MeasuredCost(0.001), StepGoals(ttft=1.0, tbt=0.1), 0.0405, BudgetSizes(1, 4096, 512))

    assert (beside, alone) == (59, round(ALPHA * 1000))


@pytest.mark.parametrize(
    ("goals", "expected_sizes"),
    [
        (NO_GOALS, (512, 512)),
        (StepGoals(ttft=0.2), (100, 100)),
        (StepGoals(ttft=4.0), (512, 2000)),
        (StepGoals(tbt=0.1), (100, 512)),
        (StepGoals(tbt=2.0), (2000, 2000)),
    ],
)
def test_without_one_of_the_goals_the_usual_size_holds_within_the_other(
    goals: StepGoals, expected_sizes: tuple[int, int]
):
    # A quarter of a step above: products of floats are not exact.
    assert find_budget(MeasuredCost(0.001, -0.00025), goals, 0.0, BudgetSizes(1, 4096, 512)) == expected_sizes


POINTS = st.dictionaries(st.integers(1, 5000), st.integers(0, 4000), min_size=1, max_size=8)


@given(POINTS, st.integers(-10, 6000), st.integers(1, 8000))
def test_a_table_finds_the_largest_size_within_a_time(points: dict[int, int], limit: int, most: int):
    table = CostTable((size, seconds / 1000) for size, seconds in points.items())

    largest = table.largest_size(limit / 1000, most)

    assert 0 <= largest <= most
    assert not largest or table.seconds(largest) <= limit / 1000 + 1e-9
    assert largest == most or table.seconds(largest + 1) > limit / 1000 - 1e-9


@given(POINTS, st.integers(0, 6000), st.integers(0, 6000))
def test_more_never_costs_less(points: dict[int, int], one: int, other: int):
    table = CostTable((size, seconds / 1000) for size, seconds in points.items())

    assert table.seconds(min(one, other)) <= table.seconds(max(one, other)) + 1e-9
    assert (table.seconds(0), table.sizes) == (0.0, sorted(points))


def test_a_table_without_a_size_is_refused():
    with pytest.raises(ValueError, match="a table of costs needs a measured size"):
        CostTable([])


def test_costs_are_measured_in_doubles_and_not_far_beyond_the_goal():
    cost = MeasuredCost(0.001)

    assert measure_costs(cost, 16, 4096, 0.3).sizes == [16, 32, 64, 128, 256, 512]
    assert len(cost.seconds) == 6
    assert measure_costs(cost, 3, 20).sizes == [3, 6, 12, 20]
    assert measure_costs(cost, 1, 1).sizes == [1]


def test_what_is_left_of_a_step_depends_on_the_sequences_that_decode_in_it():
    costs = StepCosts(StepGoals(ttft=2.0, tbt=0.1), CostTable([(1, 0.02), (9, 0.1), (17, 0.18)]))

    assert costs.seconds_left(0) == ALPHA * 2.0
    assert costs.seconds_left(1) == pytest.approx(0.08)
    assert costs.seconds_left(5) == pytest.approx(0.04)
    assert costs.seconds_left(13) == pytest.approx(-0.04)
    assert costs._replace(goals=NO_GOALS).seconds_left(5) is None
