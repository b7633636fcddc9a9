"""Prometheus metrics of an executor, from ``Runner.stats``; missing numbers are omitted."""

from collections.abc import Callable, Mapping

from omnibus.executor.runner import Runner
from omnibus.metrics import ENGINE
from omnibus.metrics.collectors import Values

#: Metrics by the key of ``Runner.stats``.
_KEYS = {
    "waiting": ENGINE.waiting,
    "slots": ENGINE.slots,
    "used": ENGINE.used,
    "tokens": ENGINE.tokens,
    "restarts": ENGINE.restarts,
}


def watch_runners(runners: Mapping[str, Runner]) -> None:
    """Read this process's metrics from the ``stats`` of ``runners`` by component."""

    def stat_reader(key: str) -> Callable[[], Values]:
        return lambda: {
            (name,): float(stats[key])
            for name, one in runners.items()
            if isinstance((stats := one.stats()).get(key), int | float)
        }

    for key, metric in _KEYS.items():
        metric.set_values(stat_reader(key))
    ENGINE.batches.set_counts(
        lambda: {name: _batch_sizes(one) for name, one in runners.items() if "batches" in one.stats()}
    )


def _batch_sizes(runner: Runner) -> dict[int, int]:
    return {int(size): count for size, count in runner.stats()["batches"].items()}
