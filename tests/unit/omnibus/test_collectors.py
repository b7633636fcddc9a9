"""Metrics computed at scrape time."""

from collections.abc import Iterator

import pytest
from prometheus_client import Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, DuplicateTimeseries

from omnibus.metrics.collectors import REGISTRY, CallbackMetric, SizeHistogram, TallyCounter, TallyHistogram


@pytest.fixture
def collectors() -> Iterator[list[Collector]]:
    metrics: list[Collector] = []
    yield metrics
    for each in metrics:
        REGISTRY.unregister(each)


def list_lines(name: str) -> list[str]:
    return [line for line in generate_latest(REGISTRY).decode().splitlines() if line.startswith(name)]


def test_a_gauge_is_asked_for_at_each_scrape(collectors: list[Collector]):
    gauge = CallbackMetric("test_told_bytes", "Some.", ["kind"])
    collectors.append(gauge)
    values = {("a",): 1, ("b",): 2.5}
    gauge.set_values(lambda: values)

    first = list_lines("test_told_bytes")
    values[("a",)] = 7

    assert first == ['test_told_bytes{kind="a"} 1.0', 'test_told_bytes{kind="b"} 2.5']
    assert list_lines("test_told_bytes")[0] == 'test_told_bytes{kind="a"} 7.0'


def test_a_name_that_ends_in_total_is_a_counter(collectors: list[Collector]):
    collectors.append(counter := CallbackMetric("test_told_total", "Some."))
    counter.set_value(lambda: 3)

    assert list_lines("test_told") == ["test_told_total 3.0"]
    assert list_lines("# TYPE test_told") == ["# TYPE test_told_total counter"]


def test_nobody_asked_means_no_values(collectors: list[Collector]):
    collectors.append(gauge := CallbackMetric("test_told_silent", "Some."))
    gauge.set_value(lambda: 1)
    gauge.set_values(None)

    assert list_lines("test_told_silent") == []


def test_two_metrics_cannot_have_one_name(collectors: list[Collector]):
    collectors.append(CallbackMetric("test_told_twice", "Some."))

    with pytest.raises(DuplicateTimeseries):
        CallbackMetric("test_told_twice", "Some.")


def test_sizes_become_a_histogram(collectors: list[Collector]):
    collectors.append(sizes := SizeHistogram("test_told_size", "Some.", "part", (1, 2, 4)))
    sizes.set_counts(lambda: {"x": {1: 3, 3: 2, 9: 1}})

    assert list_lines("test_told_size") == [
        'test_told_size_bucket{le="1.0",part="x"} 3.0',
        'test_told_size_bucket{le="2.0",part="x"} 3.0',
        'test_told_size_bucket{le="4.0",part="x"} 5.0',
        'test_told_size_bucket{le="+Inf",part="x"} 6.0',
        'test_told_size_count{part="x"} 6.0',
        'test_told_size_sum{part="x"} 18.0',
    ]


def test_a_tally_counts_by_labels(collectors: list[Collector]):
    collectors.append(counter := TallyCounter("test_tallied_total", "Some.", ["kind"]))
    counter.labels("a").inc()
    counter.labels("a").inc(2.5)
    counter.labels("b").inc(0)

    assert list_lines("test_tallied") == ['test_tallied_total{kind="a"} 3.5', 'test_tallied_total{kind="b"} 0.0']


def test_a_histogram_of_tallies_is_as_that_of_the_library(collectors: list[Collector]):
    tally = TallyHistogram("test_tallied_seconds", "Some.", ["kind"], (0.1, 0.5, 2.5))
    histogram = Histogram("test_library_seconds", "Some.", ["kind"], buckets=(0.1, 0.5, 2.5), registry=REGISTRY)
    collectors += [tally, histogram]
    for value in (0.05, 0.1, 0.3, 2.5, 7.0):
        tally.labels("a").observe(value)
        histogram.labels("a").observe(value)

    expected_lines = [
        line.replace("library", "tallied") for line in list_lines("test_library_seconds") if "_created" not in line
    ]
    assert list_lines("test_tallied_seconds") == expected_lines
