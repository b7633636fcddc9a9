"""Length of sound files from their headers: WAV, FLAC, Ogg (Opus, Vorbis, FLAC), MP3, ADTS.

Sources: RIFF/WAVE (Microsoft), RFC 9639 (FLAC), RFC 3533 and 7845 (Ogg, Opus), ISO/IEC 11172-3 and
13818-7 (MP3, ADTS).
"""

import struct
from collections.abc import Iterator

from services.gateway.media.headers.base import MAX_CHANNELS, Extent, check_audio, mpeg_layer


def read_wav(data: bytes) -> Extent:
    rate = width = 0
    for kind, start, end in _riff_chunks(data):
        if kind == b"fmt ":
            rate, width = _wav_format(data, start)
        elif kind == b"data" and width:
            return Extent(_sample_seconds((end - start) // width, rate))
    raise ValueError("no samples")


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    start = 12
    for _ in range(64):  # chunks before the samples
        kind, size = struct.unpack_from("<4sI", data, start)
        # Streamed files claim the largest size; the bytes that are there count.
        yield kind, start + 8, min(start + 8 + size, len(data))
        start += 8 + size + (size & 1)


def _wav_format(data: bytes, start: int) -> tuple[int, int]:
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", data, start)
    width = channels * bits // 8
    if tag not in (1, 3, 6, 7, 0xFFFE) or not 1 <= channels <= MAX_CHANNELS or width < 1 or align != width:
        raise ValueError("unknown WAV coding")
    return rate, width


def _sample_seconds(count: int, rate: int) -> float:
    check_audio(rate)
    return count / rate


def read_flac(data: bytes) -> Extent:
    return _read_streaminfo(data, 8)


def _read_streaminfo(data: bytes, start: int) -> Extent:
    packed = int.from_bytes(data[start + 10 : start + 18], "big")
    if len(data) < start + 34:
        raise ValueError("short STREAMINFO")
    total = packed & (1 << 36) - 1
    seconds = _sample_seconds(total, packed >> 44)
    return Extent(seconds if total else None)


def read_ogg(data: bytes) -> Extent:
    codec = 27 + data[26]
    if data[codec : codec + 8] == b"OpusHead":
        rate = 48000
    elif data[codec : codec + 7] == b"\x01vorbis":
        (rate,) = struct.unpack_from("<I", data, codec + 12)
    elif data[codec : codec + 5] == b"\x7fFLAC":
        rate = int.from_bytes(data[codec + 27 : codec + 30], "big") >> 4
    else:
        raise ValueError("unknown Ogg coding")
    return Extent(_last_granule(data, rate))


def _last_granule(data: bytes, rate: int) -> float | None:
    page = data.rfind(b"OggS")
    (granule,) = struct.unpack_from("<q", data, page + 6)
    return _sample_seconds(granule, rate) if granule >= 0 else None


_BITRATES = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)  # kbit/s, MPEG-1 layer III
_BITRATES_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)  # MPEG-2 and 2.5


def read_mp3(data: bytes) -> Extent:
    """Exact with a Xing or Info header, else from the first frame's bit rate."""
    start = _after_id3(data)
    (head,) = struct.unpack_from(">I", data, start)
    version, bitrate, rate = head >> 19 & 3, head >> 12 & 15, head >> 10 & 3
    if mpeg_layer(data[start : start + 2]) != "mp3" or version == 1 or bitrate in (0, 15) or rate == 3:
        raise ValueError("no MP3 frame")
    kbits = (_BITRATES if version == 3 else _BITRATES_2)[bitrate]
    hertz = (44100, 48000, 32000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    counted = _xing_seconds(data[start : start + 64], 1152 if version == 3 else 576, hertz)
    # A count cannot be shorter than the bytes at the highest bit rate.
    return Extent(max(counted, (len(data) - start) / 40_000) if counted else (len(data) - start) / (kbits * 125))


def _after_id3(data: bytes) -> int:
    if data[:3] != b"ID3":
        return 0
    a, b, c, d = data[6:10]
    return 10 + (a << 21 | b << 14 | c << 7 | d)


def _xing_seconds(frame: bytes, samples: int, rate: int) -> float:
    tag = max(frame.find(b"Xing"), frame.find(b"Info"))
    if tag < 0 or not frame[tag + 7] & 1:
        return 0.0
    return int(struct.unpack_from(">I", frame, tag + 8)[0]) * samples / rate


_ADTS_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)


def read_adts(data: bytes) -> Extent:
    """From the lengths of the first frames, taken as typical."""
    start = frames = 0
    for _ in range(256):
        length = int.from_bytes(data[start + 3 : start + 6], "big") >> 5 & 0x1FFF
        if length < 7 or mpeg_layer(data[start : start + 2]) != "adts":
            break
        start, frames = start + length, frames + 1
    if not frames:
        raise ValueError("no ADTS frame")
    rate = _ADTS_RATES[data[2] >> 2 & 15]
    return Extent(frames * 1024 / rate * len(data) / start)
