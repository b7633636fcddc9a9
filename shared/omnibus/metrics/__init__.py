"""Metrics of all services: name, labels, meaning and remedy. Seconds and bytes, Prometheus style.

Labels are looked up once and kept, so that the hot path only adds. A ``CallbackMetric`` reads a value that the service
counts anyway. It is read at each scrape and costs nothing before. Every gauge without labels is one, else each process
would report a 0.

Labels have few values. Models, request types, paths and options are those of a plan, and components those of a model.
Apps are registered, codes are those of ``omnibus.errors``, and operators create tenants with keys (``omnibus keys``). A
value that a client can choose is never a label, and neither is an id.
"""

from prometheus_client.exposition import generate_latest

from omnibus.metrics.collectors import PROCESS, REGISTRY
from omnibus.metrics.executor import ARENA, ENCODER, ENGINE, EXECUTOR, MAX_EDGES, NODES, TRANSFER
from omnibus.metrics.gateway import GATEWAY
from omnibus.metrics.planner import PLANNER, STREAMS
from omnibus.metrics.tenants import TENANTS

__all__ = [
    "ARENA",
    "ENCODER",
    "ENGINE",
    "EXECUTOR",
    "GATEWAY",
    "MAX_EDGES",
    "NODES",
    "PLANNER",
    "PROCESS",
    "REGISTRY",
    "STREAMS",
    "TENANTS",
    "TRANSFER",
    "render_exposition",
]


def render_exposition() -> bytes:
    """Return all metrics of this process in the Prometheus text format."""
    return generate_latest(REGISTRY)
