"""Length of MP3, MP2, ADTS and AMR files, by counting frames: no header states a reliable length.

A recording may have ID3 tags before it and zeros after them. It may start inside a frame, as a part of a stream does.
Sources: ISO/IEC 11172-3 and 13818-3 (MPEG audio), 13818-7 (ADTS), id3v2.4.0-structure, the LAME info tag (revision 1 of
its specification), RFC 4867 (AMR).
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from omnibus_gateway.media.headers.base import MAX_FRAMES, MAX_STEPS, Extent

#: Bytes in which the first frame is searched, and bytes of zeros after a tag.
_SEARCH_BYTES, _PADDING_BYTES = 256 << 10, 4 << 20
#: Most tags before a recording, and gaps in it.
_MAX_TAGS, _MAX_GAPS = 16, 64
#: Frames in a row that identify a start inside a frame: any noise contains single headers.
_FRAMES_IN_A_ROW = 3
_NONZERO = re.compile(rb"[^\0]")
_BITRATES = {  # kbit/s by (MPEG-1, layer)
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_ADTS_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)


class Frame(NamedTuple):
    """Frame of MPEG audio; ``stream`` is equal for frames of one recording."""

    nbytes: int
    samples: int
    rate: int
    stream: int


_ReadFrame = Callable[[bytes, int], Frame | None]


def skip_tags(data: bytes) -> int:
    """Return the offset after leading ID3 tags and their zeros."""
    start = 0
    for _ in range(_MAX_TAGS):
        head = data[start : start + 10]
        if len(head) < 10 or head[:3] != b"ID3":
            break
        a, b, c, d = (each & 127 for each in head[6:])
        start += 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if head[5] & 0x10 else 0)
        match = _NONZERO.search(data, start, start + _PADDING_BYTES)
        start = match.start() if match else start
    return start


def sniff_mpeg(data: bytes, start: int) -> str:
    """Return the MIME type of MPEG audio at ``start``, "" for other data.

    The first frame may be a little later than ``start``.
    """
    first = {kind: _first_offset(data, start, read) for kind, read in _FRAME_READERS.items()}
    kind = min(first, key=lambda each: first[each])
    return kind if first[kind] < len(data) else ""


def _first_offset(data: bytes, start: int, read: "_ReadFrame") -> int:
    try:
        return _find_frame(data, start, read)[0]
    except ValueError:
        return len(data)


def read_mp3(data: bytes) -> Extent:
    """Return the length of all frames except that of the encoder's tag.

    The samples that this tag marks as padding are subtracted.
    """
    start, first = _find_frame(data, skip_tags(data), _mpeg_frame)
    return Extent(max(0.0, _count_seconds(data, start, _mpeg_frame) - _tag_samples(data, start, first) / first.rate))


def read_adts(data: bytes) -> Extent:
    start, _ = _find_frame(data, skip_tags(data), _adts_frame)
    return Extent(_count_seconds(data, start, _adts_frame))


def _find_frame(data: bytes, start: int, read: _ReadFrame) -> tuple[int, Frame]:
    """Return the first frame from ``start`` and its offset. Raises ``ValueError`` if there is none."""
    at = start
    for _ in range(MAX_STEPS):
        frame = read(data, at)
        if frame is not None and (at == start or _is_row(data, at, read)):
            return at, frame
        at = data.find(b"\xff", at + 1, start + _SEARCH_BYTES)
        if at < 0:
            break
    raise ValueError("no frame")


def _is_row(data: bytes, at: int, read: _ReadFrame) -> bool:
    """Return True if frames of one recording follow each other from ``at``."""
    first = frame = read(data, at)
    for _ in range(_FRAMES_IN_A_ROW - 1):
        if frame is None or first is None or frame.stream != first.stream:
            return False
        at += frame.nbytes
        frame = read(data, at)
    return frame is not None and first is not None and frame.stream == first.stream


def _count_seconds(data: bytes, start: int, read: _ReadFrame) -> float:
    at, seconds, frames, gaps = start, 0.0, 0, 0
    while frames < MAX_FRAMES:
        frame = read(data, at)
        if frame is not None:
            at += frame.nbytes
            seconds += frame.samples / frame.rate
            frames += 1
            continue
        gaps += 1
        try:
            at, _ = _find_frame(data, at, read)
        except ValueError:
            break
        if gaps == _MAX_GAPS:
            break
    else:
        seconds *= (len(data) - start) / (at - start)
    return seconds


@cache
def _mpeg_shape(second: int, third: int) -> Frame | None:
    """Return a frame from the two header bytes that determine its length."""
    version, layer, bitrate, rate = second >> 3 & 3, 4 - (second >> 1 & 3), third >> 4, third >> 2 & 3
    if second & 0xE0 != 0xE0 or version == 1 or layer == 4 or bitrate in (0, 15) or rate == 3:
        return None
    hertz = (44100, 48000, 32000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    bits = _BITRATES[version == 3, layer][bitrate] * 1000
    padding = third >> 1 & 1
    stream = second & 0xFE
    if layer == 1:
        return Frame((12 * bits // hertz + padding) * 4, 384, hertz, stream)
    is_half = layer == 3 and version != 3
    return Frame((72 if is_half else 144) * bits // hertz + padding, 576 if is_half else 1152, hertz, stream)


def _mpeg_frame(data: bytes, at: int) -> Frame | None:
    head = data[at : at + 3]
    return _mpeg_shape(head[1], head[2]) if len(head) == 3 and head[0] == 0xFF else None


def _adts_frame(data: bytes, at: int) -> Frame | None:
    head = data[at : at + 7]
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0:
        return None
    nbytes = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    rate = head[2] >> 2 & 15
    if nbytes < 7 or rate >= len(_ADTS_RATES):
        return None
    return Frame(nbytes, 1024 * ((head[6] & 3) + 1), _ADTS_RATES[rate], rate)


_FRAME_READERS: dict[str, _ReadFrame] = {"audio/mpeg": _mpeg_frame, "audio/aac": _adts_frame}


def _tag_samples(data: bytes, start: int, first: Frame) -> int:
    """Return the samples that are not part of the recording.

    They are those of a first frame with a tag but no audio, and those that an encoder added according to that tag.
    """
    frame = data[start : start + first.nbytes]
    at = max(frame.find(b"Xing", 0, 64), frame.find(b"Info", 0, 64))
    if at < 0:
        return first.samples if frame.find(b"VBRI", 0, 64) >= 0 else 0
    flags = frame[at + 7 : at + 8] or b"\0"
    name = at + 8 + sum(size for bit, size in ((1, 4), (2, 4), (4, 100), (8, 4)) if flags[0] & bit)
    encoder_delay = (
        int.from_bytes(frame[name + 21 : name + 24], "big") if frame[name : name + 2] in (b"LA", b"La") else 0
    )
    return first.samples + (encoder_delay >> 12) + (encoder_delay & 0xFFF)


#: Bytes of a frame by its type (RFC 4867, tables 1a and 1b), without the byte of the type; -1 for unused types.
_AMR_BYTES = (12, 13, 15, 17, 19, 20, 26, 31, 5, -1, -1, -1, -1, -1, -1, 0)
_AMR_WIDE_BYTES = (17, 23, 32, 36, 40, 46, 50, 58, 60, 5, -1, -1, -1, -1, 0, 0)


def read_amr(data: bytes) -> Extent:
    """Return the length; each frame has 20 ms."""
    wide = data.startswith(b"#!AMR-WB\n")
    sizes, at = (_AMR_WIDE_BYTES, 9) if wide else (_AMR_BYTES, 6)
    frames, start = 0, at
    while at < len(data) and frames < MAX_FRAMES:
        size = sizes[data[at] >> 3 & 15]
        if size < 0:
            break
        at, frames = at + 1 + size, frames + 1
    if not frames:
        raise ValueError("no AMR frame")
    share = (len(data) - start) / (at - start) if frames == MAX_FRAMES else 1.0
    return Extent(frames * share / 50)
