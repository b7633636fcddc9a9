"""Width and height of images from their headers: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF and HEIC.

Pillow is not used here. Its ``open`` would walk every segment of a hostile JPEG and allocate the whole canvas of a
WebP, on the event loop. Sources are ITU-T T.81 (JPEG), the PNG specification, RFC 9649 and 6386 (WebP), and GIF89a. For
the others they are the headers of bitmaps (Microsoft), TIFF 6.0 and BigTIFF, and ISO/IEC 23008-12 (AVIF, HEIC).
"""

import struct
from collections.abc import Iterator

from omnibus_gateway.media.headers.base import MAX_STEPS, Extent
from omnibus_gateway.media.headers.mp4 import find_box, iter_boxes

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
    """Return the size of the screen, or of a larger first frame: decoders grow the canvas to it."""
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


def read_bmp(data: bytes) -> Extent:
    (head,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if head == 12 else "<ii", data, 18)
    if head < 12 or width < 0:
        raise ValueError("no header of a bitmap")
    return Extent(None, width, abs(height))  # a negative height means that the first row is the top one


_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}


def read_tiff(data: bytes) -> Extent:
    """Return the size of the first image of the file."""
    order = "<" if data[:2] == b"II" else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    (start,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
    if start >= len(data):
        raise ValueError("no image")
    (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, start)
    size, place = (20, 12) if big else (12, 8)
    sides: dict[int, int] = {}
    for index in range(min(count, MAX_STEPS)):
        at = start + (8 if big else 2) + index * size
        tag, type = struct.unpack_from(order + "HH", data, at)
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT) and type in _TIFF_TYPES:
            (sides[tag],) = struct.unpack_from(order + _TIFF_TYPES[type], data, at + place)
    if len(sides) < 2:
        raise ValueError("no image")
    return Extent(None, sides[_TIFF_WIDTH], sides[_TIFF_HEIGHT])


def read_heif(data: bytes) -> Extent:
    """Return the size of the largest image in an AVIF or HEIC.

    Its tiles, thumbnails and alpha are not larger than the image.
    """
    steps = iter(range(MAX_STEPS))
    properties = find_box(data, 0, len(data), steps, b"meta")
    if properties is None:
        raise ValueError("no image")
    start, end = properties
    property_range = find_box(data, start + 4, end, steps, b"iprp", b"ipco")
    if property_range is None:
        raise ValueError("no image")
    sizes = [
        struct.unpack_from(">II", data, first + 4)
        for kind, first, _ in iter_boxes(data, *property_range, steps)
        if kind == b"ispe"
    ]
    width, height = max(sizes, key=lambda each: each[0] * each[1])
    return Extent(None, width, height)
