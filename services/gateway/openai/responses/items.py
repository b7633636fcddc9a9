"""Items that go into a response and come out of it. Source: the types of the ``openai`` package, 3.52.

Inside items, fields that are not named here are ignored, because clients send what they were given back as history.
"""

import base64
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from services.gateway.openai.chat_request import ImageDetail, InputFormat

Id = Annotated[str, Meta(min_length=1, max_length=256)]
#: Where an item is: those of a client are complete.
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An https or data URL, or the id of an uploaded file."""

    image_url: str | None = None
    file_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    detail: ImageDetail | None = None


class InputAudioData(Struct, frozen=True):
    """Base64 audio. OpenAI names wav and mp3; the other formats are extras, webm and mp4 those of browsers."""

    data: Annotated[str, Meta(min_length=1)]
    format: InputFormat


class InputAudioContent(Struct, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: InputAudioData


class InputVideo(Struct, frozen=True, tag_field="type", tag="input_video"):
    """An extra: an https or data URL of a video."""

    video_url: Annotated[str, Meta(min_length=1)]


class InputFile(Struct, frozen=True, tag_field="type", tag="input_file"):
    """A file of images, audio or video: uploaded before, or as a data URL. ``file_url`` is refused by name."""

    file_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    file_data: Annotated[str, Meta(min_length=1)] | None = None
    file_url: str | None = None
    filename: str | None = None


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class Refusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class OutputAudio(Struct, frozen=True, tag_field="type", tag="output_audio"):
    """An extension: what a model has said aloud. ``data`` is the file in base64."""

    transcript: str = ""
    id: str = ""
    data: str = ""
    format: str = ""


ContentPart = InputText | InputImage | InputAudioContent | InputVideo | InputFile | OutputText | Refusal | OutputAudio
Parts = Annotated[list[ContentPart], Meta(min_length=1, max_length=1024)]


class InputMessage(Struct, frozen=True, tag_field="type", tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    id: str | UnsetType = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class FunctionCallItem(Struct, frozen=True, tag_field="type", tag="function_call"):
    """``arguments`` is JSON text as the model wrote it."""

    call_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: str
    id: str | UnsetType = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class FunctionCallOutput(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """Result of a call."""

    call_id: Id
    output: str | Parts
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class Reasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Thoughts of a model before its answer. ``encrypted_content`` is the same text, for clients that ask for it."""

    id: str | UnsetType = UNSET
    summary: list[SummaryText] = []
    content: list[ReasoningText] | UnsetType | None = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET

    @property
    def text(self) -> str:
        if self.content:
            return "".join(part.text for part in self.content)
        return decode_reasoning(self.encrypted_content) if self.encrypted_content else ""


class ItemReference(Struct, frozen=True, tag_field="type", tag="item_reference"):
    """An item of the conversation or of a response before, by its id."""

    id: Id


class ImageGenerationCall(Struct, frozen=True, tag_field="type", tag="image_generation_call"):
    """An image that was drawn: ``result`` is its file in base64. Models that go on with a conversation see none."""

    id: str | UnsetType = UNSET
    status: Literal["in_progress", "generating", "completed", "failed"] | UnsetType = UNSET
    result: str | UnsetType | None = UNSET
    revised_prompt: str | UnsetType | None = UNSET
    size: str | UnsetType | None = UNSET
    quality: str | UnsetType | None = UNSET
    background: str | UnsetType | None = UNSET
    output_format: str | UnsetType | None = UNSET


class Compaction(Struct, frozen=True, tag_field="type", tag="compaction"):
    """A summary in place of a conversation: ``encrypted_content`` is its text, in the form that clients send back."""

    encrypted_content: str
    id: str | UnsetType | None = UNSET

    @property
    def text(self) -> str:
        return decode_reasoning(self.encrypted_content)


InputItem = (
    InputMessage | FunctionCallItem | FunctionCallOutput | Reasoning | ItemReference | ImageGenerationCall | Compaction
)


class OutputMessage(Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputText | Refusal | OutputAudio]
    role: Literal["assistant"] = "assistant"


OutputItem = OutputMessage | Reasoning | FunctionCallItem | ImageGenerationCall

_ITEMS = msgspec.json.Decoder(list[InputItem])
_encode = msgspec.json.Encoder().encode


def encode_items(items: list[Any]) -> bytes:
    """Items as JSON."""
    return _encode(items)


def decode_items(body: bytes) -> list[InputItem]:
    """Items that were kept. Raises ``msgspec.MsgspecError``."""
    return _ITEMS.decode(body)


def with_ids(items: list[InputItem], new_id: Any) -> list[InputItem]:
    """``items`` as they are kept: each with an id, and messages with a list of parts."""
    kept: list[InputItem] = []
    for item in items:
        changes: dict[str, Any] = {} if item.id else {"id": new_id(_ID_PREFIXES[type(item)])}
        if isinstance(item, InputMessage):
            changes["status"] = item.status or "completed"
            if isinstance(item.content, str):
                changes["content"] = [_text_part(item)]
        elif isinstance(item, FunctionCallItem | FunctionCallOutput):
            changes["status"] = item.status or "completed"
        kept.append(msgspec.structs.replace(item, **changes))
    return kept


def _text_part(item: InputMessage) -> ContentPart:
    text = item.content if isinstance(item.content, str) else ""
    return OutputText(text) if item.role == "assistant" else InputText(text)


_ID_PREFIXES: dict[type, str] = {
    InputMessage: "msg_",
    FunctionCallItem: "fc_",
    FunctionCallOutput: "fco_",
    Reasoning: "rs_",
    ItemReference: "ref_",
    ImageGenerationCall: "ig_",
    Compaction: "cmp_",
}


def encode_reasoning(text: str) -> str:
    """Reasoning in the form in which a client without a store gives it back."""
    return base64.b64encode(text.encode()).decode()


def decode_reasoning(data: str) -> str:
    """Undo ``encode_reasoning``; empty for what is none of it."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return ""
