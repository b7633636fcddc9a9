"""Input and output items of a response. Source: the types of the ``openai`` package, 3.52.

Unknown fields inside items are ignored, because clients send received items back as history.

Tools of responses: functions, and the generation of images.
"""

import base64
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus_gateway.openai.chat_request import ImageDetail, InputFormat, Size
from omnibus_gateway.openai.images import ImageRequest
from omnibus_gateway.openai.options import MAX_TOOLS, Description, Name

Id = Annotated[str, Meta(min_length=1, max_length=256)]
#: State of an item; items of clients are complete.
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image: an https or data URL, or the id of a file."""

    image_url: str | None = None
    file_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    detail: ImageDetail | None = None


class InputAudioData(Struct, frozen=True):
    """Base64 audio. OpenAI defines wav and mp3; the other formats are extras. Browsers record webm and mp4."""

    data: Annotated[str, Meta(min_length=1)]
    format: InputFormat


class InputAudioContent(Struct, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: InputAudioData


class InputVideo(Struct, frozen=True, tag_field="type", tag="input_video"):
    """A video, an extra, as an https or data URL."""

    video_url: Annotated[str, Meta(min_length=1)]


class InputFile(Struct, frozen=True, tag_field="type", tag="input_file"):
    """A file of images, audio or video: its id, or a data URL. ``file_url`` is rejected."""

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
    """Spoken output of a model, an extension. ``data`` is the file in base64."""

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
    """A function call. ``arguments`` is JSON text as the model wrote it."""

    call_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: str
    id: str | UnsetType = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    #: The group of the function, if it is in one.
    namespace: str | UnsetType | None = UNSET


class FunctionCallOutput(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    call_id: Id
    output: str | Parts
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class CustomToolCall(Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool with free text."""

    call_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    input: str
    id: str | UnsetType = UNSET
    status: ItemStatus | UnsetType | None = UNSET
    namespace: str | UnsetType | None = UNSET


class CustomToolCallOutput(Struct, frozen=True, tag_field="type", tag="custom_tool_call_output"):
    """The result of such a call."""

    call_id: Id
    output: str | Parts
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class LocalShellAction(Struct, frozen=True, tag_field="type", tag="exec"):
    """A program and its arguments."""

    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(Struct, frozen=True, tag_field="type", tag="local_shell_call"):
    """A command for the client's shell."""

    call_id: Id
    action: LocalShellAction
    id: str | UnsetType = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class LocalShellCallOutput(Struct, frozen=True, tag_field="type", tag="local_shell_call_output"):
    """The output of such a command. Clients name the call by ``call_id``, or by ``id``."""

    output: str
    call_id: Id | UnsetType | None = UNSET
    id: Id | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ShellAction(Struct, frozen=True):
    """Lines of shell."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCall(Struct, frozen=True, tag_field="type", tag="shell_call"):
    """Commands for the client's shell."""

    call_id: Id
    action: ShellAction
    id: str | UnsetType = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ShellCallOutput(Struct, frozen=True, tag_field="type", tag="shell_call_output"):
    """The outputs of such commands: each has ``stdout``, ``stderr`` and ``outcome``."""

    call_id: Id
    output: list[dict[str, Any]]
    id: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class PatchOperation(Struct, frozen=True):
    """A change of one file; ``diff`` is unset for its deletion."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | UnsetType = UNSET


class ApplyPatchCall(Struct, frozen=True, tag_field="type", tag="apply_patch_call"):
    """A change for the client's files."""

    call_id: Id
    operation: PatchOperation
    id: str | UnsetType = UNSET
    status: ItemStatus | UnsetType | None = UNSET


class ApplyPatchCallOutput(Struct, frozen=True, tag_field="type", tag="apply_patch_call_output"):
    """The result of such a change."""

    call_id: Id
    status: Literal["completed", "failed"]
    output: str | None = None
    id: str | UnsetType | None = UNSET


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class Reasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning of a model before its answer. ``encrypted_content`` has the same text, for clients that request it."""

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
    """A reference to an item of the conversation or an earlier response."""

    id: Id


class ImageGenerationCall(Struct, frozen=True, tag_field="type", tag="image_generation_call"):
    """A generated image. ``result`` is its file in base64. Models that continue a conversation do not see it."""

    id: str | UnsetType = UNSET
    status: Literal["in_progress", "generating", "completed", "failed"] | UnsetType = UNSET
    result: str | UnsetType | None = UNSET
    revised_prompt: str | UnsetType | None = UNSET
    size: str | UnsetType | None = UNSET
    quality: str | UnsetType | None = UNSET
    background: str | UnsetType | None = UNSET
    output_format: str | UnsetType | None = UNSET


class Compaction(Struct, frozen=True, tag_field="type", tag="compaction"):
    """A summary in place of a conversation. ``encrypted_content`` is its text in the encoded form for clients."""

    encrypted_content: str
    id: str | UnsetType | None = UNSET

    @property
    def text(self) -> str:
        return decode_reasoning(self.encrypted_content)


#: Calls of tools that a client runs, and their results.
CallItem = FunctionCallItem | CustomToolCall | LocalShellCall | ShellCall | ApplyPatchCall
CallOutput = FunctionCallOutput | CustomToolCallOutput | LocalShellCallOutput | ShellCallOutput | ApplyPatchCallOutput
InputItem = InputMessage | CallItem | CallOutput | Reasoning | ItemReference | ImageGenerationCall | Compaction


class OutputMessage(Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputText | Refusal | OutputAudio]
    role: Literal["assistant"] = "assistant"


OutputItem = OutputMessage | Reasoning | CallItem | ImageGenerationCall

_ITEMS = msgspec.json.Decoder(list[InputItem])
_encode = msgspec.json.Encoder().encode


def encode_items(items: list[Any]) -> bytes:
    """Encode items as JSON."""
    return _encode(items)


def decode_items(body: bytes) -> list[InputItem]:
    """Decode stored items. Raises ``msgspec.MsgspecError``."""
    return _ITEMS.decode(body)


def with_ids(items: list[InputItem], new_id: Any) -> list[InputItem]:
    """Prepare ``items`` for storage: each gets an id, and messages get a list of parts."""
    stored_items: list[InputItem] = []
    for item in items:
        changes: dict[str, Any] = {} if item.id else {"id": new_id(_ID_PREFIXES[type(item)])}
        if isinstance(item, InputMessage):
            changes["status"] = item.status or "completed"
            if isinstance(item.content, str):
                changes["content"] = [_text_part(item)]
        elif isinstance(item, CallItem | CallOutput):
            changes["status"] = item.status or "completed"
        stored_items.append(msgspec.structs.replace(item, **changes))
    return stored_items


def _text_part(item: InputMessage) -> ContentPart:
    text = item.content if isinstance(item.content, str) else ""
    return OutputText(text) if item.role == "assistant" else InputText(text)


_ID_PREFIXES: dict[type, str] = {
    InputMessage: "msg_",
    FunctionCallItem: "fc_",
    FunctionCallOutput: "fco_",
    CustomToolCall: "ctc_",
    CustomToolCallOutput: "ctco_",
    LocalShellCall: "lsh_",
    LocalShellCallOutput: "lsho_",
    ShellCall: "sh_",
    ShellCallOutput: "sho_",
    ApplyPatchCall: "apc_",
    ApplyPatchCallOutput: "apco_",
    Reasoning: "rs_",
    ItemReference: "ref_",
    ImageGenerationCall: "ig_",
    Compaction: "cmp_",
}


def encode_reasoning(text: str) -> str:
    """Encode reasoning in the form that clients without a store send back."""
    return base64.b64encode(text.encode()).decode()


def decode_reasoning(data: str) -> str:
    """Undo ``encode_reasoning``. Returns "" for any other text."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return ""


#: Name, description and parameters of the function that represents the image tool to a model.
IMAGE_TOOL = "image_generation"
IMAGE_TOOL_DESCRIPTION = "Draw an image and show it to the user."
IMAGE_TOOL_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "What the image shows, in full."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


class FlatFunctionTool(Struct, frozen=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A function that a model may call. ``parameters`` is a JSON schema; with ``strict``, calls satisfy it."""

    name: Name
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ImageGenerationTool(Struct, frozen=True, tag_field="type", tag="image_generation", forbid_unknown_fields=True):
    """A tool that generates images. ``model`` is optional if there is only one image model."""

    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    size: Size | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None

    # Accepted only with values that change nothing.
    action: Literal["generate", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    quality: str | None = None

    # Accepted and ignored: the gateway does not filter images.
    moderation: Literal["low", "auto"] | None = None

    def to_image_request(self, model: str, prompt: str) -> ImageRequest:
        """Convert the tool's options to a request for an image of ``prompt``."""
        return ImageRequest(
            model=model,
            prompt=prompt,
            size=self.size,
            output_format=self.output_format,
            output_compression=self.output_compression,
            background=self.background,
            quality=self.quality,
        )


class NamedImageChoice(Struct, frozen=True, tag_field="type", tag="image_generation", forbid_unknown_fields=True):
    """A choice that requires an image."""


class FlatNamedChoice(Struct, frozen=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    """The choice of one function that the model must call."""

    name: Name


class FlatAllowedChoice(Struct, frozen=True, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    """A choice that allows only some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatNamedChoice], Meta(min_length=1, max_length=MAX_TOOLS)]
