"""Rejection of JSON with too many values, before decoding it.

The event loop that all tenants share decodes bodies. Long strings, such as media, decode fast, but sixty megabytes of
brackets would block it for many seconds. So the gateway first counts the characters between values: brackets and
commas, which base64 does not contain. Only if there are many does it check which of them are inside strings.
"""

import numpy as np

from omnibus.errors import TooLarge

#: Limit of the values in the JSON of one request.
MAX_VALUES = 200_000
#: Limit of the bytes outside strings, on average per value.
_VALUE_BYTES = 16
#: Limit of the quotes that the search for strings examines.
_MAX_QUOTES = 50_000
_PIECE_BYTES = 1 << 20
_MARKS = b"[{,"
_BACKSLASH = 0x5C


def check_values(body: bytes | bytearray | memoryview) -> None:
    """Raises ``TooLarge`` for more than ``MAX_VALUES`` values."""
    if len(body) > MAX_VALUES and _has_marks(body) and _has_values(bytes(body)):
        raise TooLarge(f"The request body has more than {MAX_VALUES} values, which is the limit.")


def _has_marks(body: bytes | bytearray | memoryview) -> bool:
    """Return whether there are more marks than allowed values, even inside strings."""
    count, letters = 0, np.frombuffer(body, np.uint8)
    for at in range(0, len(letters), _PIECE_BYTES):
        piece = letters[at : at + _PIECE_BYTES]
        count += sum(int(np.count_nonzero(piece == mark)) for mark in _MARKS)
        if count > MAX_VALUES:
            return True
    return False


def _has_values(body: bytes) -> bool:
    """Return whether there are too many marks outside strings.

    Also True if there are more quotes than the search examines.
    """
    inside, count, outside, at = False, 0, 0, 0
    for _ in range(_MAX_QUOTES):
        quote = body.find(b'"', at)
        end = quote if quote >= 0 else len(body)
        if not inside:
            outside += end - at
            if outside > MAX_VALUES * _VALUE_BYTES:
                return True
            count += sum(body.count(mark, at, end) for mark in _MARKS)
        if count > MAX_VALUES or quote < 0:
            return count > MAX_VALUES
        inside = not inside or _is_escaped(body, at, quote)
        at = quote + 1
    return True


def _is_escaped(body: bytes, start: int, quote: int) -> bool:
    """Return whether the quote is part of the open string. ``start`` follows the previous quote."""
    if quote == start or body[quote - 1] != _BACKSLASH:
        return False
    piece = body[start:quote]
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
