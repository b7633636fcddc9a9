"""Length and frame size of MP4 and of Matroska and WebM from their headers.

Sources: ISO/IEC 14496-12 (MP4), RFC 8794 and 9559 (Matroska, WebM).
"""

import struct
from collections.abc import Iterator

from services.gateway.media.headers.base import MAX_STEPS, Extent, check_audio


def read_mp4(data: bytes) -> Extent:
    steps = iter(range(MAX_STEPS))
    moov = next(((start, end) for kind, start, end in _iter_boxes(data, 0, len(data), steps) if kind == b"moov"), None)
    if moov is None:
        raise ValueError("no moov box")
    seconds, size, frames = None, (0, 0), 0
    for kind, start, end in _iter_boxes(data, *moov, steps):
        if kind == b"mvhd":
            seconds = _movie_seconds(data, start)
        elif kind == b"trak":
            shown = _track_size(data, start, end, steps)
            size = max(size, shown)
            if all(shown):
                frames = max(frames, _sample_count(data, start, end, steps))
    return Extent(seconds, *size, frames)


def _iter_boxes(data: bytes, start: int, end: int, steps: Iterator[int]) -> Iterator[tuple[bytes, int, int]]:
    for _ in steps:
        if start + 8 > end:
            return
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, start + 8), 16
        size = size or end - start
        if size < head or start + size > end:
            raise ValueError("a box is longer than the file")
        yield kind, start + head, start + size
        start += size


def _movie_seconds(data: bytes, start: int) -> float | None:
    long = data[start] == 1
    scale, duration = struct.unpack_from(">IQ" if long else ">II", data, start + (20 if long else 12))
    unknown = duration in (0, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF)
    return None if unknown or not scale else duration / scale


def _track_size(data: bytes, start: int, end: int, steps: Iterator[int]) -> tuple[int, int]:
    for kind, first, _ in _iter_boxes(data, start, end, steps):
        if kind == b"tkhd":
            width, height = struct.unpack_from(">II", data, first + (88 if data[first] == 1 else 76))
            return width >> 16, height >> 16
    return 0, 0


def _sample_count(data: bytes, start: int, end: int, steps: Iterator[int]) -> int:
    """Return the number of samples of a track: for one with pictures its frames."""
    for inside in (b"mdia", b"minf", b"stbl", b"stsz"):
        found = next(
            ((first, last) for kind, first, last in _iter_boxes(data, start, end, steps) if kind == inside), None
        )
        if found is None:
            return 0
        start, end = found
    return int(struct.unpack_from(">I", data, start + 8)[0])


_SEGMENT, _INFO, _SCALE, _DURATION = 0x18538067, 0x1549A966, 0x2AD7B1, 0x4489
_TRACKS, _TRACK, _VIDEO, _WIDTH, _HEIGHT = 0x1654AE6B, 0xAE, 0xE0, 0xB0, 0xBA
_CLUSTER, _EACH = 0x1F43B675, 0x23E383
_AUDIO, _SAMPLING, _CHANNELS = 0xE1, 0xB5, 0x9F


def read_matroska(data: bytes) -> Extent:
    found: dict[int, bytes] = {}
    _collect_elements(data, 0, len(data), found, iter(range(MAX_STEPS)), depth=0)
    if _SEGMENT not in found:
        raise ValueError("no segment")
    scale = int.from_bytes(found.get(_SCALE, b""), "big") or 1_000_000  # nanoseconds
    raw = found.get(_DURATION, b"")
    ticks = _decode_float(raw) if raw else 0.0
    width, height = (int.from_bytes(found.get(key, b""), "big") for key in (_WIDTH, _HEIGHT))
    seconds = ticks * scale / 1e9 if 0 < ticks < 1e15 else None
    each = int.from_bytes(found.get(_EACH, b""), "big")  # nanoseconds of a frame
    frames = round(seconds * 1e9 / each) if seconds and each and width else 0
    return Extent(seconds, width, height, frames)


def _collect_elements(
    data: bytes, start: int, end: int, found: dict[int, bytes], steps: Iterator[int], depth: int
) -> None:
    """Collect the leaves of interest up to the first cluster, where the frames begin."""
    for _ in steps:
        if start >= end or _CLUSTER in found:
            return
        key, start = _decode_vint(data, start, keep_marker=True)
        size, start = _decode_vint(data, start, keep_marker=False)
        stop = min(start + size, end)
        if key in (_SEGMENT, _INFO, _TRACKS, _TRACK, _VIDEO, _AUDIO) and depth < 4:
            found.setdefault(key, b"")
            _collect_elements(data, start, stop, found, steps, depth + 1)
        elif key == _SAMPLING:  # of any track, since an executor chooses for itself
            check_audio(rate=_decode_float(data[start:stop]))
        elif key == _CHANNELS:
            check_audio(channels=int.from_bytes(data[start : min(stop, start + 8)], "big"))
        elif key in (_SCALE, _DURATION, _WIDTH, _HEIGHT, _CLUSTER, _EACH):
            found.setdefault(key, data[start : min(stop, start + 8)])
        start = stop


def _decode_float(raw: bytes) -> float:
    return float(struct.unpack(">d" if len(raw) == 8 else ">f", raw)[0])


def _decode_vint(data: bytes, start: int, keep_marker: bool) -> tuple[int, int]:
    length = 9 - data[start].bit_length()
    if length > 8:
        raise ValueError("bad EBML number")
    value = int.from_bytes(data[start : start + length], "big")
    return value if keep_marker else value & (1 << 7 * length) - 1, start + length
