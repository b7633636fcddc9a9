"""Media inside the request: base64 fields and data URLs (RFC 2397).

All common variants of base64 are accepted. These are line breaks (RFC 2045), the alphabet of URLs, no padding (RFC
4648, section 5), and percent-encoding in a URL. Any other character is an error.
"""

import re
from urllib.parse import unquote_to_bytes

import msgspec
import pybase64

from omnibus.errors import BadRequest, TooLarge
from omnibus_gateway.openai.encoded_url import EncodedUrl, parse_header

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
