"""JSON of a great many values is refused before anything is built of it.

A body is decoded on the event loop that all tenants share. That is fast for long strings, which is what media are; but
sixty megabytes of brackets would hold it up for many seconds. So what is between values is counted first: brackets and
commas, of which base64 has none. Only where there are many is it looked at which of them are text.
"""

import numpy as np

from omnibus.errors import TooLarge

#: Values that the JSON of one request may have.
MAX_VALUES = 200_000
#: Bytes that a value may take outside of strings, on average.
_VALUE_BYTES = 16
#: Quotes that are looked at, in the search for what is text.
_MAX_QUOTES = 50_000
_PIECE_BYTES = 1 << 20
_MARKS = b"[{,"
_BACKSLASH = 0x5C


def check_values(body: bytes | bytearray | memoryview) -> None:
    """Raises ``TooLarge`` for more than ``VALUES`` values."""
    if len(body) > MAX_VALUES and _has_marks(body) and _has_values(bytes(body)):
        raise TooLarge(f"The request body has more than {MAX_VALUES} values, the most accepted.")


def _has_marks(body: bytes | bytearray | memoryview) -> bool:
    """Return whether there are more marks than values may be, be they text or not."""
    count, letters = 0, np.frombuffer(body, np.uint8)
    for at in range(0, len(letters), _PIECE_BYTES):
        piece = letters[at : at + _PIECE_BYTES]
        count += sum(int(np.count_nonzero(piece == mark)) for mark in _MARKS)
        if count > MAX_VALUES:
            return True
    return False


def _has_values(body: bytes) -> bool:
    """Return whether there are more marks than values may be outside of strings; also when it is too long a search."""
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
    """Return whether the quote is part of the string that has begun; ``start`` is behind the quote before."""
    if quote == start or body[quote - 1] != _BACKSLASH:
        return False
    piece = body[start:quote]
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
