"""Connections to other sidecars with TLS: bytes are decrypted directly into the arena.

The streams of ``asyncio`` would buffer them first, and pause and resume for each 64 KiB. That takes several times the
CPU of the decryption itself.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from omnibus_sidecar.peers.stream import ArenaBytes, Progress, closed_error, set_options

#: Bytes of one write, so that other connections have their turns, and most bytes that are buffered before a read.
SLICE_BYTES, EARLY_BYTES = 1 << 20, 64 << 10


class TlsStream(asyncio.BufferedProtocol):
    """A TLS connection. One task at a time reads, one sends a range, any number write."""

    def __init__(self, arena: ArenaBytes, on_connect: "Callable[[TlsStream], None] | None" = None) -> None:
        """Create the stream; ``on_connect`` is called after the TLS handshake."""
        self._arena = arena
        self._connected = on_connect
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._early = memoryview(bytearray(EARLY_BYTES))
        self._early_at = self._early_end = 0  # bytes that arrived before a read
        self._target = memoryview(b"")  # the rest of the current read
        self._done: asyncio.Future[None] | None = None
        self._progress: Progress | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def peer_names(self) -> frozenset[str]:
        """The DNS names in the certificate of the other side."""
        transport = self._transport
        certificate = (transport and transport.get_extra_info("ssl_object").getpeercert()) or {}
        return frozenset(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")

    async def read_into(self, target: memoryview, progress: Progress) -> None:
        count = min(len(target), self._early_end - self._early_at)
        target[:count] = self._early[self._early_at : self._early_at + count]
        self._early_at += count
        if count == len(target):
            return
        if self._error is not None:
            raise self._error
        self._early_at = self._early_end = 0
        self._target, self._progress = target[count:], progress
        self._done = future = self._loop.create_future()
        self._resume_reading()
        try:
            await future
        finally:
            self._done = None
            self._target = memoryview(b"")

    async def write(self, data: bytes, *, more: bool = False) -> None:
        if self._transport is None or self._error is not None:
            raise self._error or closed_error()
        self._transport.write(data)
        await self._writable.wait()
        if self._error is not None:
            raise self._error

    async def send_range(self, offset: int, nbytes: int, progress: Progress) -> None:
        while nbytes:
            count = min(nbytes, SLICE_BYTES)
            # A copy: bytes that TLS has not encrypted yet must not change.
            await self.write(bytes(self._arena.bytes_at(offset, count)))
            offset, nbytes = offset + count, nbytes - count
            progress()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Methods that the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        set_options(transport.get_extra_info("socket"))
        if self._connected is not None:
            self._connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target if self._is_reading() else self._early[self._early_end :]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_reading():
            self._early_end += nbytes
            if self._early_end == EARLY_BYTES and self._transport is not None:
                self._transport.pause_reading()
            return
        self._target = self._target[nbytes:]
        if self._done is not None and not self._target:
            self._done.set_result(None)
        if self._progress is not None:
            self._progress()

    def eof_received(self) -> None:
        self._end(closed_error())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc if isinstance(exc, OSError) else closed_error())

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _is_reading(self) -> bool:
        """True while a task waits for bytes, and has room for them."""
        return self._done is not None and not self._done.done()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def _end(self, error: Exception) -> None:
        self._error = self._error or error
        self._writable.set()
        if self._done is not None and not self._done.done():
            self._done.set_exception(self._error)
