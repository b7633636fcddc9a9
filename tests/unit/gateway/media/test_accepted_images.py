"""Every accepted image format: its size in the header check, and decoding with any metadata."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnibus.errors import BadMedia, TooLarge
from omnibus_gateway.media.inspect import inspect_media
from omnibus_models import media
from omnibus_models.limits import MediaDecodeLimits
from tests.unit.gateway.heic import write_heic

WIDTH, HEIGHT = 60, 40
HALVES = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
HALVES[:, : WIDTH // 2], HALVES[:, WIDTH // 2 :] = (255, 0, 0), (0, 0, 255)


def encode_image(format: str, **options: Any) -> bytes:
    out = BytesIO()
    Image.fromarray(HALVES).save(out, format, **options)
    return out.getvalue()


#: One file of each kind: its MIME type and how it is made.
IMAGES: dict[str, tuple[str, bytes]] = {
    "JPEG": ("image/jpeg", encode_image("JPEG")),
    "PNG": ("image/png", encode_image("PNG")),
    "WebP": ("image/webp", encode_image("WEBP")),
    "GIF": ("image/gif", encode_image("GIF")),
    "BMP": ("image/bmp", encode_image("BMP")),
    "TIFF": ("image/tiff", encode_image("TIFF")),
    "TIFF, LZW": ("image/tiff", encode_image("TIFF", compression="tiff_lzw")),
    "TIFF, JPEG": ("image/tiff", encode_image("TIFF", compression="jpeg")),
    "BigTIFF": ("image/tiff", encode_image("TIFF", big_tiff=True)),
    "AVIF": ("image/avif", encode_image("AVIF")),
    "HEIC": ("image/heic", write_heic(HALVES)),
    "HEIC of a brand for all images": ("image/heic", write_heic(HALVES, brand=b"mif1")),
}


def is_upright(image: Image.Image) -> bool:
    red, blue = image.getpixel((3, 3)), image.getpixel((image.width - 4, 3))
    return bool(red[0] > 200 and red[2] < 60 and blue[2] > 200 and blue[0] < 60)  # type: ignore[index]


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_accepted_with_its_size(kind: str):
    mime, data = IMAGES[kind]

    info = inspect_media(data, "image")
    image = media.decode_image(memoryview(data))

    assert (info.mime, info.width, info.height) == (mime, WIDTH, HEIGHT)
    assert image.size == (WIDTH, HEIGHT)
    assert is_upright(image)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_of_several_frames_the_first_counts(format: str):
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "green", "blue")]
    out = BytesIO()
    frames[0].save(out, format, save_all=True, append_images=frames[1:])

    info = inspect_media(out.getvalue(), "image")
    image = media.decode_image(memoryview(out.getvalue()))

    assert (info.width, info.height) == image.size == (WIDTH, HEIGHT)
    assert image.getpixel((5, 5))[0] > 250  # type: ignore[index]


DAMAGED_EXIF = {
    "not TIFF": b"\0\0\0\0no tiff here",
    "empty": b"Exif\0\0",
    "offset beyond the end": b"Exif\0\0MM\0*\xff\xff\xff\xff",
    "endless list": b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 30,
    "value beyond the end": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\2\0\xff\0\0\0\xff\xff\xff\xff\0\0\0\0",
    "a byte": b"x",
    "unknown orientation": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x63\0\0\0\0\0\0\0",
}


def png_with(kind: bytes, body: bytes, *, at_end: bool, checksum: bool) -> bytes:
    data = IMAGES["PNG"][1]
    crc = zlib.crc32(kind + body) if checksum else 1
    place = len(data) - 12 if at_end else 33
    return data[:place] + struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc) + data[place:]


@pytest.mark.behaviour(
    "Pillow 13.0",
    "raises SyntaxError in exif_transpose for PNG and WebP, and in open for AVIF, whose EXIF is damaged; reads such a JPEG",
    "decodes the image without its metadata",
    source="PNG specification, third edition, 13.1 (errors in ancillary chunks)",
)
@pytest.mark.parametrize("damage", DAMAGED_EXIF)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "AVIF", "HEIC"])
def test_an_image_with_damaged_exif_is_decoded(format: str, damage: str):
    exif = DAMAGED_EXIF[damage]
    if format == "HEIC":
        data = write_heic(HALVES, exif=b"\0\0\0\6" + exif)
    elif format == "AVIF":
        # Pillow writes no damaged EXIF, so the test damages a valid one from its byte order on.
        sound = Image.Exif()
        sound[0x010E] = "a description that is long enough" * 4
        data = encode_image("AVIF", exif=sound.tobytes())
        at = data.rindex(b"MM\0*") if b"MM\0*" in data else data.rindex(b"II*\0")
        data = data[:at] + exif[:120].ljust(16, b"\xff") + data[at + max(16, len(exif[:120])) :]
    else:
        data = encode_image(format, exif=exif)

    assert inspect_media(data, "image").width == WIDTH
    assert is_upright(media.decode_image(memoryview(data)))


@pytest.mark.parametrize("kind", [b"eXIf", b"iCCP", b"zTXt", b"iTXt", b"pHYs", b"tIME"])
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_png_is_decoded_whatever_its_ancillary_chunks_hold(kind: bytes, at_end: bool, checksum: bool):
    data = png_with(kind, b"\0\0\0\0no", at_end=at_end, checksum=checksum)

    assert is_upright(media.decode_image(memoryview(data)))


def test_a_png_with_damaged_pixels_is_refused():
    data = IMAGES["PNG"][1]
    at = data.index(b"IDAT") + 8

    with pytest.raises(BadMedia):
        media.decode_image(memoryview(data[:at] + b"\0\0\0\0" + data[at + 4 :]))


def test_a_heic_is_turned_as_it_says():
    image = media.decode_image(memoryview(write_heic(HALVES, turns=1)))

    assert image.size == (HEIGHT, WIDTH)


# Limits


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "AVIF", "HEIC"])
def test_pixels_are_limited_before_they_are_decoded(kind: str):
    data = IMAGES[kind][1]

    with pytest.raises(TooLarge):
        media.decode_image(memoryview(data), MediaDecodeLimits(pixels=WIDTH * HEIGHT - 1))


@pytest.mark.behaviour(
    "libavif 1.3 (Pillow 13.0)",
    "decodes frames of the size that the AV1 data state, up to 268 megapixels, and scales them to the size in the header",
    "limits the size that the AV1 data state",
    source="the AV1 specification, 5.5.1 (max_frame_width_minus_1)",
)
def test_an_avif_cannot_hide_its_size_behind_its_header():
    data = IMAGES["AVIF"][1]
    at = data.index(b"ispe") + 8
    small = data[:at] + struct.pack(">II", 4, 4) + data[at + 8 :]

    assert inspect_media(small, "image").width == 4
    with pytest.raises(TooLarge, match=f"up to {WIDTH * HEIGHT} pixels"):
        media.decode_image(memoryview(small), MediaDecodeLimits(pixels=100))


def test_a_heic_cannot_hide_its_size_behind_its_header():
    small = write_heic(np.zeros((400, 600, 3), np.uint8), stated_size=(8, 8))

    with pytest.raises((BadMedia, TooLarge)):
        media.decode_image(memoryview(small), MediaDecodeLimits(pixels=100))
