"""One connection to another sidecar: frames, and bytes that go between the arena and the socket without a copy.

Two kinds with the same methods: ``PlainStream`` without encryption, and ``TlsStream``. Both belong to the loop of the
peers' thread.
"""

import socket
from typing import Protocol

from omnibus.tensors.peer_protocol import (
    FRAME_BYTES,
    PeerFrame,
    PeerVerb,
    decode_peer_frame,
    encode_peer_frame,
    encode_peer_text,
)
from services.sidecar.peers.stall import Progress

#: Seconds after which the kernel asks whether an idle peer lives, between questions, and how many stay unanswered.
_KEEPALIVE_IDLE, _KEEPALIVE_INTERVAL, _KEEPALIVE_COUNT = 1, 1, 2
_USER_TIMEOUT_MS = 3000


class PeerStream(Protocol):
    """A connection after its handshake, or during it. Methods raise ``OSError`` when it breaks."""

    async def read_into(self, target: memoryview, progress: Progress) -> None:
        """Fill ``target``; ``progress`` is called whenever bytes came."""

    async def write(self, data: bytes, *, more: bool = False) -> None:
        """Send ``data``. ``more``: a range follows at once, and they may go together."""

    async def send_range(self, offset: int, nbytes: int, progress: Progress) -> None:
        """Send copies of ``nbytes`` bytes of the arena from ``offset``; ``progress`` is called whenever bytes left.

        Returns once all are copied: what is written to the arena afterwards does not reach the reader.
        """

    def abort(self) -> None:
        """Close at once and forget what was not sent."""


class ArenaBytes(Protocol):
    """The memory that connections read and write."""

    def bytes_at(self, offset: int, nbytes: int) -> memoryview: ...


async def read_frame(stream: PeerStream) -> PeerFrame:
    """The next frame. Raises ``ProtocolError`` for bytes that are none."""
    raw = bytearray(FRAME_BYTES)
    await stream.read_into(memoryview(raw), _ignore)
    return decode_peer_frame(raw)


async def read_text(stream: PeerStream, nbytes: int) -> bytes:
    """The ``nbytes`` bytes that follow a frame of the handshake."""
    raw = bytearray(nbytes)
    await stream.read_into(memoryview(raw), _ignore)
    return bytes(raw)


async def write_frame(stream: PeerStream, frame: PeerFrame, *, more: bool = False) -> None:
    await stream.write(encode_peer_frame(frame), more=more)


async def write_text(stream: PeerStream, verb: PeerVerb, body: object) -> None:
    await stream.write(encode_peer_text(verb, body))


def set_options(connection: socket.socket) -> None:
    """Send small frames at once, and let the kernel find out about peers that are gone without a word."""
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
    """The error of a connection that the other side has ended."""
    return ConnectionResetError("the other sidecar closed the connection")


def _ignore() -> None:
    """Count no progress: the caller has a deadline for all of it."""
