"""Writes to a client connection: one system call per turn of the event loop."""

import asyncio
from collections.abc import Iterable
from typing import Any

#: Maximum bytes that wait for the end of the turn; more are sent at once, so that slow readers are detected in time.
MAX_HELD_BYTES = 64 << 10


class TurnTransport:
    """Joins the writes to ``transport`` in one turn: the head and body of a response, or several events."""

    __slots__ = ("_ended", "_held", "_loop", "_nbytes", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._nbytes = 0
        self._ended = False

    def write(self, data: bytes) -> None:
        """Send ``data`` after previous writes, at the end of this turn."""
        if self._ended:
            self._transport.write(data)  # raises here, not at the end of the turn
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._nbytes += len(data)
        if self._nbytes > MAX_HELD_BYTES:
            self.flush()

    def write_now(self, data: bytes) -> None:
        """Send ``data`` after previous writes immediately: no more is written in this turn."""
        if self._held:
            self.write(data)
            self.flush()
        elif self._ended or not self._transport.is_closing():
            self._transport.write(data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        """Send ``lines`` after previous writes, at the end of this turn."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Send pending data, before any other operation on the connection."""
        pieces, self._held, large = self._held, [], self._nbytes > MAX_HELD_BYTES
        self._nbytes = 0
        if not pieces or self._transport.is_closing():
            return
        if large:  # joining would copy much
            self._transport.writelines(pieces)
        else:
            self._transport.write(b"".join(pieces))

    def write_eof(self) -> None:
        """Close the writing half after pending data; a later write is a programming error."""
        self.flush()
        self._ended = True
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection after pending data."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, and drop pending data."""
        self._held, self._nbytes = [], 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are written but not sent."""
        return self._nbytes + self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
