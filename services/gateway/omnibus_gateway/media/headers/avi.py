"""Length and frame size of AVI from its header.

If the header has no length, its chunks are counted. Source: the AVI RIFF file reference (Microsoft).
"""

import struct
from collections.abc import Iterator

from omnibus_gateway.media.headers.base import MAX_FRAMES, MAX_STEPS, Extent


class _AviStream:
    """A stream of ``unit`` seconds per sample.

    Samples have ``sample_bytes`` each; if that is 0, each chunk is a sample.
    """

    def __init__(self, data: bytes, start: int) -> None:
        self.is_video = data[start : start + 4] == b"vids"
        scale, rate, length, self.sample_bytes = struct.unpack_from("<II4xI8xI", data, start + 20)
        self.unit = scale / rate if rate else 0.0
        # A file that was written to a pipe states a length that it cannot have.
        self.seconds = length * self.unit if length * max(1, self.sample_bytes) <= len(data) else 0.0


def read_avi(data: bytes) -> Extent:
    """Return the frames and length of the first video stream.

    Without a video, the length is that of the longest audio stream.
    """
    width = height = frames = 0
    streams: list[_AviStream] = []
    for kind, start in _iter_headers(data):
        if kind == b"avih":
            frames, width, height = struct.unpack_from("<16xI12xII", data, start)
            frames = frames if frames < len(data) else 0
        elif kind == b"strh":
            streams.append(_AviStream(data, start))
        elif kind == b"movi" and not any(each.seconds for each in streams):
            frames = _count_chunks(data, start, streams) or frames
    if not streams:
        raise ValueError("no header")
    seconds = [each.seconds for each in sorted(streams, key=lambda each: (each.is_video, each.seconds)) if each.seconds]
    return Extent(seconds[-1] if seconds else None, width, height, frames)


def _iter_headers(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the main header, stream headers, and the list of chunks.

    Stream headers are in nested lists.
    """
    start = 12
    for _ in range(MAX_STEPS):
        if start + 12 > len(data):
            return
        kind, size, form = struct.unpack_from("<4sI4s", data, start)
        if kind == b"LIST" and form == b"movi":
            yield form, start + 12
            return
        if kind == b"LIST":
            start += 12
            continue
        if kind in (b"avih", b"strh"):
            yield kind, start + 8
        start += 8 + size + (size & 1)


def _count_chunks(data: bytes, start: int, streams: list[_AviStream]) -> int:
    """Count the seconds of each stream from its chunks; returns the frames of the first video stream."""
    counts = [0] * len(streams)
    for _ in range(MAX_FRAMES):
        if start + 8 > len(data):
            break
        kind, size = struct.unpack_from("<4sI", data, start)
        if kind in (b"LIST", b"RIFF"):
            start += 12
            continue
        number = int(kind[:2]) if kind[:2].isdigit() else -1
        if 0 <= number < len(streams):
            counts[number] += min(size, len(data) - start - 8) // (streams[number].sample_bytes or size or 1)
        start += 8 + size + (size & 1)
    for stream, count in zip(streams, counts, strict=True):
        stream.seconds = count * stream.unit
    return next((count for stream, count in zip(streams, counts, strict=True) if stream.is_video), 0)
