"""Untrusted media files to pixels and samples, within limits that are checked before decoding.

Every failure of a decoder becomes ``BadMedia`` with fixed text: what a decoder says about hostile
bytes is never echoed. Pillow decodes images, PyAV decodes sound and video.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from omnibus import errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Formats with a decoder inside Pillow; none of them starts another program.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
# Qwen's resizing refuses anything longer; so does this module, before decoding.
MAX_ASPECT = 200


@dataclass(frozen=True)
class Limits:
    """What one media file may cost. Anything above raises ``TooLarge``.

    ``pixels``: of an image or of one video frame. ``seconds``: of sound or video. ``frames``: decoded
    from one video. ``sampled``: frames that reach the model, thinned out evenly, no error.
    ``video_pixels``: sum over the sampled frames, which bounds memory (3 bytes each).
    """

    pixels: int = 50_000_000
    seconds: float = 300.0
    frames: int = 36_000
    sampled: int = 64
    video_pixels: int = 128_000_000


DEFAULT = Limits()


@dataclass(frozen=True)
class Clip:
    """Sampled frames, uint8 [n, height, width, 3], at ``fps`` frames per second."""

    frames: "NDArray[np.uint8]"
    fps: float


def image(data: memoryview, limits: Limits = DEFAULT) -> Image.Image:
    """Decode one image (the first frame of an animation) to RGB, upright."""
    with decoding("image", data):
        picture = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
        width, height = picture.size
        check_pixels(width, height, limits)
        check_aspect(width, height)
        return ImageOps.exif_transpose(picture).convert("RGB")


def audio(data: memoryview, limits: Limits = DEFAULT, rate: int = 16_000) -> "NDArray[np.float32]":
    """Decode the first sound track to mono float32 [n] at ``rate`` samples per second."""
    from omnibus_models import _av

    with decoding("audio", data):
        return _av.audio(data, limits, rate)


def video(data: memoryview, limits: Limits = DEFAULT, fps: float = 2.0) -> Clip:
    """Decode the first video track and keep ``fps`` frames per second, fewer when it is long."""
    from omnibus_models import _av

    with decoding("video", data):
        return _av.video(data, limits, fps)


@contextmanager
def decoding(kind: str, data: memoryview) -> Iterator[None]:
    """The boundary to a decoder: its errors become ``BadMedia``, our own pass."""
    if not len(data):
        raise errors.BadMedia(f"the {kind} is empty; send the bytes of the file")
    try:
        yield
    except (errors.OmnibusError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise errors.TooLarge(f"the {kind} has too many pixels; send a smaller one") from None
    except Exception:  # noqa: BLE001
        # Decoders raise anything on hostile bytes: KeyError, struct.error, SyntaxError. One request is at
        # fault, the service is not.
        raise errors.BadMedia(f"the {kind} is corrupt, truncated or of an unknown format; send another file") from None


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
