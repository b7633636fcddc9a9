"""Gauges, counters and histograms computed at scrape time.

Bounds that several histograms share.

Counters and histograms for the hot path: requests add to numbers, and samples are computed at each scrape.

Those of ``prometheus_client`` take a lock and check arguments each time, for use in threads. These belong to the event
loop of their process.

Metrics that every service exports.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

#: All metrics of this process. It includes memory, CPU seconds and open files.
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

#: Values by labels, in the order of their names.
Values = Mapping[Any, float]


class CallbackMetric(Collector):
    """Gauge whose values are read at each scrape. It is a counter if its name ends in ``_total``.

    ``set_values`` sets the function that reads them, in the thread of the event loop. Without one, or after
    ``set_values(None)``, there are no values.
    """

    def __init__(self, name: str, help: str, labels: Iterable[str] = ()) -> None:
        self._about = (name, help, tuple(labels))
        self._read: Callable[[], Values] | None = None
        REGISTRY.register(self)

    def set_values(self, read: Callable[[], Values] | None) -> None:
        self._read = read

    def set_value(self, read: Callable[[], float]) -> None:
        """Set the function that reads the value, for a metric without labels."""
        self.set_values(lambda: {(): read()})

    def describe(self) -> Iterator[Metric]:
        yield self._metric_family()

    def collect(self) -> Iterator[Metric]:
        family = self._metric_family()
        for labels, value in (self._read() if self._read is not None else {}).items():
            family.add_metric(labels, value)
        yield family

    def _metric_family(self) -> "CounterMetricFamily | GaugeMetricFamily":
        name, help, labels = self._about
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        return kind(name, help, labels=labels)


class SizeHistogram(Collector):
    """Histogram of whole numbers, computed at each scrape from counts by size. ``set_counts`` sets the function that
    returns these for each label."""

    def __init__(self, name: str, help: str, label: str, bounds: Iterable[int]) -> None:
        self._about = (name, help)
        self._label = label
        self._bounds = tuple(bounds)
        self._read: Callable[[], Mapping[str, Mapping[int, int]]] | None = None
        REGISTRY.register(self)

    def set_counts(self, read: Callable[[], Mapping[str, Mapping[int, int]]] | None) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        yield HistogramMetricFamily(*self._about, labels=(self._label,))

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(*self._about, labels=(self._label,))
        for label, counts in (self._read() if self._read is not None else {}).items():
            below = [(str(float(most)), sum(n for size, n in counts.items() if size <= most)) for most in self._bounds]
            total = sum(size * n for size, n in counts.items())
            family.add_metric([label], [*below, ("+Inf", sum(counts.values()))], total)
        yield family


LATENCY_BUCKETS_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


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


class _Process:
    """Metrics of every service."""

    #: Whether the connection to NATS is up, and the number of reconnects. Work in flight during one ran again.
    bus = CallbackMetric("omnibus_bus_connected", "Whether NATS is there.")
    reconnects = CallbackMetric("omnibus_bus_reconnects_total", "Times that the connection was restored.")
    #: Messages and bytes to and from NATS.
    messages = CallbackMetric("omnibus_bus_messages_total", "Messages.", ["direction"])
    bytes = CallbackMetric("omnibus_bus_bytes_total", "Bytes.", ["direction"])
    #: 1 from the start of the service until it drains.
    ready = Gauge("omnibus_ready", "Whether this service is ready.", ["service"], registry=REGISTRY)
    #: Always 1; the version of this process.
    build = Gauge("omnibus_build_info", "This build.", ["service", "version"], registry=REGISTRY)


PROCESS = _Process()
