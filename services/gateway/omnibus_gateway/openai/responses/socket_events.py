"""Events of ``/v1/responses`` over a WebSocket, in both directions.

A client sends ``response.create`` with the fields of a request at its top level. The gateway answers with the events of
a stream. They have the ``stream_id`` of the lane of the request, if it has one.
"""

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest, OmnibusError
from omnibus_gateway.openai.errors import error_headers, status_of
from omnibus_gateway.openai.parse import check_values, invalid_request
from omnibus_gateway.openai.responses.request import ResponseRequest, parse_response_request
from omnibus_gateway.openai.responses.sequence import NumberedEvent

CREATE, STEER = "response.create", "response.steer"
StreamId = Annotated[str, Meta(min_length=1, max_length=128)]

_encode = msgspec.json.Encoder().encode


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
