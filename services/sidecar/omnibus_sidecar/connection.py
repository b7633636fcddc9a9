"""One client's socket: frames in, frames out, at most one write per turn of the loop."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from omnibus.errors import ProtocolError
from omnibus.tensors.block_lease import BlockOwner
from omnibus.tensors.protocol import (
    FrameReader,
    SidecarFrame,
    Verb,
    VersionMismatch,
    Welcome,
    encode_frame,
    encode_text,
)
from omnibus_sidecar.request_handler import Desk

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
