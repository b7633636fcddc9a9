"""Metrics of a sidecar for Prometheus, from counters that it keeps anyway."""

from collections.abc import Callable, Mapping
from typing import Any

from omnibus.errors import NodeUnreachable, ProtocolError, Unauthorized
from omnibus.metrics import ARENA, NODES
from omnibus.metrics.collectors import Values

#: Metrics by the key of ``Sidecar.snapshot``.
_KEYS = {
    "used_bytes": ARENA.used,
    "spare_bytes": ARENA.spare,
    "spares_used_total": ARENA.spares_used,
    "spares_recalled_total": ARENA.spares_recalled,
    "peak_bytes": ARENA.peak,
    "arena_bytes": ARENA.size,
    "largest_hole_bytes": ARENA.hole,
    "blocks": ARENA.leases,
    "waiting": ARENA.waiting,
    "refused_total": ARENA.refused,
    "expired_total": ARENA.expired,
    "granted_total": ARENA.granted,
    "clients": ARENA.clients,
    "dropped_clients_total": ARENA.dropped,
}
#: The same for traffic between nodes; a sidecar of a single node has none of these.
_NODE_KEYS = {
    "sent_bytes_total": NODES.sent,
    "mirror_bytes": NODES.mirrors,
}
_LABELLED_KEYS = {
    "pulled_bytes_by_node": NODES.pulled,
    "pull_seconds_by_node": NODES.seconds,
    "ucx_bytes_by_node": NODES.ucx,
    "ucx_failures_by_node": NODES.ucx_failures,
    "pull_failures_total": NODES.failures,
    "refused_peers_total": NODES.refused,
    "unreachable_nodes": NODES.unreachable,
}
#: Reasons with an alert: Prometheus sees an increase only if the counter existed before.
_BAD = {"expired": 0, "forced": 0}
_BAD_BY_KEY: dict[str, dict[str, int]] = {
    "pull_failures_total": {NodeUnreachable.code: 0},
    "refused_peers_total": {Unauthorized.code: 0, ProtocolError.code: 0},
}


def register_metrics(snapshot: Callable[[], Mapping[str, Any]]) -> None:
    """Register the metrics of this process, read from ``snapshot``.

    ``snapshot`` is empty before the start.
    """

    def key_values(key: str) -> Callable[[], Values]:
        return lambda: {(): float(found[key])} if key in (found := snapshot()) else {}

    def labelled_values(key: str) -> Callable[[], Values]:
        def values() -> Values:
            bad_counts = snapshot().get(key)  # None on a single node
            counts = {} if bad_counts is None else _BAD_BY_KEY.get(key, {}) | bad_counts
            return {(label,): float(count) for label, count in counts.items()}

        return values

    for key, metric in _KEYS.items():
        metric.set_values(key_values(key))
    for key, metric in _NODE_KEYS.items():
        metric.set_values(key_values(key))
    for key, metric in _LABELLED_KEYS.items():
        metric.set_values(labelled_values(key))
    ARENA.freed.set_values(
        lambda: {(why,): float(count) for why, count in (_BAD | snapshot().get("freed_total", {})).items()}
    )
