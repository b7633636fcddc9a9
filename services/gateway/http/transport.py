"""Writes to a client's connection: those of one turn of the event loop leave with one system call."""

import asyncio
from collections.abc import Iterable
from typing import Any

#: Bytes that wait for the end of the turn. With more they leave at once, so that a slow reader is noticed in time.
MAX_HELD_BYTES = 64 << 10


class TurnTransport:
    """Joins what is written to ``transport`` in one turn: the head of a response and its body, or several events."""

    __slots__ = ("_ended", "_held", "_loop", "_nbytes", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._nbytes = 0
        self._ended = False

    def write(self, data: bytes) -> None:
        """Send ``data`` after what was written before, by the end of this turn."""
        if self._ended:
            self._transport.write(data)  # says what is wrong with that, here and not by the end of the turn
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._nbytes += len(data)
        if self._nbytes > MAX_HELD_BYTES:
            self.flush()

    def write_now(self, data: bytes) -> None:
        """Send ``data`` after what was written before: nothing more comes in this turn that could leave with it."""
        if self._held:
            self.write(data)
            self.flush()
        elif self._ended or not self._transport.is_closing():
            self._transport.write(data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        """Send ``lines`` after what was written before, by the end of this turn."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand over what is held, before something else happens to the connection."""
        held, self._held, large = self._held, [], self._nbytes > MAX_HELD_BYTES
        self._nbytes = 0
        if not held or self._transport.is_closing():
            return
        if large:  # to join them would copy them
            self._transport.writelines(held)
        else:
            self._transport.write(b"".join(held))

    def write_eof(self) -> None:
        """Close the writing half once everything has left; what is written later is a programmer's error."""
        self.flush()
        self._ended = True
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection once everything has left."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, and drop what has not left."""
        self._held, self._nbytes = [], 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and have not left."""
        return self._nbytes + self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
