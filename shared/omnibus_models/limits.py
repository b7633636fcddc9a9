"""Limits on a media file's cost, checked before and during decoding."""

import time
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from omnibus import errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Qwen's resizing rejects anything longer; so does this module, before decoding.
MAX_ASPECT_RATIO = 200

#: Samples per second of any recording, and its channels. Outside these limits, a header is damaged or hostile.
MIN_RATE_HERTZ, MAX_RATE_HERTZ = 1_000, 768_000
MAX_CHANNELS = 64
#: Samples as multiples of full scale: files of floats that were scaled as integers stay below.
MAX_AMPLITUDE = 65_536.0

#: An event that stops the decoding in this context: the caller no longer needs the result.
CANCELLED: ContextVar[Event | None] = ContextVar("cancelled", default=None)


@dataclass(frozen=True)
class MediaDecodeLimits:
    """Limits on the cost of one media file. Anything above raises ``TooLarge``.

    ``pixels``: of an image or of one video frame. ``seconds``: of audio or video. ``frames``: decoded from one video,
    and ``decoded`` the pixels of all of them. ``sampled``: frames that reach the model, thinned out evenly without an
    error. ``video_pixels``: sum over the sampled frames, which limits memory (3 bytes each). ``cpu_seconds``: of the
    thread that decodes one recording.
    """

    pixels: int = 50_000_000
    seconds: float = 300.0
    frames: int = 36_000
    decoded: int = 4_000_000_000
    sampled: int = 64
    video_pixels: int = 128_000_000
    cpu_seconds: float = 30.0


DEFAULT = MediaDecodeLimits()


@dataclass(frozen=True)
class Clip:
    """Sampled frames, uint8 [n, height, width, 3]. ``fps`` is n divided by the length of the whole video.

    ``seconds`` has the time of each, counted from the video's first frame. ``steady`` videos have a constant rate.
    """

    frames: "NDArray[np.uint8]"
    fps: float
    seconds: tuple[float, ...]
    steady: bool


class DecodeBudget:
    """Time left for decoding one recording. Create and check it in the decoding thread."""

    def __init__(self, limits: MediaDecodeLimits) -> None:
        self._limit = limits.cpu_seconds
        self._end = time.thread_time() + limits.cpu_seconds
        self._cancelled = CANCELLED.get()

    def raise_if_spent(self) -> None:
        """Raise ``StageUnavailable`` after a cancellation, and ``TooLarge`` without CPU time left."""
        if self._cancelled is not None and self._cancelled.is_set():
            raise errors.StageUnavailable("decoding was cancelled")
        if time.thread_time() > self._end:
            raise errors.TooLarge(
                f"the recording takes more than {self._limit:g} seconds to decode; send it smaller or shorter"
            )


def check_audio_format(rate: int, channels: int) -> None:
    """Raise ``BadMedia`` for an impossible sample rate or number of channels."""
    if not MIN_RATE_HERTZ <= rate <= MAX_RATE_HERTZ:
        raise errors.BadMedia(f"the audio's sample rate must be {MIN_RATE_HERTZ} to {MAX_RATE_HERTZ} hertz")
    if not 1 <= channels <= MAX_CHANNELS:
        raise errors.BadMedia(f"the audio must have 1 to {MAX_CHANNELS} channels")


def check_amplitude(samples: "NDArray[np.float32]") -> None:
    """Raise ``BadMedia`` for samples that are not numbers or are too large.

    With these, a model's features would not be numbers.
    """
    if not (abs(samples) < float("inf")).all():  # NaN is not less than anything
        raise errors.BadMedia("the audio contains samples that are not finite numbers")
    if (abs(samples) > MAX_AMPLITUDE).any():
        raise errors.BadMedia(f"the audio has samples beyond {MAX_AMPLITUDE:g} times full scale; normalise it")


def check_pixels(width: int, height: int, limits: MediaDecodeLimits) -> None:
    """Raise ``TooLarge`` if an image of this size is over the limit."""
    if width * height > limits.pixels:
        raise errors.TooLarge(f"{width}x{height} pixels are over the limit of {limits.pixels}; send a smaller image")


def check_seconds(seconds: float, limits: MediaDecodeLimits) -> None:
    """Raise ``TooLarge`` if a recording of this length is over the limit."""
    if seconds > limits.seconds:
        raise errors.TooLarge(f"the recording is longer than {limits.seconds:g} seconds; send a shorter one")


def check_aspect(width: int, height: int) -> None:
    """Raise ``BadMedia`` for an image with an extreme aspect ratio."""
    if max(width, height) > MAX_ASPECT_RATIO * max(1, min(width, height)):
        raise errors.BadMedia(f"one side of the image is more than {MAX_ASPECT_RATIO} times the other")
