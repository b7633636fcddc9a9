"""The sidecar of a node: owns the arena, listens on a Unix socket, keeps the ledger.

One client's socket: frames in, frames out, at most one write per turn of the loop.
"""

import asyncio
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from omnibus.errors import Fatal, ProtocolError
from omnibus.tensors.arena import Arena
from omnibus.tensors.ledger import BlockOwner
from omnibus.tensors.protocol import (
    FrameReader,
    SidecarFrame,
    Verb,
    VersionMismatch,
    Welcome,
    encode_frame,
    encode_text,
)
from omnibus_sidecar.backing import check_arena_size
from omnibus_sidecar.peers.plane import PeerPlane
from omnibus_sidecar.request_handler import Desk
from omnibus_sidecar.settings import SidecarConfig

log = logging.getLogger(__name__)

#: Bytes of unread replies at which a client is disconnected: a live client reads its replies.
MAX_UNREAD_BYTES = 4 << 20


class ClientConnection(asyncio.Protocol):
    """Greets a client, then passes its frames to the desk. A malformed frame closes the connection.

    ``on_join`` and ``left`` are called for every client that connects and disconnects. ``on_drop`` is called for every
    client that is disconnected because it broke the protocol.
    """

    def __init__(
        self,
        desk: Desk,
        welcome: Welcome,
        on_join: Callable[["ClientConnection"], None],
        left: Callable[["ClientConnection"], None],
        on_drop: Callable[[], None],
    ) -> None:
        self.owner = BlockOwner("")
        self._desk = desk
        self._welcome = welcome
        self._joined = on_join
        self._left = left
        self._dropped = on_drop
        self._serve = self._handle_hello
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._flush_due = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        self._joined(self)

    def data_received(self, data: bytes) -> None:
        self._flush_due = True
        try:
            for frame in self._reader.feed(data):
                self._serve(frame)
        except ProtocolError as error:
            self._drop_client(error)
        self._desk.admit_waiters()
        self._flush_replies()

    def pause_writing(self) -> None:
        log.warning("client %r is disconnected: it did not read %d bytes of replies", self.owner.name, MAX_UNREAD_BYTES)
        self._dropped()
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._desk.remove_client(self)
        self._left(self)

    def reply(self, frame: SidecarFrame) -> None:
        """Send ``frame`` at the end of this turn of the loop."""
        self.reply_bytes(encode_frame(frame))

    def reply_bytes(self, frames: bytes) -> None:
        """Send encoded frames at the end of this turn of the loop."""
        self._out.append(frames)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_replies)

    def abort(self) -> None:
        """Disconnect the client."""
        if self._transport is not None:
            self._transport.abort()

    def _handle_hello(self, frame: SidecarFrame) -> None:
        if frame.verb != Verb.HELLO or not frame.text:
            raise ProtocolError("the first frame must be HELLO with the owner's name")
        self.owner.name = frame.text.decode(errors="replace")
        self._serve = self._handle_frame
        self.reply_bytes(encode_text(frame.request, msgspec.json.encode(self._welcome)))

    def _handle_frame(self, frame: SidecarFrame) -> None:
        self._desk.serve_frame(self, frame)

    def _drop_client(self, error: ProtocolError) -> None:
        log.warning("client %r is disconnected: %s", self.owner.name or "unknown", error)
        self._dropped()
        if isinstance(error, VersionMismatch):
            self.reply(SidecarFrame(Verb.REFUSED))
        if self._transport is not None:
            self._flush_replies()
            self._transport.close()

    def _flush_replies(self) -> None:
        self._flush_due = False
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))


class Sidecar:
    """The sidecar. ``await start()``, then ``await serve()``, which returns after ``stop()``."""

    def __init__(self, settings: SidecarConfig) -> None:
        self.settings = settings
        self._clients: set[ClientConnection] = set()
        self._dropped = 0
        self._stopped = asyncio.Event()
        self._arena: Arena | None = None
        self._desk: Desk | None = None
        self._server: asyncio.AbstractServer | None = None
        #: Pulls between this node and others; None on a single node.
        self.peers: PeerPlane | None = None

    async def start(self) -> None:
        """Create the arena and listen. Raises ``Fatal`` if another sidecar runs under the same names."""
        settings, loop = self.settings, asyncio.get_running_loop()
        # Microseconds: larger than every generation of an earlier boot, and exact in any JSON reader.
        boot = time.time_ns() // 1000
        check_arena_size(settings.size, settings.directory)
        self._arena = Arena.create(settings.arena, settings.size, settings.directory)
        try:
            self._desk = desk = Desk(settings, self._arena, boot, loop)
            await desk.backing.start()
            await self._start_peers(boot)
            listener = _bind_listener(settings.socket)
        except BaseException:
            await self._close_peers()
            self._remove_arena()
            raise
        pulls = self.peers is not None
        welcome = Welcome(settings.node, settings.arena, str(self._arena.path), settings.size, boot, pulls, spares=True)
        self._server = await loop.create_unix_server(
            lambda: ClientConnection(desk, welcome, self._clients.add, self._clients.discard, self._count_dropped),
            sock=listener,
        )

    async def serve(self) -> None:
        """Wait until ``stop`` is called."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Disconnect all clients, and remove the socket and the arena. Stopping twice is harmless."""
        if self._server is not None and self._desk is not None:
            self._server.close()
            self._server = None
            _remove_socket(self.settings.socket)
            for client in tuple(self._clients):
                client.abort()
            await self._close_peers()
            self._desk.close()
            await self._desk.backing.close()
            self._remove_arena()
        self._stopped.set()

    def snapshot(self) -> dict[str, Any]:
        """Return counters for metrics: those of ``Desk.counters``, ``clients`` and ``dropped_clients_total``.

        Empty before ``start``.
        """
        if self._desk is None:
            return {}
        return {**self._desk.counters(), "clients": len(self._clients), "dropped_clients_total": self._dropped}

    def end_invocation(self, invocation: str) -> None:
        """End an invocation that another node's gateway sent."""
        if self._desk is not None:
            self._desk.end_invocation(invocation)

    async def _start_peers(self, boot: int) -> None:
        config = self.settings.peers
        if config is None or self._arena is None or self._desk is None:
            return
        self.peers = PeerPlane(config, self.settings.node, boot, self._arena, self._desk)
        await self.peers.start()
        self._desk.connect_nodes(self.peers.mirrors, self.peers.reads, self.peers.counters)

    async def _close_peers(self) -> None:
        if self.peers is not None:
            await self.peers.close()

    def _count_dropped(self) -> None:
        self._dropped += 1

    def _remove_arena(self) -> None:
        if self._arena is not None:
            self._arena.unlink()
            self._arena.close()
            self._arena = None


def _remove_socket(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _bind_listener(path: str) -> socket.socket:
    """Return a listening socket at ``path`` with mode 0600.

    It replaces the socket of a dead predecessor.
    """
    _remove_dead_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mask applies to bind itself: at no moment can another user connect.
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise Fatal(f"cannot listen on {path} ({error}); the path may have at most 107 bytes") from error
    finally:
        os.umask(mask)
    return listener


def _remove_dead_socket(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Fatal(f"{path} exists and is not a socket; choose another socket path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A dead owner's socket refuses at once; a live one with a full backlog must not make this wait.
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except (TimeoutError, BlockingIOError):
            pass
    raise Fatal(f"another sidecar listens on {path}; stop it or choose another socket path")
