"""Media that arrive inside the request: base64 fields and data URLs (RFC 2397), read strictly."""

import re
from urllib.parse import unquote_to_bytes

import msgspec
import pybase64

from omnibus.errors import BadRequest, TooLarge
from services.gateway.openai.encoded_url import EncodedUrl

_MAX_HEADER_CHARS = 256  # characters between "data:" and the comma
_HEADER = re.compile(r"(?P<mime>[\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[^;,]*)*?(?P<base64>;base64)?", re.ASCII | re.IGNORECASE)
_PERCENT = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})*")


class Inline(msgspec.Struct, frozen=True):
    """Decoded bytes and the media type that the data URL declared ("" when it declared none)."""

    data: bytes
    declared: str


def decode_base64(text: str | memoryview, limit: int, param: str = "") -> bytes:
    """Decode standard padded base64 of at most ``limit`` bytes; ``text`` may be a view of ASCII bytes.

    No whitespace, no URL-safe alphabet. Raises ``BadRequest`` or, before any decoding, ``TooLarge``.
    """
    padding = text[-2:].count("=") if isinstance(text, str) else bytes(text[-2:]).count(b"=")
    _check_size(len(text) // 4 * 3 - padding, limit, param)
    try:
        # As strict as binascii.a2b_base64 in strict mode, and many times as fast.
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        raise BadRequest(
            "The media data is not valid base64 (standard alphabet, padded, no line breaks).", param=param
        ) from None


def decode_data_url(url: str, limit: int, param: str = "") -> Inline:
    """Decode ``data:[<type>][;name=value]*[;base64],<data>``. Raises as ``decode_base64``."""
    comma = url.find(",", 0, _MAX_HEADER_CHARS)
    header = _HEADER.fullmatch(url, 5, comma) if comma > 0 else None
    if header is None:
        raise BadRequest("The data URL is malformed: expected data:<type>;base64,<data>.", param=param)
    declared = (header["mime"] or "").lower()
    if isinstance(url, EncodedUrl):
        return Inline(decode_base64(url.encoded, limit, param), declared)
    body = url[comma + 1 :]
    if header["base64"]:
        return Inline(decode_base64(body, limit, param), declared)
    return Inline(_decode_percent(body, limit, param), declared)


def _decode_percent(body: str, limit: int, param: str) -> bytes:
    _check_size(len(body) - 2 * body.count("%"), limit, param)
    if _PERCENT.fullmatch(body) is None:
        raise BadRequest("The data URL is malformed: its data is not percent-encoded ASCII.", param=param)
    return unquote_to_bytes(body)


def _check_size(nbytes: int, limit: int, param: str) -> None:
    if nbytes > limit:
        raise TooLarge(f"A media item has {nbytes} bytes; at most {limit} are accepted.", param=param)
