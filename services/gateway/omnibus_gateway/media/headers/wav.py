"""Length of files of samples: WAV and RF64, W64, AIFF, AU, CAF.

Files that were written to a pipe have a size of 0 or a very large one. The bytes in the file are counted then. Sources:
RIFF/WAVE (Microsoft, 1994), EBU Tech 3306 (RF64), Sony's Wave64, AIFF-C (Apple, 1991), the Sun audio format, Apple Core
Audio Format 1.0.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from omnibus_gateway.media.headers.base import Extent, sample_seconds
from omnibus_gateway.media.headers.mpeg_audio import read_mp3

_PCM_TAGS = frozenset({1, 3, 6, 7})
_ADPCM_TAGS = frozenset({2, 0x11})
_MPEG_TAGS = frozenset({0x50, 0x55})
_EXTENSIBLE = 0xFFFE
#: Most chunks before the samples.
_MAX_CHUNKS = 256


class _Format(NamedTuple):
    """Format of samples. ``tag`` is the coding; ``block_samples`` of each channel are in ``align`` bytes."""

    tag: int
    channels: int
    rate: int
    byte_rate: int
    align: int
    block_samples: int


def read_wav(data: bytes) -> Extent:
    form, samples = None, 0
    for kind, start, size in _riff_chunks(data):
        if kind == b"fmt ":
            form = _read_format(data, start, size)
        elif kind == b"fact" and size >= 4:
            (samples,) = struct.unpack_from("<I", data, start)
        elif kind == b"data" and form is not None:
            nbytes = min(size or len(data), len(data) - start)
            if form.tag in _MPEG_TAGS:
                return read_mp3(data[start : start + nbytes])
            return Extent(_wav_seconds(form, nbytes, samples))
    raise ValueError("no samples")


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, offset and size of each chunk; the samples of an RF64 file have the size of its first chunk."""
    start, long = 12, 0
    for _ in range(_MAX_CHUNKS):
        kind, size = struct.unpack_from("<4sI", data, start)
        if kind == b"ds64":
            (long,) = struct.unpack_from("<Q", data, start + 16)
        yield kind, start + 8, long if kind == b"data" and size == 0xFFFF_FFFF and long else size
        start += 8 + size + (size & 1)


def _read_format(data: bytes, start: int, size: int) -> _Format:
    tag, channels, rate, byte_rate, align, bits = struct.unpack_from("<HHIIHH", data, start)
    if tag == _EXTENSIBLE:
        (tag,) = struct.unpack_from("<H", data, start + 24)
    block = 1
    if tag in _ADPCM_TAGS and size >= 20:
        (block,) = struct.unpack_from("<H", data, start + 18)
    align = align or max(1, channels * (bits + 7) // 8)
    return _Format(tag, channels, rate, byte_rate, align, block)


def _wav_seconds(form: _Format, nbytes: int, samples: int) -> float:
    """Return the length of the samples.

    Codings other than samples and ADPCM are measured by the count in the header, or by their bytes.
    """
    if form.tag in _PCM_TAGS or form.tag in _ADPCM_TAGS:
        return sample_seconds(nbytes // form.align * form.block_samples, form.rate, form.channels)
    by_bytes = nbytes / form.byte_rate if form.byte_rate else 0.0
    counted_seconds = sample_seconds(samples, form.rate, form.channels)
    return counted_seconds if 0 < counted_seconds < 4 * by_bytes + 1 else by_bytes


_W64_TAIL = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
W64_MAGIC = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"


def read_w64(data: bytes) -> Extent:
    form, samples, start = None, 0, 40
    for _ in range(_MAX_CHUNKS):
        kind, tail, size = struct.unpack_from("<4s12sQ", data, start)
        if kind == b"fmt " and tail == _W64_TAIL:
            form = _read_format(data, start + 24, size - 24)
        elif kind == b"fact" and tail == _W64_TAIL:
            (samples,) = struct.unpack_from("<Q", data, start + 24)
        elif kind == b"data" and tail == _W64_TAIL and form is not None:
            there = len(data) - start - 24
            return Extent(_wav_seconds(form, min(size - 24 if size > 24 else there, there), samples))
        if size > len(data):
            break
        start += max(24, size) + 7 & ~7
    raise ValueError("no samples")


def read_aiff(data: bytes) -> Extent:
    start, rate, frames, width, is_packed = 12, 0, 0, 0, False
    for _ in range(_MAX_CHUNKS):
        kind, size = struct.unpack_from(">4sI", data, start)
        if kind == b"COMM":
            channels, frames, bits, exponent, mantissa = struct.unpack_from(">HIHHQ", data, start + 8)
            shift = 16383 + 63 - (exponent & 0x7FFF)
            rate = mantissa >> shift if 0 <= shift < 64 else 0
            is_packed = data[8:12] == b"AIFC" and data[start + 26 : start + 30] == b"ima4"
            width = channels * (34 if is_packed else (bits + 7) // 8)
            sample_seconds(0, rate, channels)
        elif kind == b"SSND" and rate:
            # A file that was written to a pipe has no count.
            frames = frames or max(0, len(data) - start - 16) // max(1, width)
        if rate and frames:
            return Extent(sample_seconds(frames * (64 if is_packed else 1), rate))
        start += 8 + size + (size & 1)
    raise ValueError("no samples")


#: Bytes of a sample by the coding in the header of an AU file.
_AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}


def read_au(data: bytes) -> Extent:
    offset, size, coding, rate, channels = struct.unpack_from(">5I", data, 4)
    if coding not in _AU_BYTES:
        raise ValueError("unknown AU coding")
    there = max(0, len(data) - offset)
    nbytes = min(size, there) if 0 < size < 0xFFFF_FFFF else there
    return Extent(sample_seconds(nbytes // max(1, channels * _AU_BYTES[coding]), rate, channels))


def read_caf(data: bytes) -> Extent:
    rate, packet, frames, valid, nbytes = 0, 0, 0, 0, 0
    start = 8
    for _ in range(_MAX_CHUNKS):
        if start + 12 > len(data):
            break
        kind, size = struct.unpack_from(">4sq", data, start)
        if kind == b"desc":
            hertz, packet, frames, channels = struct.unpack_from(">d8xIII", data, start + 12)
            rate = int(hertz) if 0 < hertz < 1e9 else 0
            sample_seconds(0, rate, channels)
        elif kind == b"pakt":
            (valid,) = struct.unpack_from(">q", data, start + 20)
        elif kind == b"data":
            nbytes = max(0, (len(data) - start - 12 if size < 0 else size) - 4)
        if not 0 <= size <= len(data) or (rate and (valid or (nbytes and packet))):
            break
        start += 12 + size
    count = valid if valid > 0 else min(nbytes, len(data)) // packet * frames if packet else 0
    return Extent(sample_seconds(count, rate) if count else None)
