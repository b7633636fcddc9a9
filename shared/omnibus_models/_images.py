"""Images through Pillow, despite damaged metadata. Private to ``media``, the error boundary."""

import io
import struct
from collections.abc import Iterator

from PIL import Image

from omnibus import errors
from omnibus_models import _avif, image_modes
from omnibus_models.limits import MediaDecodeLimits, check_pixels

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
    image_modes.load_pixels(image)
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
