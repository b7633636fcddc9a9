"""Result of every header reader, and the shared limits and helpers."""

from msgspec import Struct

# Most elements that one reader visits. A file of a million tiny elements must not block the event loop; real headers
# have a few dozen.
MAX_STEPS = 4096
#: Most frames that a reader counts. Longer files are measured by the mean of these.
MAX_FRAMES = 100_000

#: Valid samples per second and channels of a recording. If a header claims less, a resampler makes thousands of samples
#: of one. Such files are rejected here, before an executor sees them.
MIN_RATE_HERTZ, MAX_RATE_HERTZ = 1_000, 768_000
MAX_CHANNELS = 64


class Extent(Struct, frozen=True):
    """Length in seconds, size in pixels, and frames of a video.

    ``seconds`` is None, and ``frames`` is 0, if the file does not contain them. ``width`` and ``height`` are 0 without
    an image.
    """

    seconds: float | None = None
    width: int = 0
    height: int = 0
    frames: int = 0


def check_audio(rate: float = MIN_RATE_HERTZ, channels: int = 1) -> None:
    """Raise ``ValueError`` for an impossible number of samples per second or channels."""
    if not MIN_RATE_HERTZ <= rate <= MAX_RATE_HERTZ:
        raise ValueError("impossible sample rate")
    if not 1 <= channels <= MAX_CHANNELS:
        raise ValueError("impossible number of channels")


def sample_seconds(count: int, rate: int, channels: int = 1) -> float:
    """Return the seconds of ``count`` samples. Raises ``ValueError`` as ``check_audio``."""
    check_audio(rate, channels)
    return count / rate
