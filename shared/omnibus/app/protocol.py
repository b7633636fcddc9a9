"""Messages between a gateway and an app's worker process: pure encoding, no sockets.

A frame is a little-endian u32, the length of what follows, and one message as MessagePack. The gateway
starts with ``LoadApp``; the worker answers ``AppReady`` or ``Broken``. From then on every ``Serve`` ends with
exactly one ``RequestEnd`` or ``RequestFailed``. Nobody is flooded: outputs travel when they are asked for (``Read``,
answered by one ``Items``), and what the worker makes itself (``AnswerPart``, ``Give``) counts frame by frame against a
window of ``WINDOW`` bytes per request that ``More`` opens again.
"""

import socket
from collections.abc import Callable, Iterator
from struct import Struct as Layout
from typing import Any, ClassVar, TypeVar

import msgspec

from omnibus.app.array_codec import PackedItem
from omnibus.app_record import AppSource, TaskRecord
from omnibus.errors import ProblemDetails, ProtocolError, TooLarge
from omnibus.graph import UNREADABLE
from omnibus.task.record import Segment

#: Bytes that one message may have: those that carry a client's bytes, sounds, and all others. What a worker
#: sends is decoded by its gateway, so only what decodes to one string of bytes may be large.
MAX_FRAME_BYTES, MAX_GIVE_BYTES, MAX_OTHER_BYTES = 64 << 20, 8 << 20, 1 << 20
#: Bytes of a message that carries one file of media.
MAX_MEDIA_BYTES = (32 << 20) + 1024
#: Bytes of parts that a worker may send ahead of their reader. One part may always go.
WINDOW_BYTES = 256 << 10
#: Kinds of requests: any JSON, or a chat whose media the gateway has placed.
JSON, CHAT = "json", "chat"

_LENGTH = Layout("<I")


class WorkerMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages. ``id`` counts the requests of one worker, ``step`` the segments of a request."""

    most: ClassVar[int] = MAX_OTHER_BYTES


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a loaded app. ``route`` is ``chat`` when it serves an OpenAI model named ``model``;
    ``request`` and ``response`` are JSON schemas, empty when untyped; ``restricted`` says in words what
    keeps uploaded code in its process, empty for code that the operator installed. ``chat``: it takes a
    ``ChatInput``, which the gateway makes of a chat request."""

    name: str
    doc: str
    tasks: tuple[TaskRecord, ...]
    route: str
    model: str
    request: dict[str, Any]
    response: dict[str, Any]
    streams: bool
    restricted: tuple[str, ...] = ()
    chat: bool = False


# To the worker


class LoadApp(WorkerMessage, frozen=True, tag="load"):
    """Load ``source``; ``text`` is its code when it was uploaded. ``memory`` is in bytes, 0: no limit. ``show_errors``:
    what the app raises is for its clients too."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    source: AppSource
    text: str = ""
    memory: int = 0
    show_errors: bool = False


class Serve(WorkerMessage, frozen=True, tag="serve"):
    """Serve request ``id``, which is ``run`` for people. ``body`` is JSON, ``number`` counts requests,
    ``deadline`` is in Unix seconds."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    run: str
    body: bytes
    kind: str
    number: int
    deadline: float


class Submitted(WorkerMessage, frozen=True, tag="submitted"):
    """Segment ``step`` runs, as part of run ``invocation``."""

    id: int
    step: int
    invocation: str


class SegmentRefused(WorkerMessage, frozen=True, tag="refused"):
    """Segment ``step`` does not run."""

    id: int
    step: int
    problem: ProblemDetails


class Items(WorkerMessage, frozen=True, tag="items"):
    """The next items of an output; none is left once it has ``ended``."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    step: int
    node: int
    output: str
    items: tuple[PackedItem, ...]
    ended: bool = False
    problem: ProblemDetails | None = None


class MediaPlaced(WorkerMessage, frozen=True, tag="placed"):
    """The file ``number`` of a request is in the arena, where ``literal`` names it; or it is not, for ``problem``."""

    id: int
    number: int
    literal: dict[str, Any]
    problem: ProblemDetails | None = None


class More(WorkerMessage, frozen=True, tag="more"):
    """The reader took frames of ``nbytes`` bytes, without their lengths."""

    id: int
    nbytes: int


class Cancel(WorkerMessage, frozen=True, tag="cancel"):
    """Nobody waits for request ``id`` any more: end it."""

    id: int


class Ping(WorkerMessage, frozen=True, tag="ping"):
    """Answer with ``Pong``."""


class StopWorker(WorkerMessage, frozen=True, tag="stop"):
    """Cancel everything and exit."""


# From the worker


class AppReady(WorkerMessage, frozen=True, tag="ready"):
    """The app is loaded."""

    description: Description


class Broken(WorkerMessage, frozen=True, tag="broken"):
    """The app cannot be loaded; the worker exits."""

    problem: ProblemDetails


class Submit(WorkerMessage, frozen=True, tag="submit"):
    """Send ``segment`` on its way."""

    id: int
    step: int
    segment: Segment


class PlaceMedia(WorkerMessage, frozen=True, tag="place"):
    """Put a file that the app has, the ``number``-th of its request, where encoders read it; "" for a ``modality``
    leaves it to the file's first bytes."""

    most: ClassVar[int] = MAX_MEDIA_BYTES

    id: int
    number: int
    modality: str
    data: bytes


class Read(WorkerMessage, frozen=True, tag="read"):
    """Send the next items of an output."""

    id: int
    step: int
    node: int
    output: str


class ServeAnswer(WorkerMessage, frozen=True, tag="answer"):
    """Return value of ``serve``. JSON: ``body``. Chat: ``body`` names the outputs, a JSON list; those in
    ``refs`` are outputs of nodes that the gateway reads itself, the others follow as ``Give``."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    body: bytes
    refs: dict[str, tuple[int, int, str]] = {}


class Give(WorkerMessage, frozen=True, tag="give"):
    """Items of an output that the app makes itself."""

    most: ClassVar[int] = MAX_GIVE_BYTES

    id: int
    name: str
    items: tuple[PackedItem, ...]
    ended: bool = False


class AnswerPart(WorkerMessage, frozen=True, tag="part"):
    """One part of an answer that streams, as JSON."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    body: bytes


class RequestEnd(WorkerMessage, frozen=True, tag="end"):
    """Request ``id`` is over: served, or cancelled as asked."""

    id: int


class RequestFailed(WorkerMessage, frozen=True, tag="failed"):
    """Request ``id`` is over."""

    id: int
    problem: ProblemDetails


class Pong(WorkerMessage, frozen=True, tag="pong"):
    """The worker's event loop turns."""


ToWorker = LoadApp | Serve | Submitted | SegmentRefused | Items | MediaPlaced | More | Cancel | Ping | StopWorker
FromWorker = (
    AppReady | Broken | Submit | PlaceMedia | Read | ServeAnswer | Give | AnswerPart | RequestEnd | RequestFailed | Pong
)

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
        raise ProtocolError(f"a gateway begins with Load, not {type(message).__name__}")
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
        """The frames that ``data`` completes. Raises ``ProtocolError`` at one over ``MAX_FRAME``."""
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
