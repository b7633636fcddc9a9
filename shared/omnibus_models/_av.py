"""Sound and video through PyAV. Private to ``media``, which holds the error boundary."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
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
# The list of codecs holds for what the demuxer itself decodes to probe a file; ``require_codec`` is for the rest.
_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none", "codec_whitelist": DECODERS}
# Formats whose header states the exact length: less than that means that the end is missing.
_EXACT = ("mov", "flac", "aiff")
# Formats without a container: what is between two frames may be anything.
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
    with _open_track(fill_sizes(data), "audio") as (container, stream):
        bounds.check_seconds(_declared_seconds(stream), limits)
        chunks = list(_decode_samples(container, stream, limits, rate))
        samples = np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
        _require_complete(container, stream, len(samples) / rate)
    if not len(samples):
        raise errors.BadMedia("the audio holds no samples")
    return samples


def decode_video(data: memoryview, limits: bounds.MediaDecodeLimits, fps: float) -> bounds.Clip:
    """See ``media.video``."""
    with _open_track(data, "video") as (container, stream):
        context = stream.codec_context
        bounds.check_pixels(context.width, context.height, limits)
        bounds.check_seconds(_declared_seconds(stream), limits)
        # One thread, so that the CPU time of this one is all that the film costs.
        context.thread_count = 1
        # Later frames may be larger than the header says; the decoder itself refuses those.
        context.options = {"max_pixels": str(limits.pixels)}
        sampler = _Sampler(limits, fps)
        for frame in container.decode(stream):
            sampler.add_frame(frame)
        _require_complete(container, stream, sampler.end)
    return sampler.build_clip()


@contextmanager
def _open_track(data: memoryview, kind: str) -> Iterator[tuple[Any, Any]]:
    try:
        with av.open(io.BytesIO(data), options=dict(_OPTIONS)) as container:
            streams = getattr(container.streams, kind)
            if not streams:
                raise errors.BadMedia(f"the file has no {kind} track")
            require_codec(streams[0], kind)
            yield container, streams[0]
    except av.error.MemoryError:
        # FFmpeg says this of sizes that no header may claim; it is not the machine that is out of memory.
        raise errors.BadMedia(f"the {kind} claims sizes that no decoder takes; send another file") from None


def _declared_seconds(stream: Any) -> float:
    return float(stream.duration * stream.time_base) if stream.duration else 0.0


def _require_complete(container: Any, stream: Any, seconds: float) -> None:
    exact = container.format.name.split(",")[0] in _EXACT
    if exact and seconds + _SLACK_SECONDS < _declared_seconds(stream) * (1 - _SLACK_FRACTION):
        raise errors.BadMedia(_TRUNCATED)


def _require_complete_wav(data: memoryview) -> None:
    # FFmpeg takes the size of the file for the length of a WAV, so the header is read here.
    size = int.from_bytes(data[4:8], "little") + 8
    if bytes(data[:4]) == b"RIFF" and len(data) < size < _UNKNOWN_SIZE_BYTES:
        raise errors.BadMedia(_TRUNCATED)


def _decode_samples(
    container: Any, stream: Any, limits: bounds.MediaDecodeLimits, rate: int
) -> Iterator["NDArray[np.float32]"]:
    # The resampler's own mix to mono would be louder by 3 dB than the mean of the channels. Samples are packed, since
    # PyAV looks for the end of a list of planes that has none from 8 channels on.
    resampler = av.AudioResampler(format="flt", rate=rate)
    budget, total = bounds.DecodeBudget(limits), 0
    for frame in _with_flush_marker(_decode_frames(container, stream, budget)):
        if frame is not None:
            bounds.check_audio_format(frame.sample_rate, frame.layout.nb_channels)
            # Before a resampler makes 16,000 samples of one.
            bounds.check_seconds(total / rate + frame.samples / frame.sample_rate, limits)
        for piece in resampler.resample(frame):
            chunk = piece.to_ndarray().reshape(-1, piece.layout.nb_channels).mean(axis=1)
            bounds.check_amplitude(chunk)
            total += len(chunk)
            bounds.check_seconds(total / rate, limits)
            yield chunk


def _decode_frames(container: Any, stream: Any, budget: bounds.DecodeBudget) -> Iterator[Any]:
    """Yield frames; what is not a frame between those of MP3 and ADTS, or after them, is passed over as players do."""
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


class _Sampler:
    """Keeps one frame per step of time. When too many are kept, drops every other one and doubles the step.

    One pass, bounded memory, no trust in the length that the header states.
    """

    def __init__(self, limits: bounds.MediaDecodeLimits, fps: float) -> None:
        self._limits = limits
        self._budget = bounds.DecodeBudget(limits)
        self._step = 1 / Fraction(fps).limit_denominator(1000)
        self._next = Fraction(0)
        self._start: Fraction | None = None
        self._kept: list[NDArray[np.uint8]] = []
        self._seen = 0
        self._decoded = 0  # pixels
        self._size = (0, 0)
        self.end = 0.0  # seconds

    def add_frame(self, frame: Any) -> None:
        self._budget.raise_if_spent()
        time = self._frame_time(frame)
        if time >= self._next:
            self._append_frame(frame)
            self._drop_every_second()
            self._next = (time // self._step + 1) * self._step

    def build_clip(self) -> bounds.Clip:
        if not self._kept:
            raise errors.BadMedia("the video holds no frames")
        return bounds.Clip(np.stack(self._kept), float(1 / self._step))

    def _frame_time(self, frame: Any) -> Fraction:
        rate = frame.time_base and frame.duration * frame.time_base
        stamp = frame.pts * frame.time_base if frame.pts is not None else Fraction(self._seen, 25)
        self._start = stamp if self._start is None else self._start
        time = stamp - self._start
        self._seen += 1
        self.end = float(time + (rate or 0))
        if self._seen > self._limits.frames:
            raise errors.TooLarge(f"the video has more than {self._limits.frames} frames; send a shorter one")
        self._decoded += frame.width * frame.height
        if self._decoded > self._limits.decoded:
            most = f"{self._limits.decoded} pixels in all its frames"
            raise errors.TooLarge(f"the video has more than {most}; send a smaller or shorter one")
        bounds.check_seconds(self.end, self._limits)
        return time

    def _append_frame(self, frame: Any) -> None:
        if not self._kept:
            bounds.check_pixels(frame.width, frame.height, self._limits)
            bounds.check_aspect(frame.width, frame.height)
            self._size = (frame.width, frame.height)
        width, height = self._size
        self._kept.append(frame.reformat(width=width, height=height, format="rgb24").to_ndarray())

    def _drop_every_second(self) -> None:
        width, height = self._size
        room = max(2, min(self._limits.sampled, self._limits.video_pixels // (width * height)))
        if len(self._kept) > room:
            self._kept = self._kept[::2]
            self._step *= 2
