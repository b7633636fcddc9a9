"""Metrics that nobody keeps: what somebody counts anyway is read when Prometheus asks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

#: All metrics of this process; memory, CPU seconds and open files come by themselves.
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

#: Values by labels, in the order of their names.
Values = Mapping[Any, float]


class CallbackMetric(Collector):
    """A gauge, or with a name that ends in ``_total`` a counter, whose values are asked for at each scrape.

    ``by`` says whom to ask, in the thread of the event loop. Without one, or after ``by(None)``, there are no values.
    """

    def __init__(self, name: str, help: str, labels: Iterable[str] = ()) -> None:
        self._about = (name, help, tuple(labels))
        self._read: Callable[[], Values] | None = None
        REGISTRY.register(self)

    def set_values(self, read: Callable[[], Values] | None) -> None:
        self._read = read

    def set_value(self, read: Callable[[], float]) -> None:
        """The same for a metric without labels."""
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
    """A histogram of whole numbers, made at each scrape of counts by size, as ``by`` says them for each label."""

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
