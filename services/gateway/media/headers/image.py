"""Width and height of JPEG, PNG, WebP and GIF from their headers.

Read here instead of with Pillow, whose ``open`` walks every segment of a hostile JPEG and allocates
the whole canvas of a WebP, both on the event loop. Sources: ITU-T T.81 (JPEG), the PNG specification,
RFC 9649 and 6386 (WebP), GIF89a.
"""

import struct
from collections.abc import Iterator

from services.gateway.media.headers.base import MAX_STEPS, Extent

_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length


def read_jpeg(data: bytes) -> Extent:
    start = 2
    for _ in range(MAX_STEPS):
        fill, marker = data[start], data[start + 1]
        if fill != 0xFF or marker in (0xD9, 0xDA):
            break
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, start + 5)
            return Extent(None, width, height)
        start += _jpeg_segment(data, start, marker)
    raise ValueError("no frame header")


def _jpeg_segment(data: bytes, start: int, marker: int) -> int:
    if marker == 0xFF:  # padding
        return 1
    if marker in _JPEG_BARE:
        return 2
    return 2 + max(2, int.from_bytes(data[start + 2 : start + 4], "big"))


def read_png(data: bytes) -> Extent:
    size, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    if kind != b"IHDR" or size != 13:
        raise ValueError("no IHDR")
    return Extent(None, width, height)


def read_webp(data: bytes) -> Extent:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = data[24:27], data[27:30]
        return Extent(None, int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1)
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return Extent(None, (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return Extent(None, width & 0x3FFF, height & 0x3FFF)
    raise ValueError("unknown WebP coding")


def read_gif(data: bytes) -> Extent:
    """The screen, or the first frame where that is larger: decoders grow the canvas to it."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    start = 13 + _color_table_bytes(flags)
    steps = iter(range(MAX_STEPS))
    for _ in steps:
        if data[start] == 0x2C:
            left, top, wide, high = struct.unpack_from("<HHHH", data, start + 1)
            return Extent(None, max(width, left + wide), max(height, top + high))
        if data[start] != 0x21:
            break
        start = _after_blocks(data, start + 2, steps)
    raise ValueError("no frame")


def _color_table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: bytes, start: int, steps: Iterator[int]) -> int:
    for _ in steps:
        if not data[start]:
            return start + 1
        start += 1 + data[start]
    raise ValueError("endless extension")
