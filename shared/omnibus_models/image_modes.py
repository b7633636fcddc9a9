"""Conversion of Pillow's modes to 8-bit RGB, on white as in browsers.

Models' own processors end in ``Image.convert("RGB")``, which clips samples of more than 8 bits and shows colours hidden
under transparent pixels. docs/models.md has the rules.
"""

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageChops, ImageCms

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WHITE = (255, 255, 255)
#: 16 bits to 8: 65535 / 257 is 255, as OpenCV and browsers have it.
_HIGH_BYTE = ((np.arange(65536) + 128) // 257).astype(np.uint8)
#: Factors by which Pillow multiplies grey of 2 and 4 bits.
_SHALLOW_GREY = {"L;2": 85, "L;4": 17}
_ORIENTATION, _PHOTOMETRIC = 0x0112, 262
_WHITE_IS_ZERO = 0
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def load_pixels(image: Image.Image) -> None:
    """Decode ``image``, and scale its transparent colour like its pixels."""
    raw_mode = image.tile[0].args if image.tile else None
    image.load()  # reads the orientation that follows a PNG's pixels
    _scale_colour_key(image, raw_mode)


def convert_to_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded ``image`` upright in RGB."""
    return _turn_upright(_flatten_to_rgb(image), image)


def convert_to_mask(image: Image.Image) -> Image.Image:
    """Return a decoded ``image`` upright in grey: white where it has no opacity, or its brightness if it is opaque."""
    if image.has_transparency_data:
        return _turn_upright(ImageChops.invert(image.convert("RGBA").getchannel("A")), image)
    return _turn_upright(_flatten_to_rgb(image).convert("L"), image)


def _turn_upright(flat: Image.Image, image: Image.Image) -> Image.Image:
    turn = _TURNS.get(_read_orientation(image))
    return flat if turn is None else flat.transpose(turn)


def _scale_colour_key(image: Image.Image, raw_mode: object) -> None:
    """Scale the transparent colour of a PNG as Pillow scaled its pixels."""
    key = image.info.get("transparency")
    if isinstance(key, int) and raw_mode in _SHALLOW_GREY:
        image.info["transparency"] = key * _SHALLOW_GREY[str(raw_mode)]
    elif isinstance(key, tuple) and raw_mode == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in key)


def _read_orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001
        # Damaged EXIF raises anything. The pixels are decoded, and browsers show them unturned.
        return 1


def _flatten_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _flatten_deep_grey(image)
    if image.mode == "LAB":
        return _apply_profiles(image, ImageCms.createProfile("LAB"))
    if image.mode == "CMYK" and image.info.get("icc_profile"):
        return _flatten_print(image)
    if image.has_transparency_data:
        return _put_on_white(image.convert("RGBA"))
    return image.convert("RGB")


def _flatten_deep_grey(image: Image.Image) -> Image.Image:
    samples = np.asarray(image)
    grey = _HIGH_BYTE[samples] if image.mode.startswith("I;16") else _scale_samples(samples)
    tags = getattr(image, "tag_v2", {})
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:  # Pillow inverts 8 bits alone
        grey = 255 - grey
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey = np.where(samples == clear, np.uint8(255), grey)
    return Image.fromarray(grey).convert("RGB")


def _scale_samples(samples: "NDArray[np.int32] | NDArray[np.float32]") -> "NDArray[np.uint8]":
    """Convert 32-bit samples to 8 bits.

    The file does not define white. The scale is the smallest usual range that contains all samples. Ranges are floats
    of 0 to 1, values of 8 or of 16 bits, otherwise the samples' own range.
    """
    usable = samples[np.isfinite(samples)]
    low, high = (float(usable.min()), float(usable.max())) if usable.size else (0.0, 0.0)
    tops = [255.0, 65535.0] if samples.dtype.kind == "i" else [1.0, 255.0, 65535.0]
    fitting = [top for top in tops if low >= 0 and high <= top]
    low, high = (0.0, fitting[0]) if fitting else (low, high)
    finite = np.nan_to_num(samples.astype(np.float64), nan=low, posinf=high, neginf=low)
    return np.rint((finite - low) * (255.0 / ((high - low) or 1.0))).astype(np.uint8)


def _flatten_print(image: Image.Image) -> Image.Image:
    """Convert CMYK by its profile: without one, Pillow's colours differ from those of any press."""
    try:
        return _apply_profiles(image, ImageCms.ImageCmsProfile(io.BytesIO(image.info["icc_profile"])))
    except (ImageCms.PyCMSError, OSError, ValueError):  # a damaged profile, or one of another kind
        return image.convert("RGB")


def _apply_profiles(image: Image.Image, source: ImageCms.ImageCmsProfile | ImageCms.core.CmsProfile) -> Image.Image:
    transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), image.mode, "RGB")
    converted_image: Image.Image = ImageCms.applyTransform(image, transform)
    return converted_image


def _put_on_white(image: Image.Image) -> Image.Image:
    page = Image.new("RGB", image.size, _WHITE)
    page.paste(image, mask=image.getchannel("A"))
    return page
