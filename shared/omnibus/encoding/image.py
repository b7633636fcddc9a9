"""Encoder from pixels to image files, by Pillow."""

from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from omnibus.errors import BadRequest

PictureFormat = Literal["png", "jpeg", "webp"]

MIME: dict[PictureFormat, str] = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}


def encode_image(
    pixels: NDArray[np.uint8], format: PictureFormat, quality: int = 100, size: tuple[int, int] | None = None
) -> bytes:
    """Encode ``pixels``, uint8 [height, width, 3], as a file of ``format``.

    ``quality`` is 0 to 100, for jpeg and webp; png has none. With ``size``, width and height, the image is scaled. This
    takes milliseconds to seconds, so call it in a thread. Raises ``BadRequest`` for an array that is not an image.
    """
    from PIL import Image  # 10 MiB that a gateway without images does not need

    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise BadRequest(f"an image must be uint8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}")
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if size is not None and size != image.size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    out = BytesIO()
    image.save(out, format.upper(), **_save_options(format, quality))
    return out.getvalue()


def _save_options(format: PictureFormat, quality: int) -> dict[str, Any]:
    return {} if format == "png" else {"quality": quality}
