"""Metrics of a sidecar for Prometheus, from numbers that it counts anyway."""

from collections.abc import Callable, Mapping
from typing import Any

from omnibus.metrics import ARENA
from omnibus.metrics.collectors import Values

#: Metrics by the key of ``Sidecar.snapshot``.
_KEYS = {
    "used_bytes": ARENA.used,
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
#: Reasons that are alerted of: an increase is seen where there was a number before.
_BAD = {"expired": 0, "forced": 0}


def register_metrics(snapshot: Callable[[], Mapping[str, Any]]) -> None:
    """Let the metrics of this process be read from ``snapshot``, which is empty before the start."""

    def key_values(key: str) -> Callable[[], Values]:
        return lambda: {(): float(found[key])} if key in (found := snapshot()) else {}

    for key, metric in _KEYS.items():
        metric.set_values(key_values(key))
    ARENA.freed.set_values(
        lambda: {(why,): float(count) for why, count in (_BAD | snapshot().get("freed_total", {})).items()}
    )
