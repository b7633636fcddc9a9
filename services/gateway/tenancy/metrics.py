"""Prometheus metrics of admission: requests that several models serve together count for each of them."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from omnibus.metrics import GATEWAY, TENANTS
from services.gateway.tenancy.fair_queue import Fair


class Queue(NamedTuple):
    """Queue of requests to a model, or to ``models`` that serve them together."""

    models: tuple[str, ...]
    fair: Fair


def watch(queues: Callable[[], Iterable[Queue]]) -> None:
    """Let who waits and who works be read from these."""
    TENANTS.waiting.by(lambda: _by_model((queue.models, queue.fair.waiting) for queue in queues()))
    TENANTS.working.by(lambda: _by_model((queue.models, queue.fair.working) for queue in queues()))


def refused(tenant: str, reason: str, *models: str) -> None:
    """Count a request of ``tenant`` to ``models`` that was refused."""
    TENANTS.refusals(tenant, reason).inc()
    for model in models:
        GATEWAY.refused(model, reason).inc()


def waited(seconds: float, models: Iterable[str]) -> None:
    """Count how long a request to ``models`` waited."""
    for model in models:
        TENANTS.waits(model).observe(seconds)


def used(tenant: str, seconds: float) -> None:
    """Count the GPU-seconds of a request of ``tenant`` that is over."""
    TENANTS.gpu_seconds(tenant).inc(seconds)


def _by_model(counts: Iterable[tuple[tuple[str, ...], int]]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for models, count in counts:
        for model in models:
            found[model,] += count
    return found
