"""One end of the gateway-worker socket: frames in, frames out."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from omnibus.app.framing import Frames
from omnibus.errors import OmnibusError

#: Bytes of queued frames from which ``drain`` writes them.
_DRAIN_BYTES = 64 << 10


class WorkerLink(asyncio.Protocol):
    """End of the socket between a gateway and a worker. Build it with ``open``.

    ``receive`` is called with the body of each frame. A typed error of it closes the link. ``on_loss`` is called once
    with that error, or with None when the other end is closed.
    """

    def __init__(self, receive: Callable[[bytes], None], on_loss: Callable[[OmnibusError | None], None]) -> None:
        self._receive = receive
        self._lost = on_loss
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._out: list[bytes] = []
        self._full: asyncio.Future[None] | None = None
        self._error: OmnibusError | None = None

    @classmethod
    async def open(
        cls, end: socket.socket, receive: Callable[[bytes], None], on_loss: Callable[[OmnibusError | None], None]
    ) -> "WorkerLink":
        """Take over ``end``, a connected Unix socket."""
        link = cls(receive, on_loss)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        try:
            for body in self._frames.feed(data):
                self._receive(body)
        except OmnibusError as error:
            self._error = error
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        self._lost(self._error)

    def send(self, frame: bytes) -> None:
        """Queue ``frame``. Frames of one turn of the loop are sent in one write. A lost link drops them."""
        if not self._out:
            self._loop.call_soon(self._flush_frames)
        self._out.append(frame)

    async def drain(self) -> None:
        """Wait until the other end has received most of the data. Returns early if it is closed. A small rest is sent
        with the other frames of this turn of the loop."""
        if sum(map(len, self._out)) >= _DRAIN_BYTES:
            self._flush_frames()
        while self._full is not None:
            await asyncio.shield(self._full)

    def pause_writing(self) -> None:
        self._full = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._full is not None:
            self._full.set_result(None)
            self._full = None

    def close(self) -> None:
        """Send the queued frames and close the socket."""
        if self._transport is not None:
            self._flush_frames()
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once and drop queued data."""
        if self._transport is not None:
            self._transport.abort()

    def _flush_frames(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
