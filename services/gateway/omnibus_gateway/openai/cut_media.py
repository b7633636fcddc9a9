"""Data URLs of a chat's body, cut out before decoding the JSON.

Decoding a megabyte of base64 as a JSON string scans it, copies it, and copies the part after the comma again. Instead,
the request gets a view of the body, and a marker replaces the base64 during JSON decoding. The base64 is not read
before the media are decoded. Clients cannot guess a marker. If one appears anywhere except as the URL of an item of
media, the gateway parses the whole body.

Headers of data URLs, and data URLs with encoded data.

Browsers' recorders write headers that RFC 2397 does not allow, such as ``video/webm;codecs=vp8,opus`` with a comma,
values in quotes, and blanks after semicolons. Source: RFC 2397, the Fetch standard (data URLs).
"""

import re
import secrets
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from omnibus.errors import BadRequest, TooLarge
from omnibus_gateway.openai.chat_request import AudioUrlPart, ChatRequest, FilePart, ImagePart, Url, VideoPart
from omnibus_gateway.openai.parse import parse_chat

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
