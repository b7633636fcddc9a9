"""One connection to another sidecar: frames, and bytes that move between arena and socket without a copy.

There are two kinds with the same methods: ``PlainStream`` without encryption, and ``TlsStream``. Both belong to the
loop of the peers' thread.

Limits of the time without progress.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from omnibus.tensors.peer_protocol import (
    FRAME_BYTES,
    PeerFrame,
    PeerVerb,
    decode_peer_frame,
    encode_peer_frame,
    encode_peer_text,
)

#: Called whenever bytes are received or sent.
Progress = Callable[[], None]

#: Fraction of the limit by which it may be too short, because a new timer for each part of a tensor is not cheap.
_TOLERANCE = 1 / 16


def make_progress(limit: asyncio.Timeout, seconds: float) -> Progress:
    """Return a function that postpones ``limit`` to ``seconds`` after each call.

    The limit may be up to a sixteenth of ``seconds`` early.
    """
    loop = asyncio.get_running_loop()
    moved = loop.time()

    def progress() -> None:
        nonlocal moved
        now = loop.time()
        if now - moved > seconds * _TOLERANCE:
            limit.reschedule(now + seconds)
            moved = now

    return progress


#: Seconds until the kernel probes an idle peer, seconds between probes, and the probes that may fail.
_KEEPALIVE_IDLE, _KEEPALIVE_INTERVAL, _KEEPALIVE_COUNT = 1, 1, 2
_USER_TIMEOUT_MS = 3000


class PeerStream(Protocol):
    """A connection during or after its handshake. Methods raise ``OSError`` when it breaks."""

    async def read_into(self, target: memoryview, progress: Progress) -> None:
        """Fill ``target``; ``progress`` is called whenever bytes arrive."""

    async def write(self, data: bytes, *, more: bool = False) -> None:
        """Send ``data``. ``more``: a range follows at once, and both may share a packet."""

    async def send_range(self, offset: int, nbytes: int, progress: Progress) -> None:
        """Send copies of ``nbytes`` bytes of the arena from ``offset``; ``progress`` is called whenever bytes are sent.

        Returns when all are copied: later writes to the arena do not reach the peer.
        """

    def abort(self) -> None:
        """Close at once, discarding unsent bytes."""


class ArenaBytes(Protocol):
    """The memory that connections read and write."""

    def bytes_at(self, offset: int, nbytes: int) -> memoryview: ...


async def read_frame(stream: PeerStream) -> PeerFrame:
    """Return the next frame. Raises ``ProtocolError`` for bytes that are not a frame."""
    raw = bytearray(FRAME_BYTES)
    await stream.read_into(memoryview(raw), _ignore)
    return decode_peer_frame(raw)


async def read_text(stream: PeerStream, nbytes: int) -> bytes:
    """Return the ``nbytes`` bytes that follow a frame of the handshake."""
    raw = bytearray(nbytes)
    await stream.read_into(memoryview(raw), _ignore)
    return bytes(raw)


async def write_frame(stream: PeerStream, frame: PeerFrame, *, more: bool = False) -> None:
    await stream.write(encode_peer_frame(frame), more=more)


async def write_text(stream: PeerStream, verb: PeerVerb, body: object) -> None:
    await stream.write(encode_peer_text(verb, body))


def set_options(connection: socket.socket) -> None:
    """Disable Nagle's algorithm, and let the kernel detect dead peers."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", _KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):  # Linux has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def closed_error() -> OSError:
    """Return the error of a connection that the other side has closed."""
    return ConnectionResetError("the other sidecar closed the connection")


def _ignore() -> None:
    """Ignore progress: the caller has a deadline for all of it."""
