"""Gapless numbers of a response's events, also if another gateway continues them.

A gateway that continues a response generates it again from its beginning. The number of tokens per event depends on the
executor's load, so the gateway compares the regenerated answer with the known one. Events must have the same kinds in
the same order, and deltas must add up to the same text. New events get the next numbers. If the answer differs, the
gateway does not continue it.

Events of ``/v1/responses`` over a WebSocket, in both directions.

A client sends ``response.create`` with the fields of a request at its top level. The gateway answers with the events of
a stream. They have the ``stream_id`` of the lane of the request, if it has one.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest, CannotContinue, OmnibusError
from omnibus_gateway.openai.errors import error_headers, status_of
from omnibus_gateway.openai.parse import check_values, invalid_request
from omnibus_gateway.openai.responses.events import TERMINAL, Event
from omnibus_gateway.openai.responses.items import OutputItem
from omnibus_gateway.openai.responses.request import ResponseRequest, parse_response_request

#: Deltas of which only the length is compared: audio samples may differ by a rounding step.
_COUNTED = frozenset({"response.audio.delta"})

_encode = msgspec.json.Encoder().encode


class NumberedEvent(msgspec.Struct, frozen=True):
    """An event ready to send. ``body`` is its JSON in one line."""

    type: str
    number: int
    body: bytes

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL

    @property
    def frame(self) -> bytes:
        """The server-sent event in one piece, because some readers lose partial ones."""
        return b"event: %b\ndata: %b\n\n" % (self.type.encode(), self.body)


class ResponseEvent(msgspec.Struct, frozen=True):
    """An event in the OpenAPI document. Its other fields depend on its ``type``, and are those of OpenAI."""

    type: str
    sequence_number: int


class _EventHead(msgspec.Struct):
    type: str
    sequence_number: int
    delta: str | None = None


class _WholeItem(msgspec.Struct):
    item: OutputItem


_decode_item = msgspec.json.Decoder(_WholeItem).decode
_decode_head = msgspec.json.Decoder(_EventHead).decode


def read_event(body: bytes) -> NumberedEvent:
    """Decode a stored event. Raises ``msgspec.MsgspecError``."""
    head = _decode_head(body)
    return NumberedEvent(head.type, head.sequence_number, body)


def item_of(event: NumberedEvent) -> list[Any]:
    """Return the item that ``event`` completes, or [] for other events."""
    return [_decode_item(event.body).item] if event.type == "response.output_item.done" else []


class EventSequence:
    """Numbering of a response's events; skips the first ones, which are ``known_events``."""

    def __init__(self, known_events: Sequence[NumberedEvent] = ()) -> None:
        self._next = len(known_events)
        # The model generates text and audio concurrently, so only the order within each is reproducible.
        self._known: dict[str, _KnownEvents] = {}
        for event in known_events:
            self._known.setdefault(_channel(event.type), _KnownEvents()).events.append(event)

    @classmethod
    def after(cls, known_events: Sequence[NumberedEvent]) -> "EventSequence":
        """Create a numbering that starts after ``known_events`` without comparing events."""
        sequence = cls()
        sequence._next = len(known_events)
        return sequence

    def number(self, events: Iterable[Event]) -> list[NumberedEvent]:
        """Number the new ones of ``events``. Raises ``CannotContinue`` if the others differ from the known ones."""
        return [self._number_event(event) for each in events if (event := self._skip_known(each)) is not None]

    def _skip_known(self, event: Event) -> Event | None:
        if event["type"] in TERMINAL and any(not known_channel.is_passed for known_channel in self._known.values()):
            raise CannotContinue(_DIVERGED_MESSAGE)
        known_events = self._known.get(_channel(event["type"]))
        return known_events.skip(event) if known_events is not None else event

    def _number_event(self, event: Event) -> NumberedEvent:
        number, self._next = self._next, self._next + 1
        head: dict[str, Any] = {"type": event["type"], "sequence_number": number}
        return NumberedEvent(event["type"], number, _encode(head | event))


class _KnownEvents:
    """Known events of one channel, and the position of the comparison."""

    def __init__(self) -> None:
        self.events: list[NumberedEvent] = []
        self._at = 0
        self._taken = 0  # characters of the delta at that position

    @property
    def is_passed(self) -> bool:
        return self._at >= len(self.events)

    def skip(self, event: Event) -> Event | None:
        """Return the new part of ``event``; None if it has none."""
        if self.is_passed:
            return event
        if isinstance(event.get("delta"), str):
            rest = self._skip_delta(event["type"], event["delta"])
            return {**event, "delta": rest} if rest else None
        if self.events[self._at].type != event["type"] or self._taken:
            raise CannotContinue(_DIVERGED_MESSAGE)
        self._at += 1
        return None

    def _skip_delta(self, type: str, delta: str) -> str:
        while delta and not self.is_passed:
            known_event = self.events[self._at]
            if known_event.type != type:
                raise CannotContinue(_DIVERGED_MESSAGE)
            text = (_decode_head(known_event.body).delta or "")[self._taken :]
            length = min(len(text), len(delta))
            if type not in _COUNTED and text[:length] != delta[:length]:
                raise CannotContinue(_DIVERGED_MESSAGE)
            delta = delta[length:]
            self._taken += length
            if length == len(text):
                self._at, self._taken = self._at + 1, 0
        return delta


def _channel(type: str) -> str:
    if type.startswith("response.audio.transcript."):
        return "transcript"
    return "audio" if type.startswith("response.audio.") else "items"


_DIVERGED_MESSAGE = "the regenerated response differs, so it cannot be continued: send the request again"


CREATE, STEER = "response.create", "response.steer"
StreamId = Annotated[str, Meta(min_length=1, max_length=128)]


class CreateEvent(NamedTuple):
    """A request of lane ``stream_id``. ``body`` is the same as the body of ``POST /v1/responses``.

    If ``generate`` is false, the response has no output: later requests can refer to it.
    """

    stream_id: str
    wanted: ResponseRequest
    body: bytes
    generate: bool = True


class SteerEvent(NamedTuple):
    """Input for a response that is in progress."""

    previous_response_id: str
    input: Any


class _Envelope(Struct, frozen=True):
    """The fields of an event that are not part of its request."""

    type: str
    stream_id: StreamId | None = None
    generate: bool | None = None
    stream: bool | None = None
    background: bool | None = None


def read_stream_id(text: str) -> str:
    """Return the lane of an event, or "" if it is unreadable."""
    try:
        return _HEAD.decode(text).stream_id or ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def parse_socket_event(text: str) -> CreateEvent | SteerEvent:
    """Decode an event of a client. Raises ``BadRequest`` with the name of the field, and ``TooLarge``."""
    check_values(text.encode("utf-8", "surrogatepass"))
    try:
        document = msgspec.json.decode(text)
        envelope = msgspec.convert(document, _Envelope)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), _Envelope) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadRequest("The event is not valid JSON.") from None
    if envelope.type == STEER:
        return SteerEvent(str(document.get("previous_response_id", "")), document.get("input"))
    if envelope.type != CREATE:
        raise BadRequest(f"The type of an event must be {CREATE} or {STEER}, not {envelope.type[:64]!r}.", param="type")
    return _read_create(document, envelope)


def _read_create(document: dict[str, Any], envelope: _Envelope) -> CreateEvent:
    if envelope.stream is False:
        raise BadRequest("Every response over a WebSocket is streamed: omit stream.", param="stream")
    if envelope.background:
        raise BadRequest(
            "Background responses are not supported over a WebSocket: send POST /v1/responses.", param="background"
        )
    generates = envelope.generate is not False
    fields = {name: value for name, value in document.items() if name not in _ENVELOPE_FIELDS}
    body = _encode({**fields, "stream": True} if generates else fields)
    return CreateEvent(envelope.stream_id or "", parse_response_request(body), body, generates)


def encode_event(event: NumberedEvent, stream_id: str) -> str:
    """Encode an event of a response as a message of lane ``stream_id``."""
    if not stream_id:
        return event.body.decode()
    return (event.body[:-1] + b',"stream_id":' + _encode(stream_id) + b"}").decode()


def encode_error(error: OmnibusError, stream_id: str, code: str = "") -> str:
    """Encode an error as a message of lane ``stream_id``. ``code`` replaces its own code if clients expect another."""
    detail: dict[str, Any] = {
        "type": error.kind,
        "code": code or error.code,
        "message": error.message,
        "param": error.param or None,
    }
    if headers := error_headers(error):
        detail["headers"] = headers
    lane = {"stream_id": stream_id} if stream_id else {}
    return _encode({"type": "error", "status": status_of(error), "error": detail, **lane}).decode()


def encode_steer_failure(steer: SteerEvent) -> str:
    """Encode the rejection of input for a response that is in progress."""
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "A response in progress accepts no input: send response.create with it after this response ends.",
    }
    steer_fields = {"previous_response_id": steer.previous_response_id, "input": steer.input}
    return _encode(
        {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer_fields}
    ).decode()


class _StreamName(Struct, frozen=True):
    """The lane of an event, for errors about it."""

    stream_id: StreamId | None = None


_HEAD = msgspec.json.Decoder(_StreamName)
_ENVELOPE_FIELDS = frozenset({"type", "stream_id", "generate", "stream", "background"})
