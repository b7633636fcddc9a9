"""From a chat request to what a thinker reads and what has to be fetched."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from omnibus.errors import BadRequest
from services.gateway.openai.chat_request import (
    AudioUrlPart,
    ChatRequest,
    DeveloperMessage,
    ImagePart,
    InputAudioPart,
    Message,
    RefusalPart,
    TextPart,
    VideoPart,
)


class MediaRef(Struct, frozen=True):
    """One media item of a request, not yet fetched: ``url`` or base64 ``data`` is set.

    ``declared`` is a short format name ("wav") or "". ``param`` is the item's JSON path for errors.
    """

    modality: str  # image | video | audio
    url: str = ""
    data: str = ""
    declared: str = ""
    param: str = ""


def convert_messages(request: ChatRequest) -> tuple[list[dict[str, Any]], list[MediaRef]]:
    """The messages as ``Thinker.prompt`` takes them, and the media items in order of appearance.

    ``developer`` becomes ``system``. Raises ``BadRequest`` for parts that cannot be served.
    """
    items: list[MediaRef] = []
    messages = [
        _convert_message(message, f"messages[{index}]", items) for index, message in enumerate(request.messages)
    ]
    return messages, items


def _convert_message(message: Message, param: str, items: list[MediaRef]) -> dict[str, Any]:
    role = "system" if isinstance(message, DeveloperMessage) else str(message.__struct_config__.tag)
    content = getattr(message, "content", None)
    if content is None:
        content = getattr(message, "refusal", None) or ""
    if isinstance(content, str):
        return {"role": role, "content": content}
    return {"role": role, "content": _convert_parts(content, param, items)}


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
    raise BadRequest("File parts are not supported: send images, audio or video.", param=param)
