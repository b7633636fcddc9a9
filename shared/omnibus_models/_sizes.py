"""Fills in sizes that headers of recordings written to a pipe lack.

FFmpeg reads a WAV with any stated sizes. For RF64, W64 and AIFF it needs the true ones. It omits them itself if it
cannot seek back to the header. Sources: EBU Tech 3306 (RF64), Sony's Wave64, AIFF-C (Apple, 1991).
"""

import struct
from collections.abc import Iterator

#: Chunks before the samples, at most.
_MAX_CHUNKS = 256
_W64 = b"riff\x2e\x91\xcf\x11"


def fill_sizes(data: memoryview) -> memoryview:
    """Return ``data``, with the true sizes if its header lacks them."""
    head = bytes(data[:12])
    try:
        if head[:4] in (b"RF64", b"BW64"):
            return _fill_rf64(data)
        if head[:8] == _W64:
            return _fill_w64(data)
        if head[:4] == b"FORM" and head[8:] in (b"AIFF", b"AIFC"):
            return _fill_aiff(data)
    except struct.error:
        pass  # the header is cut short: the decoder reports it
    return data


def _find_chunks(data: memoryview, start: int, form: str, head: int, unit: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, offset and stated size of each chunk.

    A chunk's header has ``head`` bytes, which its size includes in W64.
    """
    for _ in range(_MAX_CHUNKS):
        kind, size = struct.unpack_from(form, data, start)
        yield kind, start, size
        if size > len(data):
            return
        start += max(head, (size if head == 24 else head + size) + unit - 1 & -unit)


def _fill_rf64(data: memoryview) -> memoryview:
    sizes = 0
    for kind, start, size in _find_chunks(data, 12, "<4sI", 8, 2):
        if kind == b"ds64":
            sizes = start + 8
        elif kind == b"data":
            there = len(data) - start - 8
            if not sizes or size != 0xFFFF_FFFF or 0 < struct.unpack_from("<Q", data, sizes + 8)[0] <= there:
                break
            buffer = bytearray(data)
            struct.pack_into("<QQ", buffer, sizes, len(data) - 8, there)
            return memoryview(buffer)
    return data


def _fill_w64(data: memoryview) -> memoryview:
    for kind, start, size in _find_chunks(data, 40, "<4s12xQ", 24, 8):
        if kind == b"data":
            stated_size = struct.unpack_from("<Q", data, 16)[0]
            if 24 < size <= len(data) - start and stated_size:
                break
            buffer = bytearray(data)
            struct.pack_into("<Q", buffer, 16, len(data))
            struct.pack_into("<Q", buffer, start + 16, len(data) - start)
            return memoryview(buffer)
    return data


def _fill_aiff(data: memoryview) -> memoryview:
    common = 0
    for kind, start, size in _find_chunks(data, 12, ">4sI", 8, 2):
        if kind == b"COMM":
            common = start + 8
        elif kind == b"SSND":
            channels, frames, bits = struct.unpack_from(">HIH", data, common)
            if not common or (frames and size):
                break
            buffer = bytearray(data)
            is_packed = bytes(data[8:12]) == b"AIFC" and bytes(data[common + 18 : common + 22]) == b"ima4"
            frame = channels * (34 if is_packed else (bits + 7) // 8)
            struct.pack_into(">I", buffer, 4, len(data) - 8)
            struct.pack_into(">I", buffer, common + 2, (len(data) - start - 16) // max(1, frame))
            struct.pack_into(">I", buffer, start + 4, len(data) - start - 8)
            return memoryview(buffer)
    return data
