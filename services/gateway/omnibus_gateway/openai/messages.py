"""Messages of a chat and the media in them: data URLs are cut out before the JSON is decoded.

Decoding a megabyte of base64 as a JSON string scans it, copies it, and copies the part after the comma again. Instead,
the request gets a view of the body, and a marker replaces the base64 during JSON decoding. The base64 is not read
before the media are decoded. Clients cannot guess a marker. If one appears anywhere except as the URL of an item of
media, the gateway parses the whole body.

Browsers' recorders write headers that RFC 2397 does not allow, such as ``video/webm;codecs=vp8,opus`` with a comma,
values in quotes, and blanks after semicolons. Source: RFC 2397, the Fetch standard (data URLs).
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
import pybase64
from msgspec import Struct

from omnibus.errors import BadRequest, TooLarge
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
    Url,
    VideoPart,
)
from omnibus_gateway.openai.options import ToolCall
from omnibus_gateway.openai.parse import parse_chat


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


#: Limit of the characters between "data:" and the data.
MAX_HEADER_CHARS = 1024
_MIME = r"data:\s*(?P<mime>[\w.+-]+/[\w.+-]+)?"
_QUOTED = r'"(?:[^"\\]|\\.)*+"\s*'
_BASE64_HEADER = re.compile(
    rf"{_MIME}(?:\s*;\s*[\w-]+\s*=(?:\s*{_QUOTED}|[^;\"]*+))*?\s*;\s*base64\s*,", re.ASCII | re.IGNORECASE
)
_PLAIN = re.compile(rf"{_MIME}(?:\s*;\s*[\w-]+\s*=(?:\s*{_QUOTED}|[^;,\"]*+))*\s*,", re.ASCII | re.IGNORECASE)


class UrlHeader(NamedTuple):
    """The header of a data URL. The data begins at ``end``."""

    mime: str
    is_base64: bool
    end: int


class EncodedUrl(str):
    """A data URL up to its comma. ``encoded`` is the base64 after it, a view of the request's body."""

    __slots__ = ("encoded",)
    encoded: memoryview

    def __new__(cls, header: str, data: memoryview) -> "EncodedUrl":
        url = super().__new__(cls, header)
        url.encoded = data
        return url


def parse_header(url: str) -> UrlHeader | None:
    """Read the header of a data URL; None if it is malformed. A comma inside a base64 parameter does not end it."""
    head = url[:MAX_HEADER_CHARS]
    header_match, is_base64 = _BASE64_HEADER.match(head), True
    if header_match is None:
        header_match, is_base64 = _PLAIN.match(head), False
    return UrlHeader((header_match["mime"] or "").lower(), is_base64, header_match.end()) if header_match else None


#: Shortest base64 that is cut, in bytes.
MIN_CUT_BYTES = 16 << 10
#: Limit of the places in a body that are checked; base64 after them is decoded with the JSON.
MAX_PLACES = 256
_BASE64 = b";base64,"
_BEGIN = b'"data:'
#: Contains characters that are not base64, so that it is never taken for data.
_MARK = f"*{secrets.token_hex(16)}-"


class _Cut(NamedTuple):
    """A place in a body: the base64 of a data URL."""

    begin: int
    end: int


def parse_chat_media(body: bytes) -> ChatRequest:
    """Parse like ``parse_chat``, with long data URLs of media as ``EncodedUrl`` objects.

    A body shorter than ``MIN_CUT_BYTES`` has no such objects.
    """
    cuts = list(_find_cuts(body)) if len(body) >= MIN_CUT_BYTES else []
    if not cuts:
        return parse_chat(body)
    try:
        request = parse_chat(_cut_body(body, cuts))
    except (BadRequest, TooLarge):
        return parse_chat(body)  # raises the error for the original body
    return request if _bind_views(request, memoryview(body), cuts) else parse_chat(body)


def _find_cuts(body: bytes) -> Iterator[_Cut]:
    at = 0
    for _ in range(MAX_PLACES):
        offset = body.find(_BASE64, at)
        if offset < 0:
            return
        begin = offset + len(_BASE64)
        quote = body.rfind(b'"', max(at, offset - MAX_HEADER_CHARS), offset)
        if quote < 0 or not body.startswith(_BEGIN, quote) or body.find(b"\\", max(0, quote - 1), offset) >= 0:
            at = begin
            continue
        at = end = body.find(b'"', begin)
        if end < 0:
            return
        # Escaped text in JSON differs from its value.
        if end - begin >= MIN_CUT_BYTES and body.find(b"\\", begin, end) < 0:
            yield _Cut(begin, end)


def _cut_body(body: bytes, cuts: list[_Cut]) -> bytes:
    """Return ``body`` with a marker in place of each cut."""
    view, pieces, at = memoryview(body), list[bytes | memoryview](), 0
    for number, cut in enumerate(cuts):
        pieces += (view[at : cut.begin], f"{_MARK}{number}".encode())
        at = cut.end
    return b"".join([*pieces, view[at:]])


def _bind_views(request: ChatRequest, body: memoryview, cuts: list[_Cut]) -> bool:
    """Put views of ``body`` in place of all markers. Returns False if a marker is not the data of a URL of media."""
    bound = 0
    for holder, field in _media_urls(request):
        header, _, number = getattr(holder, field).partition(_MARK)
        url = parse_header(header) if number else None
        if url is not None and url.is_base64:
            begin, end = cuts[int(number)]
            # No other code has the request yet.
            msgspec.structs.force_setattr(holder, field, EncodedUrl(header, body[begin:end]))
            bound += 1
    return bound == len(cuts)


def _media_urls(request: ChatRequest) -> Iterator[tuple[msgspec.Struct, str]]:
    """Yield the parts of messages with a URL, and the field's name."""
    for message in request.messages:
        content = getattr(message, "content", None)
        for part in content if isinstance(content, list) else ():
            if isinstance(part, FilePart) and part.file.file_data is not None:
                yield part.file, "file_data"
            url = _part_url(part)
            if url is not None:
                yield url, "url"


def _part_url(part: object) -> Url | None:
    match part:
        case ImagePart():
            return part.image_url
        case VideoPart():
            return part.video_url
        case AudioUrlPart():
            return part.audio_url
    return None


def answer_references(request: ChatRequest) -> Iterator[tuple[int, str]]:
    """Yield messages that only refer to an earlier answer, with its id."""
    for index, message in enumerate(request.messages):
        if not isinstance(message, AssistantMessage) or message.audio is None:
            continue
        if not message.content and message.refusal is None:
            yield index, message.audio.id


def unknown_audio_error(index: int) -> BadRequest:
    """Return the error for message ``index``, whose audio id is unknown."""
    return BadRequest(
        "Unknown or expired audio id: send the transcript of that answer as content.",
        param=f"messages[{index}].audio.id",
    )


_PERCENT = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})*")
_WHITESPACE = b" \t\r\n\f"
#: Characters that JSON does not allow unescaped in a string.
_CONTROL = re.compile(rb"[\0-\x1f]")
_URL_ALPHABET = bytes.maketrans(b"-_", b"+/")
#: Percent-encoded characters of base64.
_ESCAPES = {
    b"%2B": b"+", b"%2b": b"+", b"%2F": b"/", b"%2f": b"/", b"%3D": b"=", b"%3d": b"=",
    b"%0A": b"", b"%0a": b"", b"%0D": b"", b"%0d": b"", b"%20": b"",
}  # fmt: skip
#: Base64 with line breaks and percent-encoded characters is at most this much longer.
_LOOSE_FACTOR = 1.5


class Inline(msgspec.Struct, frozen=True):
    """Decoded bytes and the media type declared by the data URL, or ""."""

    data: bytes
    declared: str


def decode_base64(text: str | memoryview, limit: int, param: str = "", *, in_url: bool = False) -> bytes:
    """Decode base64 of at most ``limit`` bytes; ``text`` may be a view of ASCII bytes of a JSON string.

    Text ``in_url`` may be percent-encoded. Raises ``BadRequest`` or, before any decoding, ``TooLarge``.
    """
    padding = text[-2:].count("=") if isinstance(text, str) else bytes(text[-2:]).count(b"=")
    nbytes = len(text) // 4 * 3 - padding
    if nbytes > limit:
        if nbytes > _LOOSE_FACTOR * limit + 64 or _is_dense(text):
            raise _too_large_error(nbytes, limit, param)
    else:
        try:
            # As strict as binascii.a2b_base64 in strict mode, and many times as fast.
            return pybase64.b64decode(text, validate=True)
        except ValueError:
            pass
    data = _decode_loosely(text, param, in_url)
    if len(data) > limit:
        raise _too_large_error(len(data), limit, param)
    return data


def decode_data_url(url: str, limit: int, param: str = "") -> Inline:
    """Decode ``data:[<type>][;name=value]*[;base64],<data>``. Raises as ``decode_base64``."""
    header = parse_header(url)
    if header is None:
        raise BadRequest("The data URL is malformed: expected data:<type>;base64,<data>.", param=param)
    if isinstance(url, EncodedUrl):
        return Inline(decode_base64(url.encoded, limit, param, in_url=True), header.mime)
    body = url[header.end :]
    if header.is_base64:
        return Inline(decode_base64(body, limit, param, in_url=True), header.mime)
    return Inline(_decode_percent(body, limit, param), header.mime)


def _is_dense(text: str | memoryview) -> bool:
    """Return True if every character of ``text`` is part of its data."""
    data = text.encode(errors="replace") if isinstance(text, str) else bytes(text)
    return not any(each in data for each in b"%" + _WHITESPACE)


def _decode_loosely(text: str | memoryview, param: str, in_url: bool) -> bytes:
    try:
        if isinstance(text, str):
            data = text.encode("ascii")
        else:
            data = bytes(text)
            if _CONTROL.search(data):
                raise BadRequest("The request body is not valid JSON in UTF-8.")
        for escape, byte in _ESCAPES.items() if in_url and b"%" in data else ():
            data = data.replace(escape, byte)
        data = data.translate(None, _WHITESPACE)
        if not (b"+" in data or b"/" in data):
            data = data.translate(_URL_ALPHABET)
        if not data.endswith(b"="):
            data += b"=" * (-len(data) % 4)
        return pybase64.b64decode(data, validate=True)
    except ValueError:
        raise BadRequest("The media data is not valid base64.", param=param) from None


def _decode_percent(body: str, limit: int, param: str) -> bytes:
    nbytes = len(body) - 2 * body.count("%")
    if nbytes > limit:
        raise _too_large_error(nbytes, limit, param)
    if _PERCENT.fullmatch(body) is None:
        raise BadRequest("The data URL is malformed: its data is not percent-encoded ASCII.", param=param)
    return unquote_to_bytes(body)


def _too_large_error(nbytes: int, limit: int, param: str) -> TooLarge:
    return TooLarge(f"A media item has {nbytes} bytes; at most {limit} are accepted.", param=param)
