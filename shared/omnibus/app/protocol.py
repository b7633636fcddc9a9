"""Messages between a gateway and an app's worker process. ``omnibus.app.transport`` encodes them.

The gateway starts with ``LoadApp``, and the worker responds with ``AppReady`` or ``Broken``. After that, every
``Serve`` ends with exactly one ``RequestEnd`` or ``RequestFailed``. Flow control protects both ends. Outputs are sent
on request: one ``Items`` for each ``Read``. The worker's own output (``AnswerPart``, ``Give``) counts frame by frame
against a window of ``WINDOW_BYTES`` per request, which ``More`` opens again.

Items and their arrays, encoded by value for the gateway-worker socket.
"""

from collections.abc import Iterable
from math import prod
from typing import Any, ClassVar

import msgspec
import numpy as np

from omnibus.app_record import AppModel, AppSource, TaskRecord
from omnibus.errors import ProblemDetails, ProtocolError
from omnibus.task.record import Segment
from omnibus.tensors.handle import ITEMSIZE, Item

#: Most dimensions of an array.
_MAX_DIMENSIONS = 8


class Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Array by value, in C order. The byte order is that of the machine, which both ends share."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class PackedItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Encoded ``Item``."""

    data: dict[str, Any]
    array: Array | None = None


def pack_items(items: Iterable[Item]) -> tuple[PackedItem, ...]:
    """Encode ``items``. Raises ``ProtocolError`` for an array of an unsupported dtype."""
    return tuple(PackedItem(item.data, None if item.array is None else _pack_array(item.array)) for item in items)


def unpack_items(pieces: Iterable[PackedItem]) -> list[Item]:
    """Decode the items of a message. Their arrays are read-only views of it. Raises ``ProtocolError``."""
    return [Item(piece.data, None if piece.array is None else _array_view(piece.array)) for piece in pieces]


def _pack_array(array: np.ndarray) -> Array:
    if array.dtype.name not in ITEMSIZE or array.ndim > _MAX_DIMENSIONS:
        raise ProtocolError(
            f"cannot send an array of {array.dtype} with {array.ndim} dimensions: use at most {_MAX_DIMENSIONS} "
            f"dimensions and one of {sorted(ITEMSIZE)}"
        )
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Array(array.dtype.name, array.shape, native.tobytes())


def _array_view(array: Array) -> np.ndarray:
    name, shape = array.dtype, array.shape
    if name not in ITEMSIZE or name == "bfloat16" or len(shape) > _MAX_DIMENSIONS:
        raise ProtocolError(f"cannot receive an array of {name[:32]!r} with {len(shape)} dimensions")
    if any(extent < 0 for extent in shape) or prod(shape) * ITEMSIZE[name] != len(array.data):
        raise ProtocolError(f"an array of {name} with shape {shape} cannot have {len(array.data)} bytes")
    try:
        return np.frombuffer(array.data, np.dtype(name)).reshape(shape)
    except ValueError:  # no elements, and an extent beyond all memory
        raise ProtocolError(f"an array of {name} with shape {shape} is too large") from None


#: Most bytes of one message: those with a client's bytes, with audio, and all others. A gateway decodes the messages of
#: workers, so only messages that decode to one string of bytes may be large.
MAX_FRAME_BYTES, MAX_GIVE_BYTES, MAX_OTHER_BYTES = 64 << 20, 8 << 20, 1 << 20
#: Bytes of a message that carries one file of media.
MAX_MEDIA_BYTES = (32 << 20) + 1024
#: Bytes of parts that a worker may send ahead of their reader. One part may always be sent.
WINDOW_BYTES = 256 << 10
#: Kinds of requests: any JSON, or a chat whose media the gateway has placed. Others are in ``omnibus.app.routes``.
JSON, CHAT = "json", "chat"


class WorkerMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages. ``id`` is the number of a request of this worker, ``step`` that of a request's segment."""

    most: ClassVar[int] = MAX_OTHER_BYTES


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a loaded app.

    ``route`` is ``chat`` if the app serves chats as an OpenAI model named ``model``, and ``routes`` are its other
    routes, see ``omnibus.app.routes``. ``about`` are facts about that model. ``request`` and ``response`` are JSON
    schemas, empty if untyped. ``restricted`` describes the restrictions of uploaded code in words. It is empty for code
    that the operator installed. With ``chat``, the app accepts a ``ChatInput``, which the gateway makes of a chat
    request. An app without ``serve`` is not ``invocable``.
    """

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
    routes: tuple[str, ...] = ()
    about: AppModel = AppModel()
    invocable: bool = True


# To the worker


class LoadApp(WorkerMessage, frozen=True, tag="load"):
    """Load ``source``. ``text`` is the code of an upload. ``memory`` is in bytes, 0 for no limit. With ``show_errors``,
    clients get the app's errors."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    source: AppSource
    text: str = ""
    memory: int = 0
    show_errors: bool = False


class Serve(WorkerMessage, frozen=True, tag="serve"):
    """Serve request ``id``, which logs call ``run``. ``body`` is JSON, ``number`` counts requests, ``deadline`` is in
    Unix seconds."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    run: str
    body: bytes
    kind: str
    number: int
    deadline: float


class Submitted(WorkerMessage, frozen=True, tag="submitted"):
    """Report that segment ``step`` runs, as part of run ``invocation``."""

    id: int
    step: int
    invocation: str


class SegmentRefused(WorkerMessage, frozen=True, tag="refused"):
    """Report that segment ``step`` does not run."""

    id: int
    step: int
    problem: ProblemDetails


class Items(WorkerMessage, frozen=True, tag="items"):
    """Next items of an output. There are no more after ``ended``."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    step: int
    node: int
    output: str
    items: tuple[PackedItem, ...]
    ended: bool = False
    problem: ProblemDetails | None = None


class MediaPlaced(WorkerMessage, frozen=True, tag="placed"):
    """Report that file ``number`` is in the arena, as ``literal``.

    If there is a ``problem``, the file was not placed.
    """

    id: int
    number: int
    literal: dict[str, Any]
    problem: ProblemDetails | None = None


class More(WorkerMessage, frozen=True, tag="more"):
    """Report that frames of ``nbytes`` were read, without their lengths."""

    id: int
    nbytes: int


class Cancel(WorkerMessage, frozen=True, tag="cancel"):
    """Cancel request ``id``, as no client waits for it."""

    id: int


class Ping(WorkerMessage, frozen=True, tag="ping"):
    """Probe that the worker answers with ``Pong``."""


class StopWorker(WorkerMessage, frozen=True, tag="stop"):
    """Cancel everything and exit."""


# From the worker


class AppReady(WorkerMessage, frozen=True, tag="ready"):
    """Report that the app is loaded."""

    description: Description


class Broken(WorkerMessage, frozen=True, tag="broken"):
    """Report that the app cannot be loaded. The worker exits."""

    problem: ProblemDetails


class Submit(WorkerMessage, frozen=True, tag="submit"):
    """Run ``segment``."""

    id: int
    step: int
    segment: Segment


class PlaceMedia(WorkerMessage, frozen=True, tag="place"):
    """Place a file of the app where encoders read it. It is the ``number``-th of its request. With ``modality`` "", the
    file's first bytes determine its modality."""

    most: ClassVar[int] = MAX_MEDIA_BYTES

    id: int
    number: int
    modality: str
    data: bytes


class Read(WorkerMessage, frozen=True, tag="read"):
    """Request the next items of an output."""

    id: int
    step: int
    node: int
    output: str


class ServeAnswer(WorkerMessage, frozen=True, tag="answer"):
    """Return value of ``serve``.

    For JSON, this is ``body``. For a route, ``body`` is a JSON list of the names of outputs. Those in ``refs`` are
    outputs of nodes that the gateway reads itself. The others follow as ``Give``.
    """

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    body: bytes
    refs: dict[str, tuple[int, int, str]] = {}


class Give(WorkerMessage, frozen=True, tag="give"):
    """Items of an output that the app computes."""

    most: ClassVar[int] = MAX_GIVE_BYTES

    id: int
    name: str
    items: tuple[PackedItem, ...]
    ended: bool = False


class AnswerPart(WorkerMessage, frozen=True, tag="part"):
    """Part of a streamed answer, as JSON."""

    most: ClassVar[int] = MAX_FRAME_BYTES

    id: int
    body: bytes


class RequestEnd(WorkerMessage, frozen=True, tag="end"):
    """End of request ``id``: served, or cancelled on request."""

    id: int


class RequestFailed(WorkerMessage, frozen=True, tag="failed"):
    """End of request ``id`` with an error."""

    id: int
    problem: ProblemDetails


class Pong(WorkerMessage, frozen=True, tag="pong"):
    """Report that the worker's event loop runs."""


ToWorker = LoadApp | Serve | Submitted | SegmentRefused | Items | MediaPlaced | More | Cancel | Ping | StopWorker
FromWorker = (
    AppReady | Broken | Submit | PlaceMedia | Read | ServeAnswer | Give | AnswerPart | RequestEnd | RequestFailed | Pong
)
