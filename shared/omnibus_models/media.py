"""Decoding of untrusted media files to pixels and samples.

Limits are checked before decoding. Every failure of a decoder becomes ``BadMedia`` with fixed text: a decoder's message
about hostile bytes is never echoed. Pillow decodes images, PyAV decodes audio and video.

Conversion of Pillow's modes to 8-bit RGB, on white as in browsers.

Models' own processors end in ``Image.convert("RGB")``, which clips samples of more than 8 bits and shows colours hidden
under transparent pixels. docs/models.md has the rules.

Images through Pillow, despite damaged metadata. Private to ``media``, the error boundary.
"""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageChops, ImageCms

from omnibus import errors
from omnibus_models import _avif
from omnibus_models.frame_sampling import FrameSampling
from omnibus_models.limits import DEFAULT, Clip, MediaDecodeLimits, check_pixels

if TYPE_CHECKING:
    import numpy as np
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


# Formats with a decoder inside Pillow; none of them starts another program.
IMAGE_FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
#: Pillow's errors for damaged metadata.
_METADATA_ERRORS = (SyntaxError, OSError, ValueError, TypeError, LookupError, struct.error)
#: Chunks of a PNG that change its pixels or belong to an animation.
_PNG_CHUNKS = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"acTL", b"fcTL", b"fdAT"})
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
#: Bytes at the beginning of an AVIF or HEIC file that contain its list of items.
_ITEM_LIST_BYTES = 1 << 20


def load_image(data: memoryview, limits: MediaDecodeLimits) -> Image.Image:
    """Decode the first image of a file, without damaged metadata.

    Raises ``TooLarge`` before decoding, ``BadMedia`` for HEIC if pi-heif is not installed, and Pillow's errors.
    """
    formats, content = IMAGE_FORMATS, data
    if bytes(data[4:8]) == b"ftyp":
        content, formats = _prepare_boxes(data, limits)
    try:
        return _load(io.BytesIO(content), formats, limits)
    except _METADATA_ERRORS:
        bare = _drop_metadata(bytes(content))
        if bare is None:
            raise
    return _load(io.BytesIO(bare), formats, limits)


def _load(file: io.BytesIO, formats: tuple[str, ...], limits: MediaDecodeLimits) -> Image.Image:
    image = Image.open(file, formats=formats)
    width, height = image.size
    check_pixels(width, height, limits)
    load_pixels(image)
    return image


def _prepare_boxes(data: memoryview, limits: MediaDecodeLimits) -> tuple[memoryview, tuple[str, ...]]:
    """Return a decodable image from MP4's box format, and its decoder.

    Frames may be larger than the image, and libavif decodes them in any size.
    """
    if b"avif" not in bytes(data[8:64]) and b"avis" not in bytes(data[8:64]):
        return data, (_register_heif(),)
    still = _avif.still_only(bytes(data))
    pixels = _avif.largest_frame(still)
    if pixels > limits.pixels:
        raise errors.TooLarge(f"the image has frames of up to {pixels} pixels; at most {limits.pixels} are accepted")
    return memoryview(still), ("AVIF",)


def _register_heif() -> str:
    """Register HEIC with Pillow, once; return its name there."""
    if "HEIF" not in Image.OPEN:
        try:
            import pi_heif
        except ImportError:
            raise errors.BadMedia(
                "this executor cannot read HEIC: install pi-heif there, or send a JPEG or PNG"
            ) from None
        pi_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
    return "HEIF"


def _drop_metadata(data: bytes) -> bytes | None:
    """Return ``data`` without metadata, or None for an unknown format."""
    if data.startswith(_PNG_MAGIC):
        return _PNG_MAGIC + b"".join(chunk for kind, chunk in _png_chunks(data) if kind in _PNG_CHUNKS)
    if data[4:8] == b"ftyp":
        # Items of another type are ignored.
        return data[:_ITEM_LIST_BYTES].replace(b"Exif", b"skip") + data[_ITEM_LIST_BYTES:]
    return None


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_PNG_MAGIC)
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big") + 12
        yield data[at + 4 : at + 8], data[at : at + size]
        at += size


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
        return convert_to_rgb(load_image(data, limits))


def decode_mask(data: memoryview, limits: MediaDecodeLimits = DEFAULT) -> Image.Image:
    """Decode one image to grey, upright, whose white pixels are those of the image without opacity.

    Of an image without transparency, they are its white pixels.
    """
    with decoder_errors("image", data):
        return convert_to_mask(load_image(data, limits))


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
