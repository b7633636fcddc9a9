"""One end of the gateway-worker socket: frames in, frames out.

Frames of the messages between a gateway and an app's worker process: pure encoding.

A frame is a little-endian u32 with the length of the body, then the body: one message of ``omnibus.app.protocol`` as
MessagePack.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from struct import Struct as Layout
from typing import TypeVar, cast

import msgspec

from omnibus.app.protocol import (
    MAX_FRAME_BYTES,
    MAX_GIVE_BYTES,
    MAX_MEDIA_BYTES,
    MAX_OTHER_BYTES,
    FromWorker,
    LoadApp,
    ToWorker,
    WorkerMessage,
)
from omnibus.errors import OmnibusError, ProtocolError, TooLarge
from omnibus.graph import UNREADABLE

_LENGTH = Layout("<I")
#: Limits by tag. The tag follows one byte for the array and one for the tag's length.
_MAX_BYTES_BY_TYPE = {
    b"answer": MAX_FRAME_BYTES, b"part": MAX_FRAME_BYTES, b"give": MAX_GIVE_BYTES, b"place": MAX_MEDIA_BYTES,
}  # fmt: skip
_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)

M = TypeVar("M")


def encode_message(message: WorkerMessage) -> bytes:
    """Encode ``message`` as a frame. Raises ``TooLarge`` if it exceeds the limit of its kind."""
    body = _encoder.encode(message)
    if len(body) > message.most:
        raise TooLarge(f"a message of {len(body)} bytes is too large for an app: it must have at most {message.most}")
    return _LENGTH.pack(len(body)) + body


def counted_bytes(frame: bytes) -> int:
    """Return the bytes of ``frame`` that count against a window: all except its length."""
    return len(frame) - _LENGTH.size


def read_load_message(end: socket.socket) -> LoadApp | None:
    """Wait for the first message of a gateway. Returns None if the other end is closed. Raises ``ProtocolError``."""
    head = _receive_exactly(end, _LENGTH.size)
    body = _receive_exactly(end, *_LENGTH.unpack(head)) if head else b""
    if not body:
        return None
    message = to_worker(body)
    if not isinstance(message, LoadApp):
        raise ProtocolError(f"the first message of a gateway must be LoadApp, not {type(message).__name__}")
    return message


def _receive_exactly(end: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes, or none if the other end is closed first."""
    data = bytearray()
    while len(data) < count:
        more = end.recv(count - len(data))
        if not more:
            return b""
        data += more
    return bytes(data)


def to_worker(body: bytes) -> ToWorker:
    """Decode the message in a frame. Raises ``ProtocolError``."""
    return _decode_message(_to_worker.decode, body)


def from_worker(body: bytes) -> FromWorker:
    """Decode the message in a frame. Raises ``ProtocolError``."""
    if len(body) > MAX_OTHER_BYTES and len(body) > _MAX_BYTES_BY_TYPE.get(
        body[2 : 2 + (body[1] & 0x1F)], MAX_OTHER_BYTES
    ):
        raise ProtocolError(f"a message of {len(body)} bytes exceeds the limit of its kind")
    return _decode_message(_from_worker.decode, body)


def _decode_message(decode: Callable[[bytes], M], body: bytes) -> M:
    try:
        return decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not a message between gateway and app: {error}") from error


class Frames:
    """Splits a byte stream into the bodies of frames."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that ``data`` completes. Raises ``ProtocolError`` for one over ``MAX_FRAME_BYTES``."""
        rest = self._rest
        rest += data
        at = 0
        while len(rest) >= at + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, at)
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame must have at most {MAX_FRAME_BYTES} bytes, not {length}")
            end = at + _LENGTH.size + length
            if len(rest) < end:
                break
            yield bytes(memoryview(rest)[at + _LENGTH.size : end])
            at = end
        del rest[:at]


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
