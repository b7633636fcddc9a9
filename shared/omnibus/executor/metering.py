"""What Prometheus asks of an executor that its runners know anyway; a number that one does not know is left out."""

from collections.abc import Callable, Mapping

from omnibus.executor.contract import Runner
from omnibus.metrics import ENGINE
from omnibus.told import Values

#: Metrics by the key of ``Runner.stats``.
_KEYS = {
    "waiting": ENGINE.waiting,
    "slots": ENGINE.slots,
    "used": ENGINE.used,
    "tokens": ENGINE.tokens,
    "prompt_tokens": ENGINE.prompt_tokens,
    "preempted": ENGINE.preempted,
    "kv_usage": ENGINE.kv,
    "restarts": ENGINE.restarts,
}
_PREFIX = {"queried": "prefix_queries", "found": "prefix_hits"}


def watch(runners: Mapping[str, Runner]) -> None:
    """Let the metrics of this process be read from the ``stats`` of ``runners``, which are named by component."""

    def told(key: str) -> Callable[[], Values]:
        return lambda: {
            (name,): float(stats[key])
            for name, one in runners.items()
            if isinstance((stats := one.stats()).get(key), int | float)
        }

    for key, metric in _KEYS.items():
        metric.by(told(key))
    ENGINE.prefix.by(
        lambda: {
            (name, how): float(stats[key])
            for name, one in runners.items()
            for how, key in _PREFIX.items()
            if key in (stats := one.stats())
        }
    )
    ENGINE.batches.by(lambda: {name: _sizes(one) for name, one in runners.items() if "batches" in one.stats()})


def _sizes(runner: Runner) -> dict[int, int]:
    return {int(size): count for size, count in runner.stats()["batches"].items()}
