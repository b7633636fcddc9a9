"""Counters and histograms for the hot path: requests add to numbers, and samples are computed at each scrape.

Those of ``prometheus_client`` take a lock and check arguments each time, for use in threads. These belong to the event
loop of their process.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from omnibus.metrics.collectors import REGISTRY


class Tally:
    """Number that grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``."""
        self.value += amount


class Distribution:
    """Counts of values by bucket, and the sum of the values."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class TallyCounter(Collector):
    """Counter with labels."""

    def __init__(self, name: str, help: str, labels: Iterable[str] = ()) -> None:
        self._about = (name, help, tuple(labels))
        self._tallies: dict[tuple[str, ...], Tally] = {}
        REGISTRY.register(self)

    def labels(self, *values: str) -> Tally:
        """Return the number with these values of the labels."""
        return self._tallies.setdefault(values, Tally())

    def describe(self) -> Iterator[Metric]:
        yield self._metric_family()

    def collect(self) -> Iterator[Metric]:
        family = self._metric_family()
        for labels, tally in self._tallies.items():
            family.add_metric(labels, tally.value)
        yield family

    def _metric_family(self) -> CounterMetricFamily:
        name, help, labels = self._about
        return CounterMetricFamily(name, help, labels=labels)


class TallyHistogram(Collector):
    """Histogram with labels. ``buckets`` are the largest values of each bucket, in ascending order."""

    def __init__(self, name: str, help: str, labels: Iterable[str], buckets: Iterable[float]) -> None:
        self._about = (name, help, tuple(labels))
        self._bounds = tuple(map(float, buckets))
        self._distributions: dict[tuple[str, ...], Distribution] = {}
        REGISTRY.register(self)

    def labels(self, *values: str) -> Distribution:
        """Return the distribution with these values of the labels."""
        distribution = self._distributions.get(values)
        if distribution is None:
            distribution = self._distributions[values] = Distribution(self._bounds)
        return distribution

    def describe(self) -> Iterator[Metric]:
        yield self._metric_family()

    def collect(self) -> Iterator[Metric]:
        family = self._metric_family()
        for labels, distribution in self._distributions.items():
            below, buckets = 0, []
            for bound, count in zip((*self._bounds, float("inf")), distribution.counts, strict=True):
                below += count
                buckets.append((floatToGoString(bound), below))
            family.add_metric(labels, buckets, distribution.total)
        yield family

    def _metric_family(self) -> HistogramMetricFamily:
        name, help, labels = self._about
        return HistogramMetricFamily(name, help, labels=labels)
