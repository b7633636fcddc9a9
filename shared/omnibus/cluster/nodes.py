"""Nodes and their links, from the status events of sidecars. Only ``listen`` does I/O."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from omnibus.bus import Bus, subjects
from omnibus.bus.census import Census
from omnibus.bus.heartbeats import NODE_ABSENT_SECONDS, NODE_FORGOTTEN_SECONDS
from omnibus.bus.messages import NodeStatus
from omnibus.cluster.presence import PresenceTracker, follow_events

#: Events with the status of a node.
NODE_EVENTS = (subjects.NODE, subjects.NODE_BEAT)
#: Seconds over which rates of links are computed.
RATE_WINDOW_SECONDS = 5.0


class NodeState(NamedTuple):
    """State of one node. ``started`` is the start of its sidecar, in Unix seconds by the node's own clock."""

    node: str
    address: str  # host:port
    state: str  # ready | draining | gone
    transport: str  # tcp | tls | ucx
    started: float
    used: int  # bytes of its arena
    size: int


class NodeLink(NamedTuple):
    """Pulls of ``reader`` from ``source`` since ``reader`` started. ``rate`` is None before the second report."""

    source: str
    reader: str
    nbytes: int
    seconds: float  # of the pulls
    rate: float | None  # bytes per second
    unreachable: bool
    transport: str


class _NodeHistory:
    """Last status of one node, and its pulls in the last seconds."""

    def __init__(self) -> None:
        self.status: NodeStatus
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def add_status(self, status: NodeStatus, now: float) -> None:
        self.status = status
        self._samples.append((now, status.pulled))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def pull_rate(self, source: str) -> float | None:
        """Return the bytes per second from ``source``."""
        (began, before), (end, after) = self._samples[0], self._samples[-1]
        if end <= began:
            return None
        return (after.get(source, 0) - before.get(source, 0)) / (end - began)


class NodeDirectory:
    """Nodes by name. One that is silent for ``NODE_ABSENT_SECONDS`` counts as gone, and is forgotten later.

    Sidecars without ``OMNIBUS_SIDECAR_HOST`` send no status: the directory of such an installation is empty.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known = PresenceTracker[_NodeHistory](NODE_FORGOTTEN_SECONDS, clock)
        #: Nodes that must get no new work, and pairs (reader, source) in which the last attempt of the reader to pull
        #: from the source failed. Renewed with every status event.
        self.draining: frozenset[str] = frozenset()
        self.cuts: frozenset[tuple[str, str]] = frozenset()

    async def listen(self, bus: Bus) -> list[Callable[[], Awaitable[None]]]:
        """Follow status events, starting with those of all nodes. Returns functions that end this."""
        census = Census(bus, subjects.NODE)
        ends = await follow_events(bus, dict.fromkeys(NODE_EVENTS, self.handle_status), census=census)
        census.ask()
        return ends

    def handle_status(self, status: NodeStatus) -> None:
        """Handle a status event. Late events of a restarted sidecar are ignored."""
        existing = self._known.get(status.node)
        is_restarted = existing is not None and existing.status.boot != status.boot
        if existing is not None and is_restarted:
            if status.boot < existing.status.boot and not self.is_gone(status.node):
                return
            existing = None
        history = existing or _NodeHistory()
        history.add_status(status, self._clock())
        self._known.record(status.node, history)
        self._note_faults()

    def _note_faults(self) -> None:
        statuses = [each.status for each in self._known.entries().values()]
        self.draining = frozenset(status.node for status in statuses if status.state == "draining")
        self.cuts = frozenset((status.node, source) for status in statuses for source in status.unreachable)

    def nodes(self) -> list[NodeState]:
        """Return all nodes by name, including those that ended recently."""
        return [
            NodeState(
                node=node,
                address=f"{each.status.host}:{each.status.port}",
                state="gone" if self.is_gone(node) else each.status.state,
                transport=each.status.transport,
                started=each.status.boot / 1e6,
                used=each.status.used,
                size=each.status.size,
            )
            for node, each in sorted(self._known.entries().items())
        ]

    def links(self) -> list[NodeLink]:
        """Return the ordered pairs of nodes with pulls or failures, by name.

        Readers that are gone have none.
        """
        return [
            link
            for reader, history in sorted(self._known.entries().items())
            if not self.is_gone(reader)
            for link in _reader_links(history)
        ]

    def is_gone(self, node: str) -> bool:
        """Return whether ``node`` was known, and has ended or become silent."""
        history = self._known.get(node)
        if history is None:
            return False
        return history.status.state == "gone" or self._known.last_seen(node) < self._clock() - NODE_ABSENT_SECONDS


def _reader_links(history: _NodeHistory) -> Iterator[NodeLink]:
    status = history.status
    for source in sorted({*status.pulled, *status.unreachable}):
        yield NodeLink(
            source=source,
            reader=status.node,
            nbytes=status.pulled.get(source, 0),
            seconds=status.seconds.get(source, 0.0),
            rate=history.pull_rate(source),
            unreachable=source in status.unreachable,
            transport=status.transport,
        )
