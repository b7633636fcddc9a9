"""Result of every header reader, and the limits and helpers that they share."""

from msgspec import Struct

# Elements that one reader visits at most. A file made of a million tiny elements must not hold up the
# event loop; real headers have a few dozen.
MAX_STEPS = 4096
#: Frames that a reader counts one by one. Longer files are measured by the mean of these.
MAX_FRAMES = 100_000

#: Samples per second of any recording, and its channels. A resampler makes thousands of samples of one when a header
#: claims less, so that is refused here, before an executor sees it.
MIN_RATE_HERTZ, MAX_RATE_HERTZ = 1_000, 768_000
MAX_CHANNELS = 64


class Extent(Struct, frozen=True):
    """Length in seconds (None when the file does not say), size in pixels (0 without an image), and frames of a video
    (0 when the header does not say)."""

    seconds: float | None = None
    width: int = 0
    height: int = 0
    frames: int = 0


def check_audio(rate: float = MIN_RATE_HERTZ, channels: int = 1) -> None:
    """Raise ``ValueError`` for samples per second or channels that no recording has."""
    if not MIN_RATE_HERTZ <= rate <= MAX_RATE_HERTZ:
        raise ValueError("impossible sample rate")
    if not 1 <= channels <= MAX_CHANNELS:
        raise ValueError("impossible number of channels")


def sample_seconds(count: int, rate: int, channels: int = 1) -> float:
    """Seconds of ``count`` samples. Raises ``ValueError`` as ``check_audio``."""
    check_audio(rate, channels)
    return count / rate
