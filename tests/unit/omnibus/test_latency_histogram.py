"""Latency histograms that gateways count and planners add up."""

import random

import pytest

from omnibus.cluster.latency_histogram import LatencyHistogram, bucket_number, count_figures, merge_figures


def count_values(values: list[float]) -> dict[int, int]:
    counts = count_figures({"done": value} for value in values)["done"]
    assert {bucket_number(value) for value in values} == set(counts)
    return counts


@pytest.mark.parametrize("part", [0.5, 0.9, 0.99])
def test_percentiles_of_added_counts_are_within_three_per_cent_of_those_of_all_values(part: float):
    draw = random.Random(7)
    values = sorted(draw.lognormvariate(-1.0, 1.5) for _ in range(4000))
    figures: dict[str, LatencyHistogram] = {}
    for begin in range(0, 4000, 500):
        merge_figures(figures, {"done": count_values(values[begin : begin + 500])}.items())

    assert figures["done"].total == 4000
    assert figures["done"].percentile(part) == pytest.approx(values[int(part * 4000) - 1], rel=0.03)


def test_nothing_has_no_percentile_and_is_within_any_goal_and_very_short_is_counted():
    empty = LatencyHistogram()
    assert (empty.percentile(0.5), empty.share_within(1.0)) == (0.0, 1.0)
    assert LatencyHistogram(count_values([0.0, -1.0, 1e-9])).percentile(0.99) < 2e-4


def test_the_share_within_a_goal():
    histogram = LatencyHistogram(count_values([0.1] * 3 + [2.0]))
    assert [histogram.share_within(seconds) for seconds in (0.05, 0.5, 3.0)] == [0.0, 0.75, 1.0]
