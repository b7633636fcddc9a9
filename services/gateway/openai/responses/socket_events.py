"""Events of ``/v1/responses`` over a WebSocket: what clients send, checked, and what they are sent.

A client sends ``response.create`` with the fields of a request at its top level. Answers are the events of a stream,
with the ``stream_id`` of the lane that asked, if it named one.
"""

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest, OmnibusError
from services.gateway.openai.density import check_values
from services.gateway.openai.errors import error_headers, status_of
from services.gateway.openai.parse import invalid_request
from services.gateway.openai.responses.request import ResponseRequest, parse_response_request
from services.gateway.openai.responses.sequence import NumberedEvent

CREATE, STEER = "response.create", "response.steer"
StreamId = Annotated[str, Meta(min_length=1, max_length=128)]

_encode = msgspec.json.Encoder().encode


class CreateEvent(NamedTuple):
    """A request of lane ``stream_id``. ``body`` is the same as the body of ``POST /v1/responses``. One that does not
    ``generate`` has no output: it is there to be referred to."""

    stream_id: str
    wanted: ResponseRequest
    body: bytes
    generate: bool = True


class SteerEvent(NamedTuple):
    """Input for a response that is under way."""

    previous_response_id: str
    input: Any


class _Envelope(Struct, frozen=True):
    """The fields of an event that are no part of its request."""

    type: str
    stream_id: StreamId | None = None
    generate: bool | None = None
    stream: bool | None = None
    background: bool | None = None


def read_stream_id(text: str) -> str:
    """The lane of an event, as far as it can be read."""
    try:
        return _HEAD.decode(text).stream_id or ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def parse_socket_event(text: str) -> CreateEvent | SteerEvent:
    """``text`` as an event of a client. Raises ``BadRequest`` that names the field, and ``TooLarge``."""
    check_values(text.encode("utf-8", "surrogatepass"))
    try:
        found = msgspec.json.decode(text)
        envelope = msgspec.convert(found, _Envelope)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), _Envelope) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadRequest("The event is not valid JSON.") from None
    if envelope.type == STEER:
        return SteerEvent(str(found.get("previous_response_id", "")), found.get("input"))
    if envelope.type != CREATE:
        raise BadRequest(f"The type of an event is {CREATE} or {STEER}, not {envelope.type[:64]!r}.", param="type")
    return _read_create(found, envelope)


def _read_create(found: dict[str, Any], envelope: _Envelope) -> CreateEvent:
    if envelope.stream is False:
        raise BadRequest("Over a WebSocket every response is streamed: leave stream out.", param="stream")
    if envelope.background:
        raise BadRequest(
            "Over a WebSocket there are no responses in the background: send POST /v1/responses.", param="background"
        )
    generates = envelope.generate is not False
    fields = {name: value for name, value in found.items() if name not in _ENVELOPE_FIELDS}
    body = _encode({**fields, "stream": True} if generates else fields)
    return CreateEvent(envelope.stream_id or "", parse_response_request(body), body, generates)


def encode_event(event: NumberedEvent, stream_id: str) -> str:
    """An event of a response as a message of lane ``stream_id``."""
    if not stream_id:
        return event.body.decode()
    return (event.body[:-1] + b',"stream_id":' + _encode(stream_id) + b"}").decode()


def encode_error(error: OmnibusError, stream_id: str, code: str = "") -> str:
    """An error as a message of lane ``stream_id``; ``code`` where clients know it by another one."""
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
    """The answer to input for a response that is under way: none is taken."""
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "Responses take no input while they are made: send response.create with it when this one is over.",
    }
    returned = {"previous_response_id": steer.previous_response_id, "input": steer.input}
    return _encode({"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": returned}).decode()


class _StreamName(Struct, frozen=True):
    """The part of an event that its error names."""

    stream_id: StreamId | None = None


_HEAD = msgspec.json.Decoder(_StreamName)
_ENVELOPE_FIELDS = frozenset({"type", "stream_id", "generate", "stream", "background"})
