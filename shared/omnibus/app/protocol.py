"""Messages between a gateway and an app's worker process; ``omnibus.app.framing`` makes bytes of them.

The gateway starts with ``LoadApp``; the worker answers ``AppReady`` or ``Broken``. From then on every ``Serve`` ends
with exactly one ``RequestEnd`` or ``RequestFailed``. Nobody is flooded: outputs travel when they are asked for
(``Read``, answered by one ``Items``), and what the worker makes itself (``AnswerPart``, ``Give``) counts frame by frame
against a window of ``WINDOW_BYTES`` per request that ``More`` opens again.
"""

from typing import Any, ClassVar

import msgspec

from omnibus.app.array_codec import PackedItem
from omnibus.app_record import AppSource, TaskRecord
from omnibus.errors import ProblemDetails
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
