"""Gauges, counters and histograms computed at scrape time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

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
