"""Prometheus metrics of admission: requests that several models serve together count for each of them."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from omnibus.metrics import GATEWAY, TENANTS
from services.gateway.tenancy.fair_queue import FairQueue


class ModelQueue(NamedTuple):
    """Queue of requests to a model, or to ``models`` that serve them together."""

    models: tuple[str, ...]
    fair: FairQueue


def watch_queues(queues: Callable[[], Iterable[ModelQueue]]) -> None:
    """Let who waits and who works be read from these."""
    TENANTS.waiting.set_values(lambda: _by_model((queue.models, queue.fair.waiting) for queue in queues()))
    TENANTS.working.set_values(lambda: _by_model((queue.models, queue.fair.working) for queue in queues()))


def count_refused(tenant: str, reason: str, *models: str) -> None:
    """Count a request of ``tenant`` to ``models`` that was refused."""
    TENANTS.refusal_counter(tenant, reason).inc()
    for model in models:
        GATEWAY.rejection_counter(model, reason).inc()


def observe_wait(seconds: float, models: Iterable[str]) -> None:
    """Count how long a request to ``models`` waited."""
    for model in models:
        TENANTS.wait_histogram(model).observe(seconds)


def count_gpu_seconds(tenant: str, seconds: float) -> None:
    """Count the GPU-seconds of a request of ``tenant`` that is over."""
    TENANTS.gpu_seconds(tenant).inc(seconds)


def _by_model(counts: Iterable[tuple[tuple[str, ...], int]]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for models, count in counts:
        for model in models:
            found[model,] += count
    return found
