"""The facade of pulls between nodes: one object for the sidecar.

Connections from other sidecars: authenticates them and sends the ranges that they request.

It runs on the loop of the peers' thread.
"""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from secrets import token_bytes
from typing import Any

from omnibus.errors import DeadlineExceeded, Fatal, NodeUnreachable, OmnibusError, ProtocolError
from omnibus.tensors.arena import Arena
from omnibus.tensors.peer_protocol import COPIED, PeerFrame, PeerGreeting, PeerVerb, PullStatus
from omnibus_sidecar.peers.dialler import Peer, PeerAddress
from omnibus_sidecar.peers.handshake import CONTROL, Handshakes, PeerIdentity, greet_dialler
from omnibus_sidecar.peers.incoming import Mirrors, MirrorTransfer, TransferDone
from omnibus_sidecar.peers.lanes import answer_offer, close_lane, send_range
from omnibus_sidecar.peers.outgoing import GrantedRange, OutgoingReads
from omnibus_sidecar.peers.plain_stream import PlainStream
from omnibus_sidecar.peers.stream import ArenaBytes, PeerStream, make_progress, read_frame, write_frame
from omnibus_sidecar.peers.thread import PeerThread, current_task
from omnibus_sidecar.peers.tls_stream import TlsStream
from omnibus_sidecar.peers.ucx import UcxLane, UcxTransport
from omnibus_sidecar.request_handler import Desk
from omnibus_sidecar.settings import PeerConfig

log = logging.getLogger(__name__)

_BACKLOG = 128


class OutgoingTransfer:
    """One range being sent to another node, unless its memory is needed.

    Used by the peers' thread only.
    """

    def __init__(self, reads: OutgoingReads, thread: PeerThread) -> None:
        """Create the transfer; call this in the task that serves the connection."""
        self._reads = reads
        self._thread = thread
        self._task = current_task()
        self.is_copied = False
        self.is_over = False

    def begin(self, get: PeerFrame) -> GrantedRange:
        """Check GET, and hold its block if it may be sent."""
        return self._reads.begin_read(self, get, self._abort)

    def finish(self, get: PeerFrame, reads: int) -> None:
        """Record that the peer has the bytes; ends ``reads`` expected reads."""
        self.is_over = True
        self._thread.call_main(self._reads.finish_read, self, get, reads)

    def let_go(self) -> None:
        """Release the block, unless the transfer is over."""
        if not self.is_over:
            self._thread.call_main(self._reads.abandon_read, self)

    def _abort(self) -> None:
        """Stop the transfer; called in the thread of the ledger."""
        self._thread.call(self._stop)

    def _stop(self) -> None:
        """Stop reading the block: at once if all of it is copied, else when the connection is closed."""
        if self.is_over:
            return
        if self.is_copied:
            self.let_go()
        else:
            self._task.cancel()


class PeerListener:
    """Serves other sidecars on one port."""

    def __init__(
        self,
        config: PeerConfig,
        own: PeerIdentity,
        arena: ArenaBytes,
        reads: OutgoingReads,
        thread: PeerThread,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.peers: Counter[str] = Counter()  # control connections by node
        #: UCX transport for ranges that readers request over UCX; None to use TCP only.
        self.ucx: UcxTransport | None = None
        self._config = config
        self._own = own
        self._arena = arena
        self._reads = reads
        self._thread = thread
        self._handshakes = Handshakes(self.refused)
        self._sessions: dict[tuple[str, int], set[asyncio.Task[None]]] = {}

    async def start(self) -> int:
        """Listen; returns the port. Raises ``Fatal`` if the address is not available."""
        config, loop = self._config, asyncio.get_running_loop()
        try:
            info = await loop.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
            listener = socket.create_server(info[0][4], family=info[0][0], backlog=_BACKLOG)
        except OSError as error:
            raise Fatal(
                f"cannot listen for other nodes at {config.host}:{config.port} ({error}); "
                "set OMNIBUS_SIDECAR_HOST and OMNIBUS_SIDECAR_PORT"
            ) from error
        listener.setblocking(False)
        self._thread.spawn(self._accept_all(listener))
        return int(listener.getsockname()[1])

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:  # no descriptors left: open connections continue
                    log.warning("cannot accept a connection from another node: %s", error)
                    await asyncio.sleep(self._config.connect_seconds)
                    continue
                connection.setblocking(False)
                self._thread.spawn(self._serve_connection(connection, str(address[0])))
        finally:
            listener.close()

    async def _serve_connection(self, connection: socket.socket, address: str) -> None:
        """Serve one connection from its first byte to its end; any error closes it."""
        stream: PeerStream | None = None
        try:
            with self._handshakes.admit(address, current_task()):
                async with asyncio.timeout(self._config.connect_seconds):
                    stream = await self._open_stream(connection)
                    greeting = await greet_dialler(stream, self._own, lambda reason: None)
            await self._serve_greeted(stream, greeting)
        except OmnibusError as error:
            self.refused[error.code] += 1
            log.warning("a connection from another node is closed: %s", error)
        except (OSError, TimeoutError) as error:
            log.info("a connection from another node broke: %s", error or "it does not respond")
        finally:
            if stream is not None:
                stream.abort()
            else:
                connection.close()

    async def _open_stream(self, connection: socket.socket) -> PeerStream:
        if self._own.tls_server is None:
            return PlainStream(connection, self._arena)
        stream = TlsStream(self._arena)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: stream,
            connection,
            ssl=self._own.tls_server,
            ssl_handshake_timeout=self._config.connect_seconds,
        )
        return stream

    async def _serve_greeted(self, stream: PeerStream, greeting: PeerGreeting) -> None:
        session = self._sessions.setdefault((greeting.node, greeting.boot), set())
        task = current_task()
        session.add(task)
        try:
            if greeting.purpose == CONTROL:
                await self._serve_control(stream, greeting)
            else:
                await self._serve_data(stream, greeting)
        finally:
            session.discard(task)
            if greeting.purpose == CONTROL:  # the peer is gone: cancel its transfers
                for other in session:
                    other.cancel()
            if not session:
                self._sessions.pop((greeting.node, greeting.boot), None)

    async def _serve_control(self, stream: PeerStream, greeting: PeerGreeting) -> None:
        self.peers[greeting.node] += 1
        try:
            while True:
                async with asyncio.timeout(self._config.silence_seconds):
                    frame = await read_frame(stream)
                if frame.verb == PeerVerb.PING:
                    await write_frame(stream, PeerFrame(PeerVerb.PONG, frame.request))
                elif frame.verb == PeerVerb.OVER:
                    self._thread.call_main(self._reads.end_reads, frame)
                elif frame.verb in (PeerVerb.RETAIN, PeerVerb.DROP):
                    self._thread.call_main(self._reads.set_retention, frame)
                else:
                    raise ProtocolError(f"verb {frame.verb} on the control connection of node {greeting.node!r}")
        finally:
            self.peers[greeting.node] -= 1

    async def _serve_data(self, stream: PeerStream, greeting: PeerGreeting) -> None:
        """Serve one transfer after another."""
        lane: UcxLane | None = None
        transfer: OutgoingTransfer | None = None
        try:
            while True:
                get = await read_frame(stream)
                if get.verb == PeerVerb.UCX and lane is None:
                    async with asyncio.timeout(self._config.stall_seconds):
                        lane = await answer_offer(stream, get, self.ucx)
                elif get.verb == PeerVerb.GET and (lane is not None or not get.tag):
                    transfer = OutgoingTransfer(self._reads, self._thread)
                    await self._send_block(stream, lane, get, transfer)
                else:
                    raise ProtocolError(f"verb {get.verb} on a data connection of node {greeting.node!r}")
        finally:
            stream.abort()  # before its block is released
            try:
                if lane is not None:
                    await close_lane(lane)
            finally:
                if transfer is not None:
                    transfer.let_go()

    async def _send_block(
        self, stream: PeerStream, lane: UcxLane | None, get: PeerFrame, transfer: OutgoingTransfer
    ) -> None:
        stall, grant = self._config.stall_seconds, transfer.begin(get)
        lane = lane if get.tag else None
        copied_reads = get.reads if lane is None else 0
        head = PeerFrame(PeerVerb.HEAD, get.request, nbytes=get.nbytes, reads=copied_reads, status=grant.status)
        more = grant.status == PullStatus.OK and lane is None and get.nbytes > 0
        async with asyncio.timeout(stall) as limit:
            progress = make_progress(limit, stall)
            await write_frame(stream, head, more=more)
            if grant.status != PullStatus.OK:
                return
            if lane is not None:
                source = self._arena.bytes_at(grant.offset, get.nbytes)
                done_frame = await send_range(lane, stream, source, get.tag, progress)
            else:
                await stream.send_range(grant.offset, get.nbytes, progress)
                transfer.is_copied = True
                progress()
                done_frame = await read_frame(stream)
        if (done_frame.verb, done_frame.request) != (PeerVerb.DONE, get.request):
            raise ProtocolError(f"got verb {done_frame.verb} instead of the end of a transfer")
        # The block is held until it is copied or until this call, so the reader has its bytes.
        transfer.finish(get, done_frame.reads)
        if copied_reads != COPIED:
            await write_frame(stream, PeerFrame(PeerVerb.KEPT, get.request))


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
