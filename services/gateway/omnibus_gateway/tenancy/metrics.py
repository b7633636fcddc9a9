"""Prometheus metrics of admission; requests of several models count for each."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from omnibus.metrics import GATEWAY, TENANTS
from omnibus_gateway.tenancy.fair_queue import FairQueue


class ModelQueue(NamedTuple):
    """Queue of requests to one combination of ``models``."""

    models: tuple[str, ...]
    fair: FairQueue


def watch_queues(queues: Callable[[], Iterable[ModelQueue]]) -> None:
    """Register ``queues`` as the source of the gauges of admission."""
    TENANTS.waiting.set_values(lambda: _by_model((queue.models, queue.fair.waiting) for queue in queues()))
    TENANTS.working.set_values(lambda: _by_model((queue.models, queue.fair.working) for queue in queues()))


def count_refused(tenant: str, reason: str, *models: str) -> None:
    """Count a rejected request of ``tenant`` to ``models``."""
    TENANTS.refusal_counter(tenant, reason).inc()
    for model in models:
        GATEWAY.rejection_counter(model, reason).inc()


def observe_wait(seconds: float, models: Iterable[str]) -> None:
    """Record the seconds that a request to ``models`` waited."""
    for model in models:
        TENANTS.wait_histogram(model).observe(seconds)


def count_gpu_seconds(tenant: str, seconds: float) -> None:
    """Count the GPU-seconds of an ended request of ``tenant``."""
    TENANTS.gpu_seconds(tenant).inc(seconds)


def _by_model(counts: Iterable[tuple[tuple[str, ...], int]]) -> Counter[tuple[str, ...]]:
    totals: Counter[tuple[str, ...]] = Counter()
    for models, count in counts:
        for model in models:
            totals[model,] += count
    return totals
