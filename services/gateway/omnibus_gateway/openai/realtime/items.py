"""Items of a realtime conversation in the format of clients."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus_gateway.openai.chat_request import ImageDetail

ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
#: Limits: characters of the text of one part, and parts of one message.
MAX_TEXT_CHARS, MAX_PARTS = 1 << 20, 64
_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
_Status = Literal["completed", "incomplete", "in_progress"]


class RealtimeInputText(Struct, frozen=True, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    text: _Text


class RealtimeInputAudio(Struct, frozen=True, tag_field="type", tag="input_audio", forbid_unknown_fields=True):
    """Base64 audio in the session's input format. The model does not read ``transcript``."""

    audio: Annotated[str, Meta(min_length=1)]
    transcript: _Text | None = None


class RealtimeInputImage(Struct, frozen=True, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    """An image as a data URL or an https URL."""

    image_url: Annotated[str, Meta(min_length=1)]
    detail: ImageDetail | None = None


class RealtimeOutputText(Struct, frozen=True, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    text: _Text


class RealtimeOutputAudio(Struct, frozen=True, tag_field="type", tag="output_audio", forbid_unknown_fields=True):
    """The transcript of an assistant's speech. ``audio`` is rejected: no model can continue it."""

    transcript: _Text
    audio: str | None = None


RealtimePart = RealtimeInputText | RealtimeInputAudio | RealtimeInputImage | RealtimeOutputText | RealtimeOutputAudio


class RealtimeMessage(Struct, frozen=True, tag_field="type", tag="message", forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[RealtimePart], Meta(min_length=1, max_length=MAX_PARTS)]
    id: ItemId | UnsetType | None = UNSET
    object: Literal["realtime.item"] | UnsetType = UNSET
    status: _Status | UnsetType | None = UNSET


class RealtimeFunctionCall(Struct, frozen=True, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    """A function call. ``arguments`` is JSON text."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: _Text
    call_id: ItemId | UnsetType = UNSET
    id: ItemId | UnsetType | None = UNSET
    object: Literal["realtime.item"] | UnsetType = UNSET
    status: _Status | UnsetType | None = UNSET


class RealtimeFunctionOutput(
    Struct, frozen=True, tag_field="type", tag="function_call_output", forbid_unknown_fields=True
):
    call_id: ItemId
    output: _Text
    id: ItemId | UnsetType | None = UNSET
    object: Literal["realtime.item"] | UnsetType = UNSET
    status: _Status | UnsetType | None = UNSET


class RealtimeReference(Struct, frozen=True, tag_field="type", tag="item_reference", forbid_unknown_fields=True):
    """A reference to an item of the conversation by its id."""

    id: ItemId


RealtimeItem = RealtimeMessage | RealtimeFunctionCall | RealtimeFunctionOutput
