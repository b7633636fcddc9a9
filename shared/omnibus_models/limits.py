"""What one media file may cost, and the checks that say so before and while it is decoded."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnibus import errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Qwen's resizing refuses anything longer; so does this module, before decoding.
MAX_ASPECT = 200


@dataclass(frozen=True)
class Limits:
    """What one media file may cost. Anything above raises ``TooLarge``.

    ``pixels``: of an image or of one video frame. ``seconds``: of sound or video. ``frames``: decoded
    from one video, and ``decoded`` the pixels of all of them. ``sampled``: frames that reach the model, thinned out
    evenly, no error.
    ``video_pixels``: sum over the sampled frames, which bounds memory (3 bytes each).
    """

    pixels: int = 50_000_000
    seconds: float = 300.0
    frames: int = 36_000
    decoded: int = 40_000_000_000
    sampled: int = 64
    video_pixels: int = 128_000_000


DEFAULT = Limits()


@dataclass(frozen=True)
class Clip:
    """Sampled frames, uint8 [n, height, width, 3], at ``fps`` frames per second."""

    frames: "NDArray[np.uint8]"
    fps: float


def check_pixels(width: int, height: int, limits: Limits) -> None:
    """Raise ``TooLarge`` when one picture of this size is over the limit."""
    if width * height > limits.pixels:
        raise errors.TooLarge(f"{width}x{height} pixels are over the limit of {limits.pixels}; send a smaller picture")


def check_seconds(seconds: float, limits: Limits) -> None:
    """Raise ``TooLarge`` when a recording of this length is over the limit."""
    if seconds > limits.seconds:
        raise errors.TooLarge(f"the recording is longer than {limits.seconds:g} seconds; send a shorter one")


def check_aspect(width: int, height: int) -> None:
    """Raise ``BadMedia`` for a picture that is a line."""
    if max(width, height) > MAX_ASPECT * max(1, min(width, height)):
        raise errors.BadMedia(f"one side of the picture is more than {MAX_ASPECT} times the other")
