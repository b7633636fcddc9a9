"""The other nodes, as their sidecars' status events report them.

Gateways also publish here the ends of invocations that used this node.
"""

import asyncio
import logging
import time

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.heartbeats import NODE_HEARTBEAT_SECONDS
from omnibus.bus.messages import NodeStatus
from omnibus.errors import BusUnavailable, ProtocolError
from omnibus_sidecar.peers.dialler import PeerAddress
from omnibus_sidecar.server import Sidecar

log = logging.getLogger(__name__)

#: Difference between two nodes' clocks at which deadlines are noticeably wrong.
MAX_SKEW_SECONDS = 0.5


class PeerDiscovery:
    """Publishes the address of this node, and collects those of others.

    Addresses come from these events and never from a handle: a forged handle must not make a sidecar dial an arbitrary
    host. A node that stops reporting keeps its address. The next pull from it shows if it is reachable.
    """

    def __init__(self, bus: Bus, sidecar: Sidecar, host: str) -> None:
        """Create the discovery; ``host`` is the address at which others reach this node."""
        self._bus = bus
        self._sidecar = sidecar
        self._host = host
        self._skewed: set[str] = set()
        self._draining = False
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        bus, node = self._bus, self._sidecar.settings.node
        await bus.subscribe(subjects.event_subject(subjects.NODE), self._on_status)
        await bus.subscribe(subjects.event_subject(subjects.CENSUS), lambda delivery: self.publish_status())
        await bus.subscribe(subjects.node_subject(node), self._on_end)
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

    def begin_drain(self) -> None:
        """Stop gateways from sending more work to this node."""
        self._draining = True
        self.publish_status()

    async def close(self) -> None:
        """Report to the other nodes that this sidecar is gone."""
        if self._beating is not None:
            self._beating.cancel()
        self._publish("gone")

    def publish_status(self) -> None:
        self._publish("draining" if self._draining else "ready")

    def _publish(self, state: str) -> None:
        plane = self._sidecar.peers
        if plane is None:
            return
        counters = self._sidecar.snapshot()
        status = NodeStatus(
            node=self._sidecar.settings.node,
            host=self._host,
            port=plane.port,
            boot=plane.boot,
            state=state,
            transport=plane.transport,
            unreachable=tuple(sorted(plane.unreachable)),
            pulled=dict(plane.pulled_bytes),
            seconds=dict(plane.pull_seconds),
            used=counters["used_bytes"],
            size=counters["arena_bytes"],
            now=time.time(),
        )
        try:
            self._bus.publish(subjects.event_subject(subjects.NODE), messages.encode(status))
        except BusUnavailable as error:
            log.debug("status not sent: %s", error)

    async def _beat(self) -> None:
        while True:
            self.publish_status()
            await asyncio.sleep(NODE_HEARTBEAT_SECONDS)

    def _on_status(self, delivery: Delivery) -> None:
        plane = self._sidecar.peers
        try:
            status = messages.decode_node(delivery.data)
        except ProtocolError as error:
            log.warning("%s", error)
            return
        if plane is None or status.node == self._sidecar.settings.node:
            self._warn_of_namesake(status)
            return
        if status.state == "gone":
            known_address = plane.addresses.get(status.node)
            if known_address is not None and known_address.boot == status.boot:
                del plane.addresses[status.node]
            return
        plane.addresses[status.node] = PeerAddress(status.host, status.port, status.boot)
        self._check_clock(status)

    def _warn_of_namesake(self, status: NodeStatus) -> None:
        plane = self._sidecar.peers
        if plane is not None and status.boot > plane.boot and status.state != "gone":
            log.error(
                "another sidecar also has the name %r: set a different OMNIBUS_SIDECAR_NODE on each node", status.node
            )

    def _check_clock(self, status: NodeStatus) -> None:
        skew = status.now - time.time()
        if abs(skew) <= MAX_SKEW_SECONDS:
            self._skewed.discard(status.node)
        elif status.node not in self._skewed:
            self._skewed.add(status.node)
            log.warning(
                "the clock of node %s is off by %.1f s, and so are deadlines there: synchronize the clocks",
                status.node,
                skew,
            )

    def _on_end(self, delivery: Delivery) -> None:
        """End an invocation that used this node."""
        try:
            self._sidecar.end_invocation(messages.decode_end(delivery.data).inv)
        except ProtocolError as error:
            log.warning("%s", error)
