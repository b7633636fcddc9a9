"""Media files through PyAV, and the decoding of audio. Private to ``media``, the error boundary.

Codecs that files from clients may use. FFmpeg has hundreds of decoders; only these are opened.

Names are FFmpeg's names of formats, not of decoders: libdav1d reads ``av1`` if it is available.

Fills in sizes that headers of recordings written to a pipe lack.

FFmpeg reads a WAV with any stated sizes. For RF64, W64 and AIFF it needs the true ones. It omits them itself if it
cannot seek back to the header. Sources: EBU Tech 3306 (RF64), Sony's Wave64, AIFF-C (Apple, 1991).
"""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from omnibus import errors
from omnibus_models import limits as bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray


_VIDEO = frozenset({"av1", "h263", "h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "theora", "vp8", "vp9"})
_AUDIO = frozenset(
    {"aac", "ac3", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms", "alac", "amr_nb", "amr_wb"}
    | {"eac3", "flac", "mp2", "mp3", "opus", "vorbis"}
)
#: Uncompressed samples, in every byte order, and the two telephone codings.
PCM = frozenset(
    {"pcm_alaw", "pcm_mulaw", "pcm_s64be", "pcm_s64le", "pcm_s8", "pcm_u8"}
    | {f"pcm_{kind}{bits}{order}" for kind in "su" for bits in (16, 24, 32) for order in ("le", "be")}
    | {f"pcm_f{bits}{order}" for bits in (32, 64) for order in ("le", "be")}
)
READABLE = {"video": _VIDEO, "audio": _AUDIO | PCM}

# Some formats have several decoders with different names.
_OTHER_NAMES = {"libdav1d", "mp3float", "mp2float", "amrnb", "amrwb", "libopus", "libvpx", "libvpx-vp9"}
_ALSO = _OTHER_NAMES | {"libopencore_amrnb", "libopencore_amrwb", "libvorbis"}

#: Names of decoders, as FFmpeg's ``codec_whitelist`` takes them.
DECODERS = ",".join(sorted(_VIDEO | _AUDIO | PCM | _ALSO))


def require_codec(stream: Any, kind: str) -> None:
    """Raise ``BadMedia`` unless the codec of ``stream`` is supported for ``kind``. Opens nothing."""
    context = stream.codec_context
    if context is None or context.codec.canonical_name not in READABLE[kind]:
        codec_names = ", ".join(sorted(READABLE[kind] - PCM))
        raise errors.BadMedia(f"the {kind} is in a codec that is not read here; send one of: {codec_names}")


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


# Playlists (HLS, DASH, concat) would make the demuxer open other files and addresses: containers only.
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,wav,w64,aiff,au,mp3,flac,ogg,aac,amr,caf"
# The list of codecs applies to probing by the demuxer; ``require_codec`` checks the rest.
_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none", "codec_whitelist": DECODERS}
# Formats whose header states the exact length: less than that means that the end is missing.
_EXACT = ("mov", "flac", "aiff")
# Formats without a container: there may be any bytes between two frames.
_STREAMS_OF_FRAMES = ("mp3", "aac")
# A WAV that was written to a pipe states no true size but 0, or one that no file within the limits of requests has:
# 2,000,000,000, 0x7FFFFFFF, 0xFFFFFFFF.
_UNKNOWN_SIZE_BYTES = 1_000_000_000
_TRUNCATED = "the file is truncated: it ends before the length that its header states"
_SLACK_SECONDS = 0.25
_SLACK_FRACTION = 0.05


def decode_audio(data: memoryview, limits: bounds.MediaDecodeLimits, rate: int) -> "NDArray[np.float32]":
    """See ``media.audio``."""
    _require_complete_wav(data)
    with open_track(fill_sizes(data), "audio") as (container, stream):
        bounds.check_seconds(declared_seconds(stream), limits)
        chunks = list(_decode_samples(container, stream, limits, rate))
        samples = np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
        require_complete(container, stream, len(samples) / rate)
    if not len(samples):
        raise errors.BadMedia("the audio holds no samples")
    return samples


@contextmanager
def open_track(data: memoryview, kind: str) -> Iterator[tuple[Any, Any]]:
    """Open ``data`` and its first track of ``kind``: container and stream. Raises ``BadMedia`` without one."""
    try:
        with av.open(io.BytesIO(data), options=dict(_OPTIONS)) as container:
            streams = getattr(container.streams, kind)
            if not streams:
                raise errors.BadMedia(f"the file has no {kind} track")
            require_codec(streams[0], kind)
            yield container, streams[0]
    except av.error.MemoryError:
        # FFmpeg raises this for impossible sizes in a header; the machine is not out of memory.
        raise errors.BadMedia(f"the {kind} claims sizes that no decoder takes; send another file") from None


def declared_seconds(stream: Any) -> float:
    """Return the length that the header states, or 0."""
    return float(stream.duration * stream.time_base) if stream.duration else 0.0


def require_complete(container: Any, stream: Any, seconds: float) -> None:
    """Raise ``BadMedia`` if ``seconds`` are less than an exact header states."""
    exact = container.format.name.split(",")[0] in _EXACT
    if exact and seconds + _SLACK_SECONDS < declared_seconds(stream) * (1 - _SLACK_FRACTION):
        raise errors.BadMedia(_TRUNCATED)


def _require_complete_wav(data: memoryview) -> None:
    # FFmpeg derives the length of a WAV from the size of the file, so the header is read here.
    size = int.from_bytes(data[4:8], "little") + 8
    if bytes(data[:4]) == b"RIFF" and len(data) < size < _UNKNOWN_SIZE_BYTES:
        raise errors.BadMedia(_TRUNCATED)


def _decode_samples(
    container: Any, stream: Any, limits: bounds.MediaDecodeLimits, rate: int
) -> Iterator["NDArray[np.float32]"]:
    # The resampler's own mix to mono would be louder by 3 dB than the mean of the channels. Samples are packed, since
    # with 8 channels or more PyAV reads past the end of the list of planes.
    resampler = av.AudioResampler(format="flt", rate=rate)
    budget, total = bounds.DecodeBudget(limits), 0
    for frame in _with_flush_marker(_decode_frames(container, stream, budget)):
        if frame is not None:
            bounds.check_audio_format(frame.sample_rate, frame.layout.nb_channels)
            # Check before a resampler turns one sample into 16,000.
            bounds.check_seconds(total / rate + frame.samples / frame.sample_rate, limits)
        for piece in resampler.resample(frame):
            chunk = piece.to_ndarray().reshape(-1, piece.layout.nb_channels).mean(axis=1)
            bounds.check_amplitude(chunk)
            total += len(chunk)
            bounds.check_seconds(total / rate, limits)
            yield chunk


def _decode_frames(container: Any, stream: Any, budget: bounds.DecodeBudget) -> Iterator[Any]:
    """Yield frames; skip other data around those of MP3 and ADTS, as players do."""
    may_skip = container.format.name in _STREAMS_OF_FRAMES
    for packet in container.demux(stream):
        budget.raise_if_spent()
        try:
            yield from packet.decode()
        except av.error.InvalidDataError:
            if not may_skip:
                raise


def _with_flush_marker(frames: Iterator[Any]) -> Iterator[Any]:
    yield from frames
    yield None
