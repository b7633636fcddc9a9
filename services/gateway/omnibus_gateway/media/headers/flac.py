"""Length of FLAC from its header, or else its last frame. Source: RFC 9639."""

from omnibus_gateway.media.headers.base import Extent, sample_seconds

#: Bytes at the end of a file that are searched for its last frame, and most candidates that are checked.
_TAIL_BYTES, _MAX_CANDIDATES = 512 << 10, 4096
_BLOCK_SIZES = {1: 192, **{code: 144 << code for code in range(2, 6)}, **{code: 1 << code for code in range(8, 16)}}
_RATE_BYTES = {12: 1, 13: 2, 14: 2}


def read_flac(data: bytes) -> Extent:
    return read_streaminfo(data, 8)


def read_streaminfo(data: bytes, start: int) -> Extent:
    """Return the length from the metadata at ``start``, or the last frame."""
    if len(data) < start + 34:
        raise ValueError("short STREAMINFO")
    fields = int.from_bytes(data[start + 10 : start + 18], "big")
    rate, channels, total = fields >> 44, (fields >> 41 & 7) + 1, fields & (1 << 36) - 1
    block_size = int.from_bytes(data[start + 2 : start + 4], "big")
    count = total or _last_sample(data, start + 34, block_size)
    seconds = sample_seconds(count, rate, channels)
    return Extent(seconds if count else None)


def _last_sample(data: bytes, start: int, block_size: int) -> int:
    """Return the samples until the end of the last valid frame, or 0."""
    end, first = len(data), max(start, len(data) - _TAIL_BYTES)
    for _ in range(_MAX_CANDIDATES):
        end = data.rfind(b"\xff", first, end)
        if end < 0:
            break
        if data[end + 1 : end + 2] in (b"\xf8", b"\xf9") and (count := _frame_end(data, end, block_size)):
            return count
    return 0


def _frame_end(data: bytes, at: int, block_size: int) -> int:
    """Return the samples until the end of the frame at ``at``, or 0."""
    head = data[at : at + 16]
    size, number = _read_frame(head)
    return (number + size if head[1] & 1 else number * (block_size or size) + size) if size else 0


def block_samples(head: bytes) -> int:
    """Return the samples per channel of the frame ``head``, 0 for other data."""
    return _read_frame(head)[0]


def _read_frame(head: bytes) -> tuple[int, int]:
    """Return the samples of a frame, and its number or first sample.

    Returns zeros for other data.
    """
    if len(head) < 6 or head[3] & 1:
        return 0, 0
    code, length = head[2] >> 4, max(1, 8 - (head[4] ^ 0xFF).bit_length())
    number = head[4] & (0xFF >> length + 1 if length > 1 else 0x7F)
    for each in head[5 : 4 + length]:
        number = number << 6 | each & 0x3F
    place = 4 + length
    size = _BLOCK_SIZES.get(code, 0)
    if code in (6, 7):
        size = int.from_bytes(head[place : place + code - 5], "big") + 1
        place += code - 5
    place += _RATE_BYTES.get(head[2] & 15, 0)
    is_frame = size and place < len(head) and _checksum_of(head[:place]) == head[place]
    return (size, number) if is_frame else (0, 0)


def _checksum_of(head: bytes) -> int:
    value = 0
    for each in head:
        value ^= each
        for _ in range(8):
            value = (value << 1 ^ 0x07 if value & 0x80 else value << 1) & 0xFF
    return value
