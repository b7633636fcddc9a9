"""Sizes of the frames in an AVIF file, from its AV1 data.

A decoder makes frames of these sizes, even if the file gives its image another size. Sources: ISO/IEC 14496-12 (boxes),
the AV1 specification, 5.3 (units) and 5.5 (sequence header).
"""

import struct
from collections.abc import Iterator

#: Boxes, items and units that are visited at most.
_MAX_STEPS = 4096
_SEQUENCE_HEADER = 1


def still_only(data: bytes) -> bytes:
    """Return ``data`` without its track of frames, if it is an animation.

    Its first image is a separate item.
    """
    brands = int.from_bytes(data[:4], "big")
    for kind, start, _ in _iter_boxes(data, 0, len(data)):
        if kind == b"moov":
            # A file with this brand must have a track.
            return data[:brands].replace(b"avis", b"avif") + data[brands : start - 4] + b"free" + data[start:]
    return data


def largest_frame(data: bytes) -> int:
    """Return the pixels of the largest frame of any item. Raises ``ValueError`` for damaged boxes."""
    largest = 0
    try:
        for item in _read_items(data):
            for unit in _iter_sequence_headers(item):
                largest = max(largest, _frame_pixels(unit))
    except (struct.error, IndexError) as error:
        raise ValueError("the boxes of the image are damaged") from error
    return largest


def _iter_boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    for _ in range(_MAX_STEPS):
        if start + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, start + 8), 16
        size = size or end - start
        if size < head:
            raise ValueError("a box is too small")
        yield kind, start + head, min(end, start + size)
        start += size


def _read_items(data: bytes) -> Iterator[bytes]:
    """Yield the data of each item."""
    meta = next(((start, end) for kind, start, end in _iter_boxes(data, 0, len(data)) if kind == b"meta"), None)
    if meta is None:
        raise ValueError("the image has no items")
    boxes = {kind: (start, end) for kind, start, end in _iter_boxes(data, meta[0] + 4, meta[1])}
    kinds = dict(_read_kinds(data, *boxes.get(b"iinf", (0, 0))))
    idat = boxes.get(b"idat", (0, 0))[0]
    for number, method, extents in _read_places(data, *boxes.get(b"iloc", (0, 0))):
        if kinds.get(number) == b"av01":
            base = idat if method == 1 else 0
            yield b"".join(data[base + at : base + at + size if size else len(data)] for at, size in extents)


def _read_kinds(data: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number and type of each item."""
    if not start:
        return
    head = 4 + (2 if data[start] == 0 else 4)
    for kind, at, _ in _iter_boxes(data, start + head, end):
        if kind == b"infe" and data[at] >= 2:
            wide = data[at] > 2
            yield struct.unpack_from(">I" if wide else ">H", data, at + 4)[0], data[at + (10 if wide else 8) :][:4]


def _read_places(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield each item's number, place format, and extents (offset and size)."""
    if not start:
        return
    version = data[start]
    offset_bytes, size_bytes = data[start + 4] >> 4, data[start + 4] & 15
    base_bytes, index_bytes = data[start + 5] >> 4, data[start + 5] & 15 if version else 0
    at = start + 6

    def take(nbytes: int) -> int:
        nonlocal at
        at += nbytes
        if at > end:
            raise ValueError("the places of the items are cut short")
        return int.from_bytes(data[at - nbytes : at], "big")

    for _ in range(min(_MAX_STEPS, take(4 if version == 2 else 2))):
        number = take(4 if version == 2 else 2)
        method = take(2) & 15 if version else 0
        take(2)
        base, extents = take(base_bytes), list[tuple[int, int]]()
        for _ in range(min(_MAX_STEPS, take(2))):
            take(index_bytes)
            extents.append((base + take(offset_bytes), take(size_bytes)))
        yield number, method, extents


def _iter_sequence_headers(item: bytes) -> Iterator[bytes]:
    at = 0
    for _ in range(_MAX_STEPS):
        if at >= len(item):
            return
        head = item[at]
        at += 2 if head & 4 else 1
        size = len(item) - at
        if head & 2:
            size, at = _read_leb128(item, at)
        if head >> 3 & 15 == _SEQUENCE_HEADER:
            yield item[at : at + size]
        at += size


def _read_leb128(item: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        value |= (item[at + index] & 127) << 7 * index
        if not item[at + index] & 128:
            break
    return value, at + index + 1


class _Bits:
    """Reads unsigned numbers of given numbers of bits."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise ValueError("a sequence header is cut short")
        return self._value >> self._left & (1 << count) - 1

    def skip_uvlc(self) -> None:
        zeros = 0
        while not self.take(1):
            zeros += 1
        self.take(min(zeros, 32))


def _frame_pixels(header: bytes) -> int:
    """Return the pixels of the largest frame that a sequence header allows."""
    bits = _Bits(header[:128])
    bits.take(4)
    is_reduced = bits.take(1)
    if is_reduced:
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    pixels = (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)
    # Frames with a size of their own may have as many pixels as the bits allow: less than four times as many as here,
    # unless the header states more bits than necessary.
    return pixels if is_reduced else max(pixels, 1 << width_bits + height_bits >> 2)


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    if bits.take(1):  # timing_info_present_flag
        bits.take(64)
        if bits.take(1):
            bits.skip_uvlc()
        if bits.take(1):  # decoder_model_info_present_flag
            delay_bits = bits.take(5) + 1
            bits.take(42)
    has_delays = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if has_delays and bits.take(1):
            bits.take(4)
