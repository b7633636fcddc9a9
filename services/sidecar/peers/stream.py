"""One connection to another sidecar: frames, and bytes that go between the arena and the socket without a copy.

Two kinds with the same methods. ``PlainStream`` receives straight into the arena and sends its pages by ``sendfile``;
``TlsStream`` has to copy. Both belong to the loop of the peers' thread.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
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

#: Most bytes that are moved in one turn of the loop, so that other connections have theirs: 1 to 2 ms. With 1 MiB pulls
#: take a tenth more CPU. Of what is encrypted, which takes longer, a write has ``SLICE_BYTES``.
TURN_BYTES, SLICE_BYTES = 4 << 20, 1 << 20
#: Bytes for which a reader of more is woken: each wakeup costs a turn of the loop and several calls of the kernel.
#: Every ``WAKE_SECONDS`` it is woken for whatever is there, so that a slow link is not taken for a silent one.
WAKE_BYTES, WAKE_SECONDS = 1 << 20, 0.25
_LINGER_NOT = struct.pack("ii", 1, 0)
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
        """Send ``nbytes`` bytes of the arena's file from ``offset``; ``progress`` is called whenever bytes left."""

    def abort(self) -> None:
        """Close at once and forget what was not sent: afterwards the kernel has no page of the arena any more."""


class ArenaBytes(Protocol):
    """The memory that connections read and write."""

    def fileno(self) -> int: ...

    def bytes_at(self, offset: int, nbytes: int) -> memoryview: ...


class PlainStream:
    """A TCP socket without encryption."""

    def __init__(self, connection: socket.socket, arena: ArenaBytes) -> None:
        set_options(connection)
        self._socket = connection
        self._arena = arena
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._wake_bytes = 1
        self._writers = 0  # that wait for room in the socket

    async def read_into(self, target: memoryview, progress: Progress) -> None:
        if len(target) > WAKE_BYTES:
            await self._read_large(target, progress)
            return
        at, nbytes = 0, len(target)
        while at < nbytes:
            count = await self._loop.sock_recv_into(self._socket, target[at:])
            if not count:
                raise _closed_error()
            at += count
            progress()

    async def _read_large(self, target: memoryview, progress: Progress) -> None:
        """Receive whenever the kernel says that bytes are there. One registration for all of them, and no task that is
        woken for each part: that took up to an eighth of the CPU of a pull."""
        done: asyncio.Future[None] = self._loop.create_future()
        at = 0

        def receive() -> None:
            nonlocal at
            if done.done():  # the reader waits no longer
                return
            try:
                count = self._socket.recv_into(target[at : at + TURN_BYTES])
            except BlockingIOError:
                return
            except OSError as error:
                done.set_exception(error)
                return
            at += count
            if not count:
                done.set_exception(_closed_error())
            elif at == len(target):
                done.set_result(None)
            else:
                self._wake_for(min(WAKE_BYTES, len(target) - at))
            progress()

        timer, number = self._wake_regularly(), self._socket.fileno()
        self._wake_for(WAKE_BYTES)
        self._loop.add_reader(number, receive)
        try:
            await done
        finally:
            self._loop.remove_reader(number)
            timer.cancel()
            self._wake_for(1)

    async def write(self, data: bytes, *, more: bool = False) -> None:
        if not self._writers:  # else in their order
            with suppress(BlockingIOError):
                data = data[self._socket.send(data, socket.MSG_MORE if more else 0) :]
        if not data:
            return
        self._writers += 1
        try:
            await self._loop.sock_sendall(self._socket, data)
        finally:
            self._writers -= 1

    async def send_range(self, offset: int, nbytes: int, progress: Progress) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        source, target, end = self._arena.fileno(), self._socket.fileno(), offset + nbytes

        def send() -> None:
            nonlocal offset
            if done.done():  # whoever sends waits no longer
                return
            try:
                sent = os.sendfile(target, source, offset, min(end - offset, TURN_BYTES))
            except BlockingIOError:
                return
            except OSError as error:
                done.set_exception(error)
                return
            offset += sent
            if offset == end:
                done.set_result(None)
            elif not sent:
                done.set_exception(ConnectionResetError("the arena's file ended early"))
            progress()

        send()  # most of what is small goes at once
        if not done.done():
            self._loop.add_writer(target, send)
            try:
                await done
            finally:
                self._loop.remove_writer(target)
        done.result()

    def _wake_for(self, nbytes: int) -> None:
        """Have the kernel call the socket readable once so many bytes are there, or its end."""
        if nbytes != self._wake_bytes and not self._closed:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
            self._wake_bytes = nbytes

    def _wake_regularly(self) -> "_Ticker":
        return _Ticker(self._loop, WAKE_SECONDS, lambda: self._wake_for(1))

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self._socket.close()


class _Ticker:
    """Calls ``function`` every ``seconds`` until it is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, function: Callable[[], None]) -> None:
        self._loop, self._seconds, self._function = loop, seconds, function
        self._timer = loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._seconds, self._tick)
        self._function()

    def cancel(self) -> None:
        self._timer.cancel()


class TlsStream:
    """A connection with TLS: bytes are encrypted, so they are copied."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, arena: ArenaBytes) -> None:
        set_options(writer.get_extra_info("socket"))
        self._reader = reader
        self._writer = writer
        self._arena = arena

    @property
    def peer_names(self) -> frozenset[str]:
        """The DNS names in the certificate of the other side."""
        certificate = self._writer.get_extra_info("ssl_object").getpeercert() or {}
        return frozenset(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")

    async def read_into(self, target: memoryview, progress: Progress) -> None:
        at = 0
        while at < len(target):
            piece = await self._reader.read(min(len(target) - at, SLICE_BYTES))
            if not piece:
                raise ConnectionResetError("the other sidecar closed the connection")
            target[at : at + len(piece)] = piece
            at += len(piece)
            progress()

    async def write(self, data: bytes, *, more: bool = False) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send_range(self, offset: int, nbytes: int, progress: Progress) -> None:
        while nbytes:
            count = min(nbytes, SLICE_BYTES)
            # A copy: what TLS has not encrypted yet may not change.
            self._writer.write(bytes(self._arena.bytes_at(offset, count)))
            await self._writer.drain()
            offset, nbytes = offset + count, nbytes - count
            progress()

    def abort(self) -> None:
        self._writer.transport.abort()


async def open_stream(address: tuple[str, int], tls: ssl.SSLContext | None, arena: ArenaBytes) -> PeerStream:
    """Connect to ``address``, host and port. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    if tls is not None:
        reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname=address[0])
        return TlsStream(reader, writer, arena)
    error: OSError = OSError(f"{address[0]} has no address")
    for family, kind, _, _, where in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, where)
            return PlainStream(connection, arena)
        except OSError as failure:
            connection.close()
            error = failure
        except BaseException:
            connection.close()
            raise
    raise error


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


def _closed_error() -> OSError:
    return ConnectionResetError("the other sidecar closed the connection")


def _ignore() -> None:
    """Count no progress: the caller has a deadline for all of it."""
