"""Media files through PyAV, and the decoding of audio. Private to ``media``, the error boundary."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from omnibus import errors
from omnibus_models import limits as bounds
from omnibus_models._codecs import DECODERS, require_codec
from omnibus_models._sizes import fill_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
