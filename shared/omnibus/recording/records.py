"""Records of an invocation's end, and of attempts stopped before it."""

import asyncio
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from omnibus import graph
from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.messages import Hop, PullCost
from omnibus.errors import NotFound, ProblemDetails, ProtocolError
from omnibus.graph import UNREADABLE, WIRE_VERSION, Invocation
from omnibus.pricing import RequestUsage

#: Seconds after its answer until the gateway records a short invocation.
WHOLE_RECORD_SECONDS = 0.02
#: Seconds after its answer in which its record reaches the stream, from any gateway.
RECORDED_WITHIN_SECONDS = 2 * WHOLE_RECORD_SECONDS


class RecordedAnswer(msgspec.Struct, omit_defaults=True):
    """Answer that the client got. ``audio_sha256`` is of its 16-bit samples."""

    text: str = ""
    text_sha256: str = ""
    audio_sha256: str = ""
    audio_seconds: float = 0.0
    rate: int = 0
    finish_reason: str = ""
    usage: dict[str, int] = {}
    #: Characters of the text, which may be recorded in part or not at all.
    characters: int = 0
    #: Calls of tools (see ``omnibus.structured.calls``) and reasoning, recorded as the text is; no digest: none came,
    #: or they are of a build that did not record them.
    calls: str = ""
    calls_sha256: str = ""
    reasoning: str = ""
    reasoning_sha256: str = ""


class Moved(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attempt ``attempt`` was stopped at that time (Unix seconds). See ``omnibus.recording.waterfall.Move``."""

    attempt: int
    at: float
    reason: str
    executor: str = ""
    message: str = ""
    #: The nodes that began again; empty: all of them. The others went on, or were done.
    again: tuple[int, ...] = ()
    #: Where such nodes began, by ``<node>.<output>``: tokens, rows of arrays, or steps that were not computed again.
    resumed: dict[str, int] = {}


class KeptOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output for other nodes, in the media directory by SHA-256.

    It is ``nbytes`` of tensors in ``chunks``. ``digest`` is of its content, however it was cut into chunks.
    """

    node: int
    output: str
    sha256: str
    nbytes: int
    chunks: int
    digest: str = ""


class AppCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request to ``app`` as its worker got it.

    Another version can get the same request.

    ``kind`` is that of ``omnibus.app.protocol``. Choices and samples depend on ``number`` and ``seed``. ``body`` is
    JSON; if ``placed``, its media are content hashes. A long one is kept under ``body_sha256`` instead.
    ``answer_sha256`` is of the answer: see ``omnibus_gateway.request.record``.
    """

    app: str
    kind: str
    number: int
    seed: int
    body: str = ""
    body_sha256: str = ""
    placed: bool = False
    answer_sha256: str = ""


class RequestLinks(NamedTuple):
    """Ids of other invocations that belong to a request.

    ``segments`` are its own later ones. ``called`` are requests of its model, for the images of a response; ``caller``
    is the request whose model made this one.
    """

    segments: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    caller: str = ""


class EndRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="end"):
    """The end of an invocation. Times are Unix seconds."""

    inv: str
    status: str
    created: float
    finished: float
    first: float = 0.0
    attempts: int = 1
    path: str = ""
    route: tuple[str, ...] = ()
    hops: tuple[Hop, ...] = ()
    answer: RecordedAnswer = msgspec.field(default_factory=RecordedAnswer)
    problem: ProblemDetails | None = None
    v: int = WIRE_VERSION
    #: Digests of an app's results, by ``<node>.<output>``.
    outputs: dict[str, str] = {}
    #: Ids of the later segments of this request.
    segments: tuple[str, ...] = ()
    #: Options of the last attempt, by node.
    options: tuple[str, ...] = ()
    #: Attempts that were given up.
    moves: tuple[Moved, ...] = ()
    #: The node that failed; -1: none is known to have.
    node: int = -1
    #: What nodes passed to each other, where that is kept.
    kept: tuple[KeptOutput, ...] = ()
    #: What the gateway pulled from other nodes; what nodes of the graph did is in ``hops``.
    pulls: tuple[PullCost, ...] = ()
    #: What it took of GPUs and money; None from gateways before there were prices.
    usage: RequestUsage | None = None
    #: Who sent it; empty where no API keys are required, and for the operator.
    tenant: str = ""
    #: Of an app's first segment, where inputs are recorded.
    call: AppCall | UnsetType = UNSET
    #: See ``RequestLinks``.
    called: tuple[str, ...] | UnsetType = UNSET
    caller: str | UnsetType = UNSET


class Record(NamedTuple):
    """An invocation as first recorded, and its end if it has ended."""

    invocation: Invocation
    ended: EndRecord | None


class _WholeRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="whole"):
    """Both records of a short invocation, in one message."""

    began: msgspec.Raw
    ended: msgspec.Raw


class RecordMessage(NamedTuple):
    """Content of one message of the stream: the beginning of an invocation, its end, or both."""

    invocation: Invocation | None
    ended: EndRecord | None


#: Ids of objects that consist of invocations, by their prefix, and how to find the invocations.
_OTHER_IDS = {
    "sess_": "each response of a realtime session has one, and `omnibus show SESSION` lists them",
    "resp_": "a response has one for each turn: the header x-request-id; GET /v1/invocations lists background ones",
    "batch_": "each line of a batch has one, which its output file says as request_id",
    "video_": "the invocations of videos are listed by GET /v1/invocations?app=videos",
}

_ended = msgspec.json.Decoder(EndRecord).decode
_whole = msgspec.json.Decoder(_WholeRecord).decode
_WHOLE_START = b'{"kind":"whole",'


def is_end(body: bytes) -> bool:
    """Return whether a record is that of an end. Its text may contain any words, so the tag's position counts."""
    return body.startswith(b'{"kind":"end"') or (b'"kind"' in body and _has_end_tag(body))


def _has_end_tag(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("kind") == msgspec.Raw(b'"end"')
    except UNREADABLE:
        return False


def decode_end(body: bytes) -> EndRecord:
    """Decode an end. Raises ``ProtocolError``."""
    try:
        return _ended(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not the end of an invocation: {graph.explain_unreadable(body, error)}") from error


def join_records(began: bytes, end: bytes) -> bytes:
    """Return one message of the encoded beginning and end of an invocation."""
    return b'%b"began":%b,"ended":%b}' % (_WHOLE_START, began, end)


def split_records(body: bytes) -> tuple[bytes, bytes]:
    """Return the beginning and end in a message; empty if missing. Raises ``ProtocolError``."""
    if not body.startswith(_WHOLE_START):
        return (b"", body) if is_end(body) else (body, b"")
    try:
        whole = _whole(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not the record of an invocation: {graph.explain_unreadable(body, error)}") from error
    return bytes(whole.began), bytes(whole.ended)


def decode_message(body: bytes) -> RecordMessage:
    """Return the content of one message of the stream. Raises ``ProtocolError``."""
    began, end = split_records(body)
    return RecordMessage(graph.decode_invocation(began) if began else None, decode_end(end) if end else None)


def parse_record(deliveries: list[Delivery], id: str) -> Record:
    """Return the record of ``id`` from its messages, oldest first. Raises ``NotFound`` and ``ProtocolError``."""
    parts = [split_records(delivery.data) for delivery in deliveries]
    begins, ends = [began for began, _ in parts if began], [end for _, end in parts if end]
    if not begins:
        raise NotFound(f"no record of invocation {id[:80]}: watch for ids with `omnibus tail`; it may be too old")
    return Record(graph.decode_invocation(begins[0]), decode_end(ends[-1]) if ends else None)


async def find_record(bus: Bus, id: str) -> Record:
    """Find the record of ``id``, even just after its answer. Raises ``NotFound`` and ``ProtocolError``.

    The id of a chat completion also identifies its invocation.
    """
    id = id.removeprefix("chatcmpl-").removeprefix("cmpl-")
    for prefix, advice in _OTHER_IDS.items():
        if id.startswith(prefix):
            raise NotFound(f"{id[:80]!r} is not an id of an invocation: {advice}")
    if not graph.is_addressable(id) or "." in id:
        raise NotFound(f"{id[:80]!r} is not an id of an invocation")
    subject = f"{subjects.ROOT}.inv.*.{id}"
    deliveries = await bus.read_records(subject)
    if not deliveries:
        await asyncio.sleep(RECORDED_WITHIN_SECONDS)
        deliveries = await bus.read_records(subject)
    return parse_record(deliveries, id)


async def find_segments(bus: Bus, id: str) -> list[Record]:
    """Find the records of ``id`` and later segments. Raises the errors of ``find_record``."""
    first = await find_record(bus, id)
    later = first.ended.segments if first.ended is not None else ()
    return [first, *[await find_record(bus, each) for each in later]]
