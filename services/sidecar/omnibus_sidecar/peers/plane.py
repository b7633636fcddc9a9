"""The facade of pulls between nodes: one object for the sidecar."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from secrets import token_bytes
from typing import Any

from omnibus.errors import DeadlineExceeded, Fatal, NodeUnreachable, OmnibusError
from omnibus.tensors.arena import Arena
from omnibus.tensors.peer_protocol import PeerFrame, PullStatus
from omnibus_sidecar.peers.dialler import Peer, PeerAddress
from omnibus_sidecar.peers.handshake import PeerIdentity
from omnibus_sidecar.peers.incoming import Mirrors, MirrorTransfer, TransferDone
from omnibus_sidecar.peers.listener import PeerListener
from omnibus_sidecar.peers.outgoing import OutgoingReads
from omnibus_sidecar.peers.thread import PeerThread
from omnibus_sidecar.peers.ucx import UcxTransport
from omnibus_sidecar.request_handler import Desk
from omnibus_sidecar.settings import PeerConfig

log = logging.getLogger(__name__)

_KEY_BYTES = 32


class PeerPlane:
    """Pulls of one sidecar. Node discovery changes ``addresses``, on the loop of the ledger."""

    def __init__(self, config: PeerConfig, node: str, boot: int, arena: Arena, desk: Desk) -> None:
        if not config.secret and config.tls_server is None:
            raise Fatal(
                "nodes must authenticate each other: set OMNIBUS_SIDECAR_SECRET_FILE, the same for all nodes, "
                "or OMNIBUS_SIDECAR_TLS_CA, _CERT and _KEY"
            )
        loop = asyncio.get_running_loop()
        self.addresses: dict[str, PeerAddress] = {}
        self.boot = boot
        self.port = 0
        self._config = config
        self._own = PeerIdentity(
            node=node, boot=boot, secret=config.secret, tls_client=config.tls_client, tls_server=config.tls_server
        )
        self._arena = arena
        self._thread = PeerThread(loop)
        self.reads = OutgoingReads(desk.ledger, token_bytes(_KEY_BYTES), desk.admit_waiters)
        self.mirrors = Mirrors(desk, int(arena.size * config.incoming), self._start_transfer, self._send_over)
        self._listener = PeerListener(config, self._own, arena, self.reads, self._thread)
        self._peers: dict[str, Peer] = {}  # belongs to the peers' thread
        self._ucx: UcxTransport | None = None
        self.transport = config.transport if config.tls_server is None else "tls"
        self.pulled_bytes: Counter[str] = Counter()
        self.pull_seconds: dict[str, float] = {}
        #: Nodes that were unreachable at the last attempt, with the wall-clock time of the first failure in seconds.
        self.unreachable: dict[str, float] = {}

    async def start(self) -> None:
        """Listen. Raises ``Fatal`` if the address is not available, or UCX is configured and does not work."""
        self._thread.start()
        if self.transport == "ucx":
            self._ucx = self._listener.ucx = await self._thread.run(_start_ucx())
        self.port = await self._thread.run(self._listener.start())

    async def close(self) -> None:
        """End all transfers; nothing is written to the arena afterwards."""
        await self._thread.stop()

    def counters(self) -> Mapping[str, Any]:
        """Return the running counters."""
        return {
            "mirrors": len(self.mirrors),
            "mirror_bytes": self.mirrors.nbytes,
            "mirrors_total": self.mirrors.granted,
            "pulled_bytes_total": self.mirrors.pulled_bytes,
            "sent_bytes_total": self.reads.sent_bytes,
            "pull_failures_total": dict(self.mirrors.failures),
            "refused_peers_total": dict(self._listener.refused),
            "pulled_bytes_by_node": dict(self.pulled_bytes),
            "pull_seconds_by_node": dict(self.pull_seconds),
            "unreachable_nodes": dict.fromkeys(self.unreachable, 1),
            "ucx_bytes_by_node": {} if self._ucx is None else dict(self._ucx.pulled_bytes),
            "ucx_failures_by_node": {} if self._ucx is None else dict(self._ucx.failures),
        }

    def _start_transfer(self, transfer: MirrorTransfer, on_done: TransferDone) -> Callable[[], None]:
        address = self.addresses.get(transfer.node)
        tasks: list[asyncio.Task[PullStatus]] = []

        def begin() -> None:
            began = time.monotonic()
            task = self._thread.spawn(self._fetch_in_time(transfer, address))
            # Not in the task itself: a task cancelled before its first step never runs.
            task.add_done_callback(
                lambda ended: self._thread.call_main(self._on_fetched, transfer, began, ended, on_done)
            )
            tasks.append(task)

        def cancel() -> None:
            tasks[0].cancel()

        self._thread.call(begin)
        return lambda: self._thread.call(cancel)

    async def _fetch_in_time(self, transfer: MirrorTransfer, address: PeerAddress | None) -> PullStatus:
        if address is None:
            raise NodeUnreachable(f"unknown node {transfer.node!r}: no sidecar has reported it", node=transfer.node)
        target = self._arena.bytes_at(transfer.offset, transfer.get.nbytes)
        try:
            async with asyncio.timeout(transfer.deadline - time.time()):
                return await self._peer(transfer.node, address).fetch(transfer.get, target, transfer.reads)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the deadline passed before tensor {transfer.get.block} of node {transfer.node!r} arrived"
            ) from None

    def _on_fetched(
        self, transfer: MirrorTransfer, began: float, task: "asyncio.Task[PullStatus]", on_done: TransferDone
    ) -> None:
        """Report the result of ``transfer``, which writes no more."""
        node = transfer.node
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, NodeUnreachable):
            self.unreachable.setdefault(node, time.time())
        elif not task.cancelled():
            self.unreachable.pop(node, None)
        if failure is None and not task.cancelled() and task.result() == PullStatus.OK:
            self.pulled_bytes[node] += transfer.get.nbytes
            self.pull_seconds[node] = self.pull_seconds.get(node, 0.0) + time.monotonic() - began
        if failure is None:
            on_done(None if task.cancelled() else task.result(), None)
        elif isinstance(failure, OmnibusError):
            on_done(None, failure)
        else:
            log.error("a pull from node %s failed", node, exc_info=failure)
            on_done(None, Fatal(f"a pull from node {node!r} failed: {failure!r}"))

    def _peer(self, node: str, address: PeerAddress) -> Peer:
        peer = self._peers.get(node)
        if peer is None or peer.address != address:
            if peer is not None:
                peer.close()
            peer = self._peers[node] = Peer(
                node, address, self._config, self._own, self._arena, self._thread, self._on_peer_lost, self._ucx
            )
        return peer

    def _on_peer_lost(self, peer: Peer) -> None:
        if self._peers.get(peer.node) is peer:
            del self._peers[peer.node]

    def _send_over(self, node: str, over: PeerFrame) -> None:
        address = self.addresses.get(node)
        if address is not None:
            self._thread.call(lambda: self._thread.spawn(self._report_over(node, address, over)))

    async def _report_over(self, node: str, address: PeerAddress, over: PeerFrame) -> None:
        try:
            await self._peer(node, address).send_over(over)
        except OmnibusError as error:  # the block stays there until its invocation ends
            log.info("cannot report to node %s that a read is over: %s", node, error)


async def _start_ucx() -> UcxTransport:
    """Create the transport on the peers' loop, which UCX wakes."""
    return UcxTransport()
