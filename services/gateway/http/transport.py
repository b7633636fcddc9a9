"""Writes to a client's connection: those of one turn of the event loop leave with one system call."""

import asyncio
from typing import Any

#: Bytes that wait for the end of the turn. With more they leave at once, so that a slow reader is noticed in time.
MAX_HELD_BYTES = 64 << 10


class TurnTransport:
    """Joins what is written to ``transport`` in one turn: the head of a response and its body, or several events."""

    __slots__ = ("_held", "_loop", "_nbytes", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._nbytes = 0

    def write(self, data: bytes) -> None:
        """Send ``data`` after what was written before, by the end of this turn."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._nbytes += len(data)
        if self._nbytes > MAX_HELD_BYTES:
            self._flush()

    def write_eof(self) -> None:
        """Say that nothing follows what was written."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection once everything has left."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        held, self._held, large = self._held, [], self._nbytes > MAX_HELD_BYTES
        self._nbytes = 0
        if self._transport.is_closing():
            return
        if large:  # to join them would copy them
            self._transport.writelines(held)
        elif held:
            self._transport.write(b"".join(held))
