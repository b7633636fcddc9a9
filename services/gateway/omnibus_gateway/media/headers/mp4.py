"""Length and frame size of MP4 and MOV from their headers.

Without a length there, it is that of the last fragments. Source: ISO/IEC 14496-12.
"""

import struct
from collections.abc import Iterator

from omnibus_gateway.media.headers.base import MAX_STEPS, Extent

#: Fragments at the end of a file that are read for its length: several tracks may alternate.
_LAST_FRAGMENTS = 8
_UNKNOWN = frozenset({0, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
_Steps = Iterator[int]


class _Mp4Track:
    """A track as its header describes it: ``scale`` ticks are a second."""

    def __init__(self) -> None:
        self.id = self.scale = self.ticks = self.samples = self.width = self.height = 0

    @property
    def seconds(self) -> float:
        return self.ticks / self.scale if self.scale and self.ticks not in _UNKNOWN else 0.0


def read_mp4(data: bytes) -> Extent:
    steps = iter(range(MAX_STEPS))
    moov = find_box(data, 0, len(data), steps, b"moov")
    if moov is None:
        raise ValueError("no moov box")
    seconds, tracks, defaults = 0.0, list[_Mp4Track](), dict[int, int]()
    for kind, start, end in iter_boxes(data, *moov, steps):
        if kind == b"mvhd":
            seconds = _ticks_seconds(data, start, 12)
        elif kind == b"trak":
            tracks.append(_read_track(data, start, end, steps))
        elif kind == b"mvex":
            defaults = _sample_defaults(data, start, end, steps)
    video = max(tracks, key=lambda each: each.width * each.height, default=None)
    seconds = seconds or max((each.seconds for each in tracks), default=0.0)
    seconds = max(seconds, _fragments_seconds(data, moov[1], tracks, defaults)) if defaults else seconds
    if video is None or not video.width:
        return Extent(seconds or None)
    return Extent(seconds or None, video.width, video.height, video.samples)


def iter_boxes(data: bytes, start: int, end: int, steps: _Steps) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the content of each box; the file may end inside the last box."""
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


def find_box(data: bytes, start: int, end: int, steps: _Steps, *path: bytes) -> tuple[int, int] | None:
    """Return start and end of the content of the box at ``path``.

    None if there is no such box.
    """
    for box_kind in path:
        inner = next(
            ((first, last) for kind, first, last in iter_boxes(data, start, end, steps) if kind == box_kind), None
        )
        if inner is None:
            return None
        start, end = inner
    return start, end


def _ticks_seconds(data: bytes, start: int, offset: int) -> float:
    scale, ticks = _scale_ticks(data, start, offset)
    return 0.0 if ticks in _UNKNOWN or not scale else ticks / scale


def _scale_ticks(data: bytes, start: int, offset: int) -> tuple[int, int]:
    """Return ticks per second and in total of an ``mvhd`` or ``mdhd``."""
    long = data[start] == 1
    scale, ticks = struct.unpack_from(">IQ" if long else ">II", data, start + offset + (8 if long else 0))
    return scale, ticks


def _read_track(data: bytes, start: int, end: int, steps: _Steps) -> _Mp4Track:
    track = _Mp4Track()
    dimensions = (0, 0)
    for kind, first, last in iter_boxes(data, start, end, steps):
        if kind == b"tkhd":
            long = data[first] == 1
            (track.id,) = struct.unpack_from(">I", data, first + (20 if long else 12))
            width, height = struct.unpack_from(">II", data, first + (88 if long else 76))
            dimensions = width >> 16, height >> 16
        elif kind == b"mdia":
            _read_media(data, first, last, steps, track)
    # A header may leave the size to the sample description, or contain only the size at which the frames are shown.
    if not (track.width and track.height):
        track.width, track.height = dimensions
    if not track.height:
        track.width = 0
    return track


def _read_media(data: bytes, start: int, end: int, steps: _Steps, track: _Mp4Track) -> None:
    kind = b""
    for box, first, _ in iter_boxes(data, start, end, steps):
        if box == b"mdhd":
            track.scale, track.ticks = _scale_ticks(data, first, 12)
        elif box == b"hdlr":
            kind = data[first + 8 : first + 12]
    if kind != b"vide":
        return
    entry = find_box(data, start, end, steps, b"minf", b"stbl", b"stsd")
    if entry is not None:
        track.width, track.height = struct.unpack_from(">HH", data, entry[0] + 40)
    sizes = find_box(data, start, end, steps, b"minf", b"stbl", b"stsz")
    if sizes is not None:
        (track.samples,) = struct.unpack_from(">I", data, sizes[0] + 8)


def _sample_defaults(data: bytes, start: int, end: int, steps: _Steps) -> dict[int, int]:
    """Return the default ticks of a sample of each track.

    They apply to fragments without their own.
    """
    defaults: dict[int, int] = {0: 0}
    for kind, first, _ in iter_boxes(data, start, end, steps):
        if kind == b"trex":
            track, _, ticks = struct.unpack_from(">III", data, first + 4)
            defaults[track] = ticks
    return defaults


def _fragments_seconds(data: bytes, after: int, tracks: list[_Mp4Track], defaults: dict[int, int]) -> float:
    """Return the end of the last fragments in seconds, 0 if unknown."""
    scales = {each.id: each.scale for each in tracks}
    seconds, end = 0.0, len(data)
    for _ in range(_LAST_FRAGMENTS):
        at = data.rfind(b"moof", after, end)
        if at < 4:
            break
        end, steps = at, iter(range(MAX_STEPS))
        try:
            for kind, first, last in iter_boxes(data, at - 4, at - 4 + int.from_bytes(data[at - 4 : at], "big"), steps):
                if kind == b"moof":
                    seconds = max(seconds, _fragment_seconds(data, first, last, steps, scales, defaults))
        except (ValueError, struct.error, IndexError):
            continue  # the four letters were part of a frame, or the fragment is truncated
    return seconds


def _fragment_seconds(
    data: bytes, start: int, end: int, steps: _Steps, scales: dict[int, int], defaults: dict[int, int]
) -> float:
    seconds = 0.0
    for kind, first, last in iter_boxes(data, start, end, steps):
        if kind == b"traf":
            track, ticks = _run_ticks(data, first, last, steps, defaults)
            seconds = max(seconds, ticks / scales[track] if scales.get(track) else 0.0)
    return seconds


def _run_ticks(data: bytes, start: int, end: int, steps: _Steps, defaults: dict[int, int]) -> tuple[int, int]:
    """Return the track id of a fragment, and its end in ticks."""
    track, each, ticks = 0, 0, 0
    for kind, first, last in iter_boxes(data, start, end, steps):
        flags = int.from_bytes(data[first + 1 : first + 4], "big")
        if kind == b"tfhd":
            (track,) = struct.unpack_from(">I", data, first + 4)
            at = first + 8 + (8 if flags & 1 else 0) + (4 if flags & 2 else 0)
            each = int(struct.unpack_from(">I", data, at)[0]) if flags & 8 else defaults.get(track, 0)
        elif kind == b"tfdt":
            (ticks,) = struct.unpack_from(">Q" if data[first] == 1 else ">I", data, first + 4)
        elif kind == b"trun":
            ticks += _sum_durations(data[first:last], flags, each)
    return track, ticks


def _sum_durations(run: bytes, flags: int, each: int) -> int:
    (count,) = struct.unpack_from(">I", run, 4)
    if not flags & 0x100:
        return int(count) * each
    start = 8 + (4 if flags & 1 else 0) + (4 if flags & 4 else 0)
    width = 4 * sum(1 for bit in (0x100, 0x200, 0x400, 0x800) if flags & bit)
    return sum(
        int.from_bytes(run[at : at + 4], "big") for at in range(start, min(len(run), start + count * width), width)
    )
