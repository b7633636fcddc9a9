"""Conversion of a chat request to messages and media items."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.chat_request import (
    AssistantMessage,
    AudioUrlPart,
    ChatRequest,
    DeveloperMessage,
    FilePart,
    FileReference,
    ImagePart,
    InputAudioPart,
    Message,
    RefusalPart,
    TextPart,
    ToolMessage,
    VideoPart,
)
from omnibus_gateway.openai.tools import ToolCall


class MediaRef(Struct, frozen=True):
    """One media item of a request, before the fetch: ``url``, base64 ``data`` or ``file_id`` is set.

    ``declared`` is a short format name ("wav") or "". ``param`` is the item's JSON path for errors.
    """

    modality: str  # image | video | audio, or FILE_PART until it is known
    url: str = ""
    data: str = ""
    declared: str = ""
    param: str = ""
    file_id: str = ""


#: Modality of a file that has only an id.
FILE_PART = "file"
_DATA_URL = re.compile(r"data:(image|audio|video)/", re.IGNORECASE)


def convert_messages(request: ChatRequest) -> tuple[list[dict[str, Any]], list[MediaRef]]:
    """Return the messages in ``Thinker.prompt`` format, and the media items in order.

    ``developer`` becomes ``system``. Raises ``BadRequest`` for unsupported parts.
    """
    items: list[MediaRef] = []
    function_names: dict[str, str] = {}  # names of functions, by the ids of their calls
    messages = []
    for index, message in enumerate(request.messages):
        param = f"messages[{index}]"
        fields = _convert_message(message, param, items)
        if isinstance(message, ToolMessage):
            fields |= _convert_tool_result(message, function_names, param)
        elif isinstance(message, AssistantMessage):
            fields |= _convert_assistant(message, function_names, param)
        messages.append(fields)
    return messages, items


def _convert_message(message: Message, param: str, items: list[MediaRef]) -> dict[str, Any]:
    role = "system" if isinstance(message, DeveloperMessage) else str(message.__struct_config__.tag)
    content = getattr(message, "content", None)
    if content is None:
        content = getattr(message, "refusal", None) or ""
    if isinstance(content, str):
        return {"role": role, "content": content}
    return {"role": role, "content": _convert_parts(content, param, items)}


def _convert_assistant(message: AssistantMessage, function_names: dict[str, str], param: str) -> dict[str, Any]:
    """Return the fields other than the content that chat templates read. Adds the calls to ``function_names``."""
    more: dict[str, Any] = {}
    if message.reasoning_content:
        more["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        more["tool_calls"] = [
            _convert_call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
        function_names.update({call.id: call.function.name for call in message.tool_calls})
    return more


def _convert_call(call: ToolCall, param: str) -> dict[str, Any]:
    """Convert a call for chat templates, whose arguments are an object."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        place = f"{param}.function.arguments"
        raise BadRequest("The arguments of a call must be the text of a JSON object.", param=place) from None
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _convert_tool_result(message: ToolMessage, function_names: dict[str, str], param: str) -> dict[str, Any]:
    if message.tool_call_id not in function_names:
        raise BadRequest(
            "Unknown tool_call_id: it must be the id of a call in an earlier assistant message.",
            param=f"{param}.tool_call_id",
        )
    return {"tool_call_id": message.tool_call_id, "name": function_names[message.tool_call_id]}


def _convert_parts(content: Sequence[Struct], param: str, items: list[MediaRef]) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = []
    for index, part in enumerate(content):
        if isinstance(part, TextPart):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, RefusalPart):
            parts.append({"type": "text", "text": part.refusal})
        else:
            item = _media_ref(part, f"{param}.content[{index}]")
            items.append(item)
            parts.append({"type": item.modality})
    return parts


def _media_ref(part: Struct, param: str) -> MediaRef:
    match part:
        case ImagePart():
            return MediaRef("image", url=part.image_url.url, param=f"{param}.image_url.url")
        case VideoPart():
            return MediaRef("video", url=part.video_url.url, param=f"{param}.video_url.url")
        case AudioUrlPart():
            return MediaRef("audio", url=part.audio_url.url, param=f"{param}.audio_url.url")
        case InputAudioPart(sound):
            return MediaRef("audio", data=sound.data, declared=sound.format, param=f"{param}.input_audio.data")
        case FilePart(file):
            return _file_ref(file, f"{param}.file")
    raise BadRequest("Parts of this type are not supported: send text, images, audio or video.", param=param)


def _file_ref(file: FileReference, param: str) -> MediaRef:
    if (file.file_id is None) == (file.file_data is None):
        raise BadRequest("A file part must have either a file_id or file_data.", param=param)
    if file.file_id is not None:
        return MediaRef(FILE_PART, file_id=file.file_id, param=f"{param}.file_id")
    kind = _DATA_URL.match(file.file_data or "")
    if kind is None:
        raise BadRequest(
            "file_data must be a data URL of an image, audio or video, such as data:image/png;base64,<data>.",
            param=f"{param}.file_data",
        )
    return MediaRef(kind[1].lower(), url=file.file_data or "", param=f"{param}.file_data")
