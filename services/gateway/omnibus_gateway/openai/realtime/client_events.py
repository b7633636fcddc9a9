"""Client events of realtime sessions, decoded from text frames and checked."""

import json
import re
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.parse import check_values, invalid_request
from omnibus_gateway.openai.realtime.session import (
    ItemId,
    RealtimeItem,
    RealtimeReference,
    ResponseOptions,
    SessionUpdate,
)

#: Limit of the base64 characters that one event may append: 15 MiB, as in OpenAI's API.
MAX_APPEND_CHARS = 15 << 20
#: Limit of the items that replace the conversation for one response.
MAX_INPUT_ITEMS = 512
MAX_EVENT_ID_CHARS = 512
EventId = Annotated[str, Meta(max_length=MAX_EVENT_ID_CHARS)]
_HALF_PAIR = re.compile("[\ud800-\udfff]")
#: Escapes in JSON for halves of surrogate pairs, or whole pairs.
_ESCAPED_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


class ClientEvent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    event_id: EventId | None = None


class UpdateSession(ClientEvent, frozen=True, tag_field="type", tag="session.update"):
    session: SessionUpdate


class AppendAudio(ClientEvent, frozen=True, tag_field="type", tag="input_audio_buffer.append"):
    audio: Annotated[str, Meta(max_length=MAX_APPEND_CHARS)]


class CommitAudio(ClientEvent, frozen=True, tag_field="type", tag="input_audio_buffer.commit"):
    """Turns the buffered audio into a message."""


class ClearAudio(ClientEvent, frozen=True, tag_field="type", tag="input_audio_buffer.clear"):
    """Discards the buffered audio."""


class ClearOutput(ClientEvent, frozen=True, tag_field="type", tag="output_audio_buffer.clear"):
    """Decoded only so that the error can name it: a WebSocket has no such buffer."""

    refusal: ClassVar[str] = "output_audio_buffer.clear is for WebRTC: over a WebSocket the client buffers the audio."


class CreateItem(ClientEvent, frozen=True, tag_field="type", tag="conversation.item.create"):
    item: RealtimeItem
    previous_item_id: ItemId | None = None


class RetrieveItem(ClientEvent, frozen=True, tag_field="type", tag="conversation.item.retrieve"):
    item_id: ItemId


class TruncateItem(ClientEvent, frozen=True, tag_field="type", tag="conversation.item.truncate"):
    item_id: ItemId
    content_index: Annotated[int, Meta(ge=0, le=1 << 20)]
    audio_end_ms: Annotated[int, Meta(ge=0, le=1 << 40)]


class DeleteItem(ClientEvent, frozen=True, tag_field="type", tag="conversation.item.delete"):
    item_id: ItemId


class CreateResponse(ClientEvent, frozen=True, tag_field="type", tag="response.create"):
    response: ResponseOptions | None = None


class CancelResponse(ClientEvent, frozen=True, tag_field="type", tag="response.cancel"):
    response_id: ItemId | None = None


AnyClientEvent = (
    UpdateSession
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | ClearOutput
    | CreateItem
    | RetrieveItem
    | TruncateItem
    | DeleteItem
    | CreateResponse
    | CancelResponse
)
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyClientEvent)
_INPUT = Annotated[list[RealtimeItem | RealtimeReference], Meta(max_length=MAX_INPUT_ITEMS)]


class _EventName(Struct, frozen=True):
    """The id of an event, for errors about it."""

    event_id: EventId | None = None


_HEAD = msgspec.json.Decoder(_EventName)


def read_event_id(text: str) -> str | None:
    """Return the client's id of an event; None if it is unreadable."""
    try:
        return _HEAD.decode(text).event_id
    except msgspec.ValidationError:
        return None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        id = _read_half_pairs(text).get("event_id")
    return id if isinstance(id, str) and len(id) <= MAX_EVENT_ID_CHARS and not _HALF_PAIR.search(id) else None


def _read_half_pairs(text: str) -> dict[str, Any]:
    """Decode an event that may have halves of surrogate pairs.

    Clients that cut strings between UTF-16 units send them. Returns {} if ``text`` is not an event.
    """
    try:
        event = json.loads(text) if _ESCAPED_PAIR.search(text) else None
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def parse_client_event(text: str) -> Any:
    """Decode one of ``AnyClientEvent``. Raises ``BadRequest`` with the name of the field, and ``TooLarge``."""
    check_values(text.encode("utf-8", "surrogatepass"))
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), _DECODER.type, text.encode()) from None
    except (msgspec.DecodeError, UnicodeError):
        if _read_half_pairs(text):
            raise BadRequest("The event has half of a surrogate pair (\\ud800 to \\udfff): send both halves.") from None
        raise BadRequest("The event is not valid JSON.") from None
    except RecursionError:
        raise BadRequest("The event is nested too deeply.") from None


def parse_response_input(value: Any) -> list[RealtimeItem | RealtimeReference]:
    """Convert ``response.input`` of ``response.create``. Raises ``BadRequest``."""
    try:
        return msgspec.convert(value, _INPUT)
    except msgspec.ValidationError as error:
        wrong = invalid_request(str(error))
        wrong.param = f"response.input{wrong.param}" if wrong.param.startswith("[") else "response.input"
        raise wrong from None
