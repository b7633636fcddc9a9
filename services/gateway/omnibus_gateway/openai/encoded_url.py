"""Headers of data URLs, and data URLs with encoded data.

Browsers' recorders write headers that RFC 2397 does not allow, such as ``video/webm;codecs=vp8,opus`` with a comma,
values in quotes, and blanks after semicolons. Source: RFC 2397, the Fetch standard (data URLs).
"""

import re
from typing import NamedTuple

#: Limit of the characters between "data:" and the data.
MAX_HEADER_CHARS = 1024
_MIME = r"data:\s*(?P<mime>[\w.+-]+/[\w.+-]+)?"
_QUOTED = r'"(?:[^"\\]|\\.)*+"\s*'
_BASE64 = re.compile(
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
    header_match, is_base64 = _BASE64.match(head), True
    if header_match is None:
        header_match, is_base64 = _PLAIN.match(head), False
    return UrlHeader((header_match["mime"] or "").lower(), is_base64, header_match.end()) if header_match else None
