"""Length and frame size of Matroska and WebM from their headers.

Recorders of browsers and live streams write no length; it is then that of the last cluster. Sources: RFC 8794 (EBML),
RFC 9559 (Matroska, WebM), RFC 6716 (packets of Opus).
"""

import struct
from collections.abc import Iterator

from omnibus_gateway.media.headers import flac
from omnibus_gateway.media.headers.base import MAX_STEPS, Extent, check_audio

_SEGMENT, _INFO, _SCALE, _DURATION = 0x18538067, 0x1549A966, 0x2AD7B1, 0x4489
_TRACKS, _TRACK, _VIDEO, _WIDTH, _HEIGHT = 0x1654AE6B, 0xAE, 0xE0, 0xB0, 0xBA
_CLUSTER, _EACH, _NUMBER, _CODEC = 0x1F43B675, 0x23E383, 0xD7, 0x86
_AUDIO, _SAMPLING, _CHANNELS, _BITS = 0xE1, 0xB5, 0x9F, 0x6264
#: Nanoseconds that a decoder discards: at the start of a track, and at the end of a block.
_DELAY, _DISCARDED = 0x56AA, 0x75A2
_TIMESTAMP, _SIMPLE_BLOCK, _GROUP, _BLOCK, _BLOCK_TICKS = 0xE7, 0xA3, 0xA0, 0xA1, 0x9B
#: Checksum, padding, and the place and size of clusters may precede the time.
_BEFORE_TIMESTAMP = frozenset({0xBF, 0xEC, 0xA7, 0xAB})
_CLUSTER_BYTES = _CLUSTER.to_bytes(4, "big")
#: Clusters at the end that are read, and candidates for one.
_LAST_CLUSTERS, _MAX_CANDIDATES = 2, 64
_MAX_BLOCKS = 65_536
_SLACK_SECONDS = 0.25
#: Elements that describe a track, and the attributes of ``_MatroskaTrack`` that store them.
_TRACK_ELEMENTS = {
    _NUMBER: "number",
    _EACH: "each",
    _CODEC: "codec",
    _SAMPLING: "rate",
    _CHANNELS: "channels",
    _BITS: "bits",
    _DELAY: "delay",
}
#: Nanoseconds of a frame of Opus by the upper five bits of a packet.
_OPUS_NANOSECONDS = tuple(round(each * 1e6) for each in (*(10, 20, 40, 60) * 3, *(10, 20) * 2, *(2.5, 5, 10, 20) * 4))


class _MatroskaTrack:
    """A track; ``each`` is the nanoseconds of a frame, 0 if unknown."""

    def __init__(self) -> None:
        self.number = self.each = self.bits = self.delay = 0
        self.channels, self.rate = 1, 8000.0  # defaults of missing elements
        self.codec = b""


def read_matroska(data: bytes) -> Extent:
    leaves: dict[int, bytes] = {}
    tracks: list[_MatroskaTrack] = []
    _collect_elements(data, 0, len(data), leaves, tracks, iter(range(MAX_STEPS)), depth=0)
    if _SEGMENT not in leaves:
        raise ValueError("no segment")
    scale = int.from_bytes(leaves.get(_SCALE, b""), "big") or 1_000_000  # nanoseconds
    raw = leaves.get(_DURATION, b"")
    ticks = _decode_float(raw) if raw else 0.0
    width, height = (int.from_bytes(leaves.get(key, b""), "big") for key in (_WIDTH, _HEIGHT))
    seconds = ticks * scale / 1e9 if 0 < ticks < 1e15 else None
    if seconds is None or not width:
        last = _last_seconds(data, scale, {each.number: each for each in tracks})
        # The length in a header includes audio that decoders discard.
        seconds = last if last and (seconds is None or abs(seconds - last) < _SLACK_SECONDS) else seconds
    each = int.from_bytes(leaves.get(_EACH, b""), "big")  # nanoseconds of a frame
    frames = round(seconds * 1e9 / each) if seconds and each and width else 0
    return Extent(seconds, width, height, frames)


def _collect_elements(
    data: bytes,
    start: int,
    end: int,
    leaves: dict[int, bytes],
    tracks: list[_MatroskaTrack],
    steps: Iterator[int],
    depth: int,
) -> None:
    """Collect the relevant leaves up to the first cluster, where frames begin."""
    for _ in steps:
        if start >= end or _CLUSTER in leaves:
            return
        key, start = _decode_vint(data, start, keep_marker=True)
        size, start = _decode_vint(data, start, keep_marker=False)
        stop = min(start + size, end)
        if key in (_SEGMENT, _INFO, _TRACKS, _TRACK, _VIDEO, _AUDIO) and depth < 4:
            leaves.setdefault(key, b"")
            if key == _TRACK:
                tracks.append(_MatroskaTrack())
            _collect_elements(data, start, stop, leaves, tracks, steps, depth + 1)
        elif key == _SAMPLING:  # of any track, because an executor chooses one
            check_audio(rate=_decode_float(data[start:stop]))
        elif key == _CHANNELS:
            check_audio(channels=int.from_bytes(data[start : min(stop, start + 8)], "big"))
        if key in (_SCALE, _DURATION, _WIDTH, _HEIGHT, _CLUSTER):
            leaves.setdefault(key, data[start : min(stop, start + 8)])
        elif tracks and key in _TRACK_ELEMENTS:
            _describe_track(tracks[-1], key, data[start : min(stop, start + 8)])
            if key == _EACH:
                leaves.setdefault(key, data[start : min(stop, start + 8)])
        start = stop


def _describe_track(track: _MatroskaTrack, key: int, value: bytes) -> None:
    if key == _CODEC:
        track.codec = value
    elif key == _SAMPLING:
        track.rate = _decode_float(value)
    else:
        setattr(track, _TRACK_ELEMENTS[key], int.from_bytes(value, "big"))


def _last_seconds(data: bytes, scale: int, tracks: dict[int, _MatroskaTrack]) -> float:
    """Return the end of the last block in seconds, 0 without one."""
    end, clusters, nanoseconds = len(data), 0, 0
    for _ in range(_MAX_CANDIDATES):
        at = data.rfind(_CLUSTER_BYTES, 0, end)
        if at < 0 or clusters == _LAST_CLUSTERS:
            break
        try:
            end_time = _cluster_end(data, at + 4, end, scale, tracks)
        except (ValueError, IndexError, struct.error):
            end_time = 0
        end = at
        nanoseconds, clusters = max(nanoseconds, end_time), clusters + bool(end_time)
    return nanoseconds / 1e9


def _cluster_end(data: bytes, at: int, end: int, scale: int, tracks: dict[int, _MatroskaTrack]) -> int:
    """Return the nanoseconds at the end of a cluster's last block.

    Returns 0 for other data.
    """
    size, at = _decode_vint(data, at, keep_marker=False)
    end = min(end, at + size)
    began, end_time = -1, 0
    before: dict[int, int] = {}  # start of the previous block in nanoseconds, by track
    for _ in range(_MAX_BLOCKS):
        if at + 2 > end:
            break
        key, at = _decode_vint(data, at, keep_marker=True)
        size, at = _decode_vint(data, at, keep_marker=False)
        stop = at + size
        if key == _TIMESTAMP:
            began = int.from_bytes(data[at : min(stop, at + 8)], "big")
        elif began < 0 and key not in _BEFORE_TIMESTAMP:
            return 0  # a cluster starts with its time: the four bytes were part of a frame
        elif key in (_SIMPLE_BLOCK, _GROUP):
            block, length, left_out = _read_group(data, at, min(stop, end), scale) if key == _GROUP else (at, 0, 0)
            number, block = _decode_vint(data, block, keep_marker=False)
            time = (began + int(struct.unpack_from(">h", data, block)[0])) * scale
            length = (
                length
                or _block_nanoseconds(data[block + 2 : stop], tracks.get(number))
                or time - before.get(number, time)
            )
            before[number] = time
            track = tracks.get(number)
            end_time = max(end_time, time + length - left_out - (track.delay if track else 0))
        at = stop
    return end_time


def _read_group(data: bytes, at: int, end: int, scale: int) -> tuple[int, int, int]:
    """Return a group's block: its offset, length and discarded part.

    The length and the discarded part are in nanoseconds; a length of 0 is unknown.
    """
    block = length = discard_padding = 0
    while at < end:
        key, at = _decode_vint(data, at, keep_marker=True)
        size, at = _decode_vint(data, at, keep_marker=False)
        if key == _BLOCK:
            block = at
        elif key == _BLOCK_TICKS:
            length = int.from_bytes(data[at : at + min(size, 8)], "big") * scale
        elif key == _DISCARDED:
            discard_padding = max(0, int.from_bytes(data[at : at + min(size, 8)], "big", signed=True))
        at += size
    if not block:
        raise ValueError("no block")
    return block, length, discard_padding


def _block_nanoseconds(block: bytes, track: _MatroskaTrack | None) -> int:
    """Return the length of a block of one frame. The frame follows the block's flags; 0 if the length is unknown."""
    if track is None or len(block) < 6 or block[0] & 6:
        return 0
    if track.codec == b"A_OPUS":
        frames = (1, 2, 2, block[2] & 63)[block[1] & 3]
        return frames * _OPUS_NANOSECONDS[block[1] >> 3]
    if track.codec == b"A_FLAC":
        return round(flac.block_samples(block[1:17]) * 1e9 / track.rate)
    if track.codec.startswith(b"A_PCM") and track.bits >= 8:
        return round((len(block) - 1) * 8e9 / (track.bits * track.channels * track.rate))
    return track.each


def _decode_float(raw: bytes) -> float:
    return float(struct.unpack(">d" if len(raw) == 8 else ">f", raw)[0])


def _decode_vint(data: bytes, start: int, keep_marker: bool) -> tuple[int, int]:
    length = 9 - data[start].bit_length()
    if length > 8:
        raise ValueError("bad EBML number")
    value = int.from_bytes(data[start : start + length], "big")
    return value if keep_marker else value & (1 << 7 * length) - 1, start + length
