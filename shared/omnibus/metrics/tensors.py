"""Metrics of tensors: transfers, and the shared memory that stores them."""

from functools import cache
from typing import Any

from prometheus_client import Counter

from omnibus.metrics.collectors import REGISTRY, CallbackMetric

#: Most pairs of components with their own labels.
MAX_EDGES = 512


class _Transfer:
    """Tensors sent from one component to the next, counted by the sender. ``gateway`` sends media."""

    #: Bytes written for another process.
    bytes = Counter("omnibus_transfer_bytes_total", "Bytes sent.", ["source", "target"], registry=REGISTRY)
    #: Seconds of these writes, including waits for space in the arena. If high per byte, the arena is full.
    seconds = Counter("omnibus_transfer_seconds_total", "Seconds of sending.", ["source", "target"], registry=REGISTRY)
    #: Number of these tensors, or of rows of growing ones.
    pieces = Counter("omnibus_transfers_total", "Tensors sent.", ["source", "target"], registry=REGISTRY)

    @cache  # noqa: B019
    def edge_counters(self, source: str, target: str) -> tuple[Any, Any, Any]:
        """Return the counters of bytes, seconds and pieces."""
        # A client that publishes on the bus itself can choose names of components.
        labels = (source, target) if self.edge_counters.cache_info().currsize < MAX_EDGES else ("other", "other")
        return self.bytes.labels(*labels), self.seconds.labels(*labels), self.pieces.labels(*labels)

    def count_transfer(self, source: str, target: str, size: int, seconds: float, pieces: int = 1) -> None:
        amounts = size, seconds, pieces
        for counter, value in zip(self.edge_counters(source, target), amounts, strict=True):
            counter.inc(value)


class _Arena:
    """Metrics of the node's shared memory, read from the sidecar's ledger."""

    #: Allocated bytes. If near the arena's size, raise OMNIBUS_SIDECAR_ARENA_MIB.
    used = CallbackMetric("omnibus_arena_used_bytes", "Bytes given out.")
    #: Bytes of empty blocks that processes keep for their next tensors. They are returned when idle, and before a
    #: tensor waits for space. Allocated bytes do not include them.
    spare = CallbackMetric("omnibus_arena_spare_bytes", "Bytes held for the next tensors.")
    #: Tensors that used such a block, and recalls of all of them for lack of space.
    spares_used = CallbackMetric("omnibus_arena_spares_used_total", "Tensors in blocks that were held ready.")
    spares_recalled = CallbackMetric("omnibus_arena_spares_recalled_total", "Recalls of blocks that were held ready.")
    #: Most bytes allocated at once, including blocks for next tensors.
    peak = CallbackMetric("omnibus_arena_peak_bytes", "Most bytes given out.")
    #: Size of the arena.
    size = CallbackMetric("omnibus_arena_size_bytes", "Size of the arena.")
    #: The largest free piece. If far below the free bytes, sizes of tensors differ much: use a larger arena.
    hole = CallbackMetric("omnibus_arena_largest_hole_bytes", "Largest free piece.")
    #: Leases. They must return to zero when no request is in flight, else a holder leaks.
    leases = CallbackMetric("omnibus_arena_leases", "Blocks given out.")
    #: Allocations that wait for space, and those that timed out.
    waiting = CallbackMetric("omnibus_arena_waiting", "Allocations that wait.")
    refused = CallbackMetric("omnibus_arena_refused_total", "Allocations without room.")
    #: Blocks freed by their deadline. If above 0, a process did not release them.
    expired = CallbackMetric("omnibus_arena_expired", "Blocks freed by deadline.")
    granted = CallbackMetric("omnibus_arena_granted_total", "Blocks given out so far.")
    #: Freed blocks by reason.
    freed = CallbackMetric("omnibus_arena_freed_total", "Blocks freed by reason.", ["reason"])
    #: Connected processes of this node, and those disconnected after a protocol error.
    clients = CallbackMetric("omnibus_arena_clients", "Connected processes.")
    dropped = CallbackMetric("omnibus_arena_dropped_clients_total", "Processes cut off.")


class _Nodes:
    """Metrics of tensors sent between nodes. The sidecar of the receiving node reports them."""

    #: Bytes pulled from each other node, and the seconds of these pulls. Few bytes per second mean a slow link.
    pulled = CallbackMetric("omnibus_node_pulled_bytes_total", "Bytes pulled from a node.", ["node"])
    seconds = CallbackMetric("omnibus_node_pull_seconds_total", "Seconds of pulling from a node.", ["node"])
    #: The part of those bytes that used UCX, and failed transfers over it, which TCP did instead.
    ucx = CallbackMetric("omnibus_node_ucx_bytes_total", "Bytes pulled from a node over UCX.", ["node"])
    ucx_failures = CallbackMetric("omnibus_node_ucx_failures_total", "Transfers over UCX that failed.", ["node"])
    #: Bytes that other nodes have pulled from this one.
    sent = CallbackMetric("omnibus_node_sent_bytes_total", "Bytes sent to other nodes.")
    #: Pulls that failed, by the code of the error.
    failures = CallbackMetric("omnibus_node_pull_failures_total", "Pulls that failed.", ["reason"])
    #: Closed connections. If above 0, a peer has another secret or version, or is not a node.
    refused = CallbackMetric("omnibus_node_refused_connections_total", "Connections cut off.", ["reason"])
    #: Bytes of the arena used by tensors of other nodes.
    mirrors = CallbackMetric("omnibus_node_mirror_bytes", "Bytes of tensors of other nodes.")
    #: 1 for a node that could not be reached at the last attempt.
    unreachable = CallbackMetric("omnibus_node_unreachable", "Nodes that cannot be reached.", ["node"])


TRANSFER = _Transfer()
NODES = _Nodes()
ARENA = _Arena()
