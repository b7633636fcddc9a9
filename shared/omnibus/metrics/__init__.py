"""Every metric: name, labels, meaning and what to do about it. Seconds and bytes, Prometheus style.

Labels are looked up once and kept, so that the hot path only adds. What is counted anyway is a ``CallbackMetric``: it
is read when Prometheus asks, and costs nothing until then; so is every gauge without labels, else each process would
say that it is 0. Labels have few values: models, request types, paths and options are a plan's, apps are registered,
components a model's, codes those of ``omnibus.errors``, tenants those that the operator gave keys (``omnibus keys``).
Nothing that a client makes up, and no id, is one.
"""

from prometheus_client.exposition import generate_latest

from omnibus.metrics.collectors import REGISTRY
from omnibus.metrics.executor import ENCODER, ENGINE, EXECUTOR
from omnibus.metrics.gateway import GATEWAY
from omnibus.metrics.planner import PLANNER, STREAMS
from omnibus.metrics.process import PROCESS
from omnibus.metrics.tenants import TENANTS
from omnibus.metrics.tensors import ARENA, MAX_EDGES, NODES, TRANSFER

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
    """All metrics of this process in the Prometheus text format."""
    return generate_latest(REGISTRY)
