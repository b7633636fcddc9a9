"""Decoding of untrusted media files to pixels and samples.

Limits are checked before decoding. Every failure of a decoder becomes ``BadMedia`` with fixed text: a decoder's message
about hostile bytes is never echoed. Pillow decodes images, PyAV decodes audio and video.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from PIL import Image

from omnibus import errors
from omnibus_models import image_modes
from omnibus_models._images import IMAGE_FORMATS, load_image
from omnibus_models.frame_sampling import FrameSampling
from omnibus_models.limits import DEFAULT, Clip, MediaDecodeLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "DEFAULT",
    "DEFAULT_SAMPLING",
    "IMAGE_FORMATS",
    "Clip",
    "MediaDecodeLimits",
    "decode_audio",
    "decode_image",
    "decode_mask",
    "decode_video",
    "decoder_errors",
]

#: Two frames per second, from the first frame to the last.
DEFAULT_SAMPLING = FrameSampling()


def decode_image(data: memoryview, limits: MediaDecodeLimits = DEFAULT) -> Image.Image:
    """Decode one image to RGB, upright and on white.

    Of an animation it decodes the first frame.
    """
    with decoder_errors("image", data):
        return image_modes.convert_to_rgb(load_image(data, limits))


def decode_mask(data: memoryview, limits: MediaDecodeLimits = DEFAULT) -> Image.Image:
    """Decode one image to grey, upright, whose white pixels are those of the image without opacity.

    Of an image without transparency, they are its white pixels.
    """
    with decoder_errors("image", data):
        return image_modes.convert_to_mask(load_image(data, limits))


def decode_audio(data: memoryview, limits: MediaDecodeLimits = DEFAULT, rate: int = 16_000) -> "NDArray[np.float32]":
    """Decode the first audio track to mono float32 [n] at ``rate`` hertz."""
    from omnibus_models import _av

    with decoder_errors("audio", data):
        return _av.decode_audio(data, limits, rate)


def decode_video(
    data: memoryview, limits: MediaDecodeLimits = DEFAULT, sampling: FrameSampling = DEFAULT_SAMPLING
) -> Clip:
    """Decode the first video track and keep the frames of ``sampling``, upright.

    Of a long video, it keeps fewer.
    """
    from omnibus_models import _video

    with decoder_errors("video", data):
        return _video.decode_video(data, limits, sampling)


@contextmanager
def decoder_errors(kind: str, data: memoryview) -> Iterator[None]:
    """Error boundary of a decoder: its errors become ``BadMedia``, our own pass through."""
    if not len(data):
        raise errors.BadMedia(f"the {kind} is empty; send the bytes of the file")
    try:
        yield
    except (errors.OmnibusError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise errors.TooLarge(f"the {kind} has too many pixels; send a smaller one") from None
    except Exception:  # noqa: BLE001
        # Decoders raise anything on hostile bytes: KeyError, struct.error, SyntaxError. The request is at
        # fault, not the service.
        raise errors.BadMedia(f"the {kind} is corrupt, truncated or of an unknown format; send another file") from None
