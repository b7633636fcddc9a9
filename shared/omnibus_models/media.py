"""Untrusted media files to pixels and samples, within limits that are checked before decoding.

Every failure of a decoder becomes ``BadMedia`` with fixed text: what a decoder says about hostile
bytes is never echoed. Pillow decodes images, PyAV decodes sound and video.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from PIL import Image

from omnibus import errors
from omnibus_models._images import IMAGE_FORMATS, load_image, turn_upright
from omnibus_models.limits import DEFAULT, Clip, MediaDecodeLimits, check_aspect

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "DEFAULT",
    "IMAGE_FORMATS",
    "Clip",
    "MediaDecodeLimits",
    "decode_audio",
    "decode_image",
    "decode_video",
    "decoder_errors",
]


def decode_image(data: memoryview, limits: MediaDecodeLimits = DEFAULT) -> Image.Image:
    """Decode one image (the first frame of an animation) to RGB, upright."""
    with decoder_errors("image", data):
        picture = load_image(data, limits)
        check_aspect(picture.width, picture.height)
        return turn_upright(picture).convert("RGB")


def decode_audio(data: memoryview, limits: MediaDecodeLimits = DEFAULT, rate: int = 16_000) -> "NDArray[np.float32]":
    """Decode the first sound track to mono float32 [n] at ``rate`` samples per second."""
    from omnibus_models import _av

    with decoder_errors("audio", data):
        return _av.decode_audio(data, limits, rate)


def decode_video(data: memoryview, limits: MediaDecodeLimits = DEFAULT, fps: float = 2.0) -> Clip:
    """Decode the first video track and keep ``fps`` frames per second, fewer when it is long."""
    from omnibus_models import _av

    with decoder_errors("video", data):
        return _av.decode_video(data, limits, fps)


@contextmanager
def decoder_errors(kind: str, data: memoryview) -> Iterator[None]:
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
