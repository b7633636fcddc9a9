"""Connections to other sidecars without encryption.

Bytes are received directly into the arena. They are sent with ``send``, which copies them once, into the kernel. That
takes less CPU than ``sendfile``, which finds, counts and checks each page of 4 KiB. It also makes fewer and larger
pieces for the peer. Sent bytes are copies, so the memory may be written to again.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress

from omnibus_sidecar.peers.stream import ArenaBytes, PeerStream, Progress, closed_error, set_options
from omnibus_sidecar.peers.tls_stream import TlsStream

#: Most bytes moved in one turn of the loop, so that other connections have theirs: about 1 ms. With 1 MiB, pulls take a
#: fifth more CPU.
TURN_BYTES = 4 << 20
#: Bytes for which a reader of more is woken: each wakeup costs a turn of the loop and several system calls. Every
#: ``WAKE_SECONDS`` it is woken for any bytes, so that a slow link is not mistaken for a silent one.
WAKE_BYTES, WAKE_SECONDS = 1 << 20, 0.25
_LINGER_NOT = struct.pack("ii", 1, 0)


class PlainStream:
    """A TCP socket.

    The loop watches it from the first read, and does not register it again for each: that would be two system calls.
    One task at a time reads, one sends a range, any number write.
    """

    def __init__(self, connection: socket.socket, arena: ArenaBytes) -> None:
        set_options(connection)
        self._socket = connection
        self._arena = arena
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._watched = False
        self._receive: Callable[[], None] | None = None  # the current read
        self._wake_bytes = 1
        self._writers = 0  # that wait for room in the socket

    async def read_into(self, target: memoryview, progress: Progress) -> None:
        nbytes, at = len(target), 0
        if not nbytes:
            return
        if self._closed:
            raise closed_error()
        future: asyncio.Future[None] = self._loop.create_future()

        def receive() -> None:
            nonlocal at
            if future.done():  # the reader no longer waits
                return
            try:
                count = self._socket.recv_into(target[at : at + TURN_BYTES])
            except BlockingIOError:
                return
            except OSError as error:
                future.set_exception(error)
                return
            at += count
            if not count:
                future.set_exception(closed_error())
            elif at == nbytes:
                future.set_result(None)
            else:
                self._wake_for(min(WAKE_BYTES, nbytes - at))
            progress()

        timer = _Ticker(self._loop, WAKE_SECONDS, lambda: self._wake_for(1)) if nbytes > WAKE_BYTES else None
        self._wake_for(min(WAKE_BYTES, nbytes))
        self._receive = receive
        self._watch()
        try:
            await future
        finally:
            self._receive = None
            if timer is not None:
                timer.cancel()

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
        future: asyncio.Future[None] = self._loop.create_future()
        source, number, at = self._arena.bytes_at(offset, nbytes), self._socket.fileno(), 0

        def send() -> None:
            nonlocal at
            if future.done():  # the sender no longer waits
                return
            try:
                at += self._socket.send(source[at : at + TURN_BYTES])
            except BlockingIOError:
                return
            except OSError as error:
                future.set_exception(error)
                return
            if at == nbytes:
                future.set_result(None)
            progress()

        send()  # most small ranges are sent at once
        if not future.done():
            self._loop.add_writer(number, send)
            try:
                await future
            finally:
                self._loop.remove_writer(number)
        future.result()

    def abort(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._watched:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._socket.close()

    def _watch(self) -> None:
        if not self._watched:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
            self._watched = True

    def _on_readable(self) -> None:
        if self._receive is not None:
            self._receive()
        else:  # else it would be called repeatedly until the next read
            self._loop.remove_reader(self._socket.fileno())
            self._watched = False

    def _wake_for(self, nbytes: int) -> None:
        """Wake the task that reads when ``nbytes`` bytes or the end arrive."""
        if nbytes != self._wake_bytes and not self._closed:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
            self._wake_bytes = nbytes


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


async def open_stream(address: tuple[str, int], tls: ssl.SSLContext | None, arena: ArenaBytes) -> PeerStream:
    """Connect to ``address``, host and port. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    if tls is not None:
        host, port = address
        _, stream = await loop.create_connection(lambda: TlsStream(arena), host, port, ssl=tls, server_hostname=host)
        return stream
    error: OSError = OSError(f"host {address[0]} has no address")
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
