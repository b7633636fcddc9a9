"""Frames around the messages between a gateway and an app's worker process: pure encoding.

A frame is a little-endian u32, the length of what follows, and one message of ``omnibus.app.protocol`` as MessagePack.
"""

import socket
from collections.abc import Callable, Iterator
from struct import Struct as Layout
from typing import TypeVar

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
from omnibus.errors import ProtocolError, TooLarge
from omnibus.graph import UNREADABLE

_LENGTH = Layout("<I")
#: By the tag, which follows one byte for the array and one for the tag's length.
_MAX_BYTES_BY_TYPE = {
    b"answer": MAX_FRAME_BYTES, b"part": MAX_FRAME_BYTES, b"give": MAX_GIVE_BYTES, b"place": MAX_MEDIA_BYTES,
}  # fmt: skip
_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)

M = TypeVar("M")


def encode_message(message: WorkerMessage) -> bytes:
    """``message`` as a frame. Raises ``TooLarge`` when it has more bytes than its kind may have."""
    body = _encoder.encode(message)
    if len(body) > message.most:
        raise TooLarge(f"a message of {len(body)} bytes is too large for an app: {message.most} are allowed")
    return _LENGTH.pack(len(body)) + body


def counted_bytes(frame: bytes) -> int:
    """Bytes of ``frame`` that count against a window: all but its length."""
    return len(frame) - _LENGTH.size


def read_load_message(end: socket.socket) -> LoadApp | None:
    """The first message of a gateway, waited for; None when the other end closed. Raises ``ProtocolError``."""
    head = _receive_exactly(end, _LENGTH.size)
    body = _receive_exactly(end, *_LENGTH.unpack(head)) if head else b""
    if not body:
        return None
    message = to_worker(body)
    if not isinstance(message, LoadApp):
        raise ProtocolError(f"a gateway begins with LoadApp, not {type(message).__name__}")
    return message


def _receive_exactly(end: socket.socket, count: int) -> bytes:
    """``count`` bytes; none when the other end closes before."""
    found = bytearray()
    while len(found) < count:
        more = end.recv(count - len(found))
        if not more:
            return b""
        found += more
    return bytes(found)


def to_worker(body: bytes) -> ToWorker:
    """The message in a frame. Raises ``ProtocolError``."""
    return _decode_message(_to_worker.decode, body)


def from_worker(body: bytes) -> FromWorker:
    """The message in a frame. Raises ``ProtocolError``."""
    if len(body) > MAX_OTHER_BYTES and len(body) > _MAX_BYTES_BY_TYPE.get(
        body[2 : 2 + (body[1] & 0x1F)], MAX_OTHER_BYTES
    ):
        raise ProtocolError(f"a message of {len(body)} bytes, which its kind may not have")
    return _decode_message(_from_worker.decode, body)


def _decode_message(decode: Callable[[bytes], M], body: bytes) -> M:
    try:
        return decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not a message between gateway and app: {error}") from error


class Frames:
    """Cuts a byte stream into the bodies of frames."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that ``data`` completes. Raises ``ProtocolError`` at one over ``MAX_FRAME_BYTES``."""
        rest = self._rest
        rest += data
        at = 0
        while len(rest) >= at + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, at)
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length} bytes: {MAX_FRAME_BYTES} are allowed")
            end = at + _LENGTH.size + length
            if len(rest) < end:
                break
            yield bytes(memoryview(rest)[at + _LENGTH.size : end])
            at = end
        del rest[:at]
