"""The sidecar as a service: settings from the environment, counters to Prometheus.

Metrics of a sidecar for Prometheus, from counters that it keeps anyway.

The other nodes, as their sidecars' status events report them.

Gateways also publish here the ends of invocations that used this node.
"""

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from omnibus import settings as environment
from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.census import Census, find_answer_subject
from omnibus.bus.heartbeats import NODE_HEARTBEAT_SECONDS
from omnibus.bus.messages import NodeStatus
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest, BusUnavailable, NodeUnreachable, ProtocolError, Unauthorized
from omnibus.metrics import ARENA, NODES
from omnibus.metrics.collectors import Values
from omnibus_sidecar.peers.dialler import PeerAddress
from omnibus_sidecar.peers.handshake import load_tls, read_secret
from omnibus_sidecar.server import Sidecar
from omnibus_sidecar.settings import MIB, PeerConfig, SidecarConfig

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


log = logging.getLogger(__name__)

_STATUS_SUBJECT = subjects.event_subject(subjects.NODE)
_BEAT_SUBJECT = subjects.event_subject(subjects.NODE_BEAT)
#: Difference between two nodes' clocks at which deadlines are noticeably wrong.
MAX_SKEW_SECONDS = 0.5


class PeerDiscovery:
    """Publishes the address of this node, and collects those of others.

    Sidecars read changes alone, and ask for the others' status at the start and after a reconnect. Gateways also read
    heartbeats: if sidecars did, their messages would grow with the square of the nodes.
    Addresses come from these events and never from a handle: a forged handle must not make a sidecar dial an arbitrary
    host. A node that stops reporting keeps its address. The next pull from it shows if it is reachable.
    """

    def __init__(self, bus: Bus, sidecar: Sidecar, host: str) -> None:
        """Create the discovery; ``host`` is the address at which others reach this node."""
        self._bus = bus
        self._sidecar = sidecar
        self._host = host
        self._census = Census(bus, subjects.NODE)
        self._reconnects = bus.reconnects
        self._told: tuple[object, ...] = ()  # what all were told last
        self._skewed: set[str] = set()
        self._draining = False
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        bus, node = self._bus, self._sidecar.settings.node
        census = self._census
        await bus.subscribe(subjects.event_subject(subjects.NODE), self._on_status)
        await bus.subscribe(census.answer_subject(subjects.NODE), self._on_status)
        await bus.subscribe(subjects.event_subject(subjects.CENSUS), self._on_census)
        await bus.subscribe(subjects.node_subject(node), self._on_end)
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        census.ask()

    def begin_drain(self) -> None:
        """Stop gateways from sending more work to this node."""
        self._draining = True
        self.publish_status()

    async def close(self) -> None:
        """Report to the other nodes that this sidecar is gone."""
        if self._beating is not None:
            self._beating.cancel()
        self._publish("gone")

    def publish_status(self, subject: str = "") -> None:
        """Publish the status on ``subject``, or to all if it is new, or to gateways and observers."""
        self._publish("draining" if self._draining else "ready", subject)

    def _on_census(self, delivery: Delivery) -> None:
        if subject := find_answer_subject(delivery, subjects.NODE):
            self.publish_status(subject)

    def _publish(self, state: str, subject: str = "") -> None:
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
        if not subject:
            news = (state, status.unreachable, status.boot, status.port)
            subject = _STATUS_SUBJECT if news != self._told else _BEAT_SUBJECT
            self._told = news
        try:
            self._bus.publish(subject, messages.encode(status))
        except BusUnavailable as error:
            log.debug("status not sent: %s", error)

    async def _beat(self) -> None:
        while True:
            self.publish_status()
            if self._reconnects != self._bus.reconnects:  # others may have started in between
                self._reconnects = self._bus.reconnects
                with suppress(BusUnavailable):
                    self._census.ask()
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


_DRAIN_LOOK_SECONDS = 0.1


def check_directory(directory: Path) -> None:
    """Raise ``BadRequest`` if another user could replace sockets in ``directory``."""
    there = directory.stat()
    if there.st_uid not in (0, os.geteuid()):
        raise BadRequest(
            f"{directory} of OMNIBUS_SIDECAR_SOCKET belongs to user {there.st_uid}; choose another directory"
        )
    if there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
        raise BadRequest(f"{directory} of OMNIBUS_SIDECAR_SOCKET is world-writable; chmod 0700 it, or choose another")


class SidecarService:
    """The sidecar of one node."""

    def __init__(self) -> None:
        settings = environment.read_settings(environment.SidecarSettings)
        directory = Path(settings.socket).parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(directory)
        self._sidecar = Sidecar(
            SidecarConfig(
                node=settings.node_name,
                socket=settings.socket,
                arena=f"omnibus-{subject_token(settings.node_name)}",
                size=settings.arena_mib * MIB,
                clear_on_free=settings.clear,
                peers=_peer_config(settings),
            )
        )
        self._host = settings.advertise or settings.host
        self._bus: NatsBus | None = None
        self._nodes: PeerDiscovery | None = None

    async def startup(self) -> None:
        await self._sidecar.start()
        register_metrics(self._sidecar.snapshot)
        if self._sidecar.peers is not None:
            self._bus = await NatsBus.connect(environment.read_settings(environment.BusSettings), "sidecar")
            self._nodes = PeerDiscovery(self._bus, self._sidecar, self._host)
            await self._nodes.start()

    async def drain(self, seconds: float) -> None:
        """Wait for the end of all leases that other nodes may read."""
        if self._nodes is None:
            return
        self._nodes.begin_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._sidecar.snapshot()["blocks"]:  # noqa: ASYNC110 once, at the end
                    await asyncio.sleep(_DRAIN_LOOK_SECONDS)

    async def shutdown(self) -> None:
        try:
            if self._nodes is not None:
                await self._nodes.close()
            if self._bus is not None:
                await self._bus.drain()
        finally:  # remove the arena even if the bus fails
            await self._sidecar.stop()


def _peer_config(settings: environment.SidecarSettings) -> PeerConfig | None:
    """Return the settings of pulls; None on a single node.

    Raises ``BadRequest`` for files that cannot be used, and for a listener without secret or TLS.
    """
    if not settings.host:
        return None
    _check_transport(settings)
    secret = read_secret(settings.secret_file) if settings.secret_file else b""
    client, server = load_tls(settings.tls_ca, settings.tls_cert, settings.tls_key)
    if not secret and server is None:
        raise BadRequest(
            "OMNIBUS_SIDECAR_HOST opens this node to others: set OMNIBUS_SIDECAR_SECRET_FILE, the same for all nodes, "
            "or OMNIBUS_SIDECAR_TLS_CA, OMNIBUS_SIDECAR_TLS_CERT and OMNIBUS_SIDECAR_TLS_KEY"
        )
    if not 0 < settings.incoming <= 1 or settings.links < 1 or min(settings.connect, settings.stall) <= 0:
        raise BadRequest(
            "OMNIBUS_SIDECAR_INCOMING must be above 0 and at most 1, OMNIBUS_SIDECAR_LINKS at least 1, "
            "OMNIBUS_SIDECAR_CONNECT and OMNIBUS_SIDECAR_STALL above 0"
        )
    return PeerConfig(
        host=settings.host,
        port=settings.port,
        secret=secret,
        tls_client=client,
        tls_server=server,
        transport=settings.transport,
        links=settings.links,
        incoming=settings.incoming,
        connect_seconds=settings.connect,
        stall_seconds=settings.stall,
    )


def _check_transport(settings: environment.SidecarSettings) -> None:
    if settings.transport not in ("tcp", "ucx"):
        raise BadRequest(f"OMNIBUS_SIDECAR_TRANSPORT must be tcp or ucx, not {settings.transport!r}")
    if settings.transport == "ucx" and settings.tls_ca:
        raise BadRequest(
            "UCX sends bytes unencrypted, but OMNIBUS_SIDECAR_TLS_CA requires encryption: use "
            "OMNIBUS_SIDECAR_SECRET_FILE alone with OMNIBUS_SIDECAR_TRANSPORT=ucx, or TLS with tcp"
        )
