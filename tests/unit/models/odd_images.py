"""Valid images that few programs write, with their expected RGB. It is computed here from the samples.

PNG files are written by hand, so every colour type, depth, colour key and place of the orientation occurs; Pillow and
OpenCV write the rest. ``expected`` follows the PNG specification (third edition, 11.2.1, 11.3.1.1, 13.12), the EXIF
orientations (CIPA DC-008, 4.6.5.1) and a white page under transparent pixels.
"""

import io
import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from PIL import Image

Pixels = np.ndarray[Any, Any]
#: Bits per sample of each colour type: grey, RGB, palette, grey with alpha, RGBA.
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_SIZES = [(1, 1), (7, 3), (2, 9), (13, 8), (5, 5)]


@dataclass(frozen=True)
class OddImage:
    """A file and its expected pixels: uint8 [height, width, 3]. ``tolerance`` in levels."""

    name: str
    data: bytes
    expected: Pixels
    tolerance: int = 1


def odd_images() -> Iterator[OddImage]:
    """Yield all odd images."""
    yield from _png_files()
    yield from _deep_files()
    yield from _pillow_files()
    yield from _opencv_files()


def on_white(rgba: Pixels) -> Pixels:
    """Return uint8 [h, w, 3] of [h, w, 4] in 0 to 1."""
    alpha = rgba[..., 3:]
    return np.rint((rgba[..., :3] * alpha + 1 - alpha) * 255).astype(np.uint8)


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """Return ``pixels`` as a viewer shows them with an EXIF ``orientation``: rows and columns of 1 to 8."""
    if orientation > 4:
        pixels = pixels.swapaxes(0, 1)
    flip_rows = orientation in (3, 4, 7, 8)
    flip_columns = orientation in (2, 3, 6, 7)
    return pixels[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]


def _png_files() -> Iterator[OddImage]:
    random = np.random.default_rng(7)
    kinds = [(colour, depth) for colour, depths in _DEPTHS.items() for depth in depths]
    for number, ((colour, depth), has_key, orientation) in enumerate(
        itertools.product(kinds, (False, True), (1, 2, 3, 4, 5, 6, 7, 8))
    ):
        if has_key and colour in (4, 6):
            continue
        width, height = _SIZES[number % len(_SIZES)]
        samples = random.integers(0, 2**depth, (height, width, _CHANNELS[colour]))
        palette = random.integers(0, 256, (2**depth, 3)) if colour == 3 else None
        key = _colour_key(random, samples, colour, depth) if has_key else None
        pixels = on_white(_png_colours(samples, colour, depth, palette, key))
        data = _build_png(samples, colour, depth, palette, key, orientation, exif_last=number % 2 == 0)
        name = f"PNG type {colour} depth {depth}{' keyed' if has_key else ''} orientation {orientation}"
        # Pillow keeps the high byte of colours and of opacities, so both may be one level off.
        yield OddImage(name, data, turn_upright(pixels, orientation), 2 if depth == 16 and colour > 3 else 1)


def _colour_key(random: Any, samples: Pixels, colour: int, depth: int) -> Pixels:
    """Return one of the image's colours, or the opacities of its palette."""
    return random.integers(0, 256, 2**depth) if colour == 3 else samples[0, 0]


def _png_colours(samples: Pixels, colour: int, depth: int, palette: Pixels | None, key: Pixels | None) -> Pixels:
    """[h, w, 4] in 0 to 1."""
    if palette is not None:
        alpha = np.full(len(palette), 255) if key is None else key
        return np.concatenate([palette, alpha[:, None]], axis=1)[samples[..., 0]] / 255
    values = samples / (2**depth - 1)
    alpha = values[..., -1:] if colour in (4, 6) else np.ones_like(values[..., :1])
    if key is not None:
        alpha = np.where((samples == key).all(axis=-1, keepdims=True), 0.0, alpha)
    shades = values[..., :3] if colour in (2, 6) else values[..., :1].repeat(3, axis=-1)
    return np.concatenate([shades, alpha], axis=-1)


def _build_png(
    samples: Pixels,
    colour: int,
    depth: int,
    palette: Pixels | None,
    key: Pixels | None,
    orientation: int,
    exif_last: bool,
) -> bytes:
    height, width, _ = samples.shape
    head = _build_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    exif = _build_chunk(
        b"eXIf", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + struct.pack(">HHI", orientation, 0, 0)
    )
    colours = b"" if palette is None else _build_chunk(b"PLTE", palette.astype(np.uint8).tobytes())
    keys = b"" if key is None else _build_chunk(b"tRNS", key.astype(np.uint8 if colour == 3 else ">u2").tobytes())
    pixels = _build_chunk(b"IDAT", zlib.compress(b"".join(b"\0" + _pack_row(row, depth) for row in samples)))
    parts = [pixels, exif] if exif_last else [exif, pixels]
    return b"\x89PNG\r\n\x1a\n" + head + colours + keys + b"".join(parts) + _build_chunk(b"IEND", b"")


def _build_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _pack_row(row: Pixels, depth: int) -> bytes:
    if depth == 16:
        return row.astype(">u2").tobytes()
    bits = (row.reshape(-1, 1) >> np.arange(depth)[::-1]) & 1
    return np.packbits(bits.astype(np.uint8)).tobytes()


def _deep_files() -> Iterator[OddImage]:
    """Yield TIFF files of more than 8 bits per sample. They cover both byte orders, and white or black as zero."""
    ramp = np.linspace(0, 65535, 77).reshape(7, 11)
    for orientation, is_inverted in itertools.product((1, 3, 6, 8), (False, True)):
        for order in "<" if is_inverted else "<>":  # Pillow does not read the other one
            data = _build_tiff(ramp.astype(f"{order}u2"), order, is_inverted, orientation)
            pixels = np.rint(ramp.astype(np.uint16) / 257)
            pixels = 255 - pixels if is_inverted else pixels
            name = f"TIFF u2{order} orientation {orientation}{' white is zero' if is_inverted else ''}"
            yield OddImage(name, data, turn_upright(_make_grey(pixels), orientation))
    for top, kind in itertools.product((1, 255, 65535), (np.float32, np.int32)):
        samples = (ramp / 65535 * top).astype(kind)
        if kind is np.int32 and top == 1:
            continue
        pixels = np.rint(samples / top * 255)
        yield OddImage(
            f"TIFF {kind.__name__} up to {top}", _write_image(Image.fromarray(samples), "TIFF"), _make_grey(pixels)
        )
    for low, high in ((-500, 500), (-1, 0), (0, 1e6)):
        samples = (ramp / 65535 * (high - low) + low).astype(np.float32)
        pixels = np.rint(ramp / 65535 * 255)
        yield OddImage(
            f"TIFF float {low} to {high}", _write_image(Image.fromarray(samples), "TIFF"), _make_grey(pixels)
        )


def _make_grey(pixels: Pixels) -> Pixels:
    return pixels.astype(np.uint8)[..., None].repeat(3, axis=-1)


def _build_tiff(samples: Pixels, order: str, inverted: bool, orientation: int) -> bytes:
    """Return one strip of grey samples of 16 bits."""
    height, width = samples.shape
    strip = samples.tobytes()
    tags = [(256, width), (257, height), (258, 16), (259, 1), (262, 0 if inverted else 1), (273, 8)]
    tags += [(274, orientation), (277, 1), (278, height), (279, len(strip))]
    start = 8 + len(strip) + len(strip) % 2
    head = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, start)
    entries = b"".join(struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in tags)
    body = head + strip.ljust(start - 8, b"\0")
    return body + struct.pack(order + "H", len(tags)) + entries + bytes(4)


def _write_image(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _pillow_files() -> Iterator[OddImage]:
    random = np.random.default_rng(8)
    rgba = random.integers(0, 256, (9, 6, 4), dtype=np.uint8)
    exact: dict[str, dict[str, Any]] = {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True, "exact": True}}
    for kind, mode, orientation in itertools.product(exact, ("RGBA", "RGB", "L", "LA"), (1, 3, 5, 6, 8)):
        image = Image.fromarray(rgba, "RGBA").convert(mode)
        exif = Image.Exif()
        exif[0x0112] = orientation
        pixels = on_white(np.asarray(image.convert("RGBA")) / 255)
        data = _write_image(image, kind, exif=exif, **exact[kind])
        yield OddImage(f"{kind} {mode} orientation {orientation}", data, turn_upright(pixels, orientation))
    for kind in ("BMP", "GIF"):
        image = Image.fromarray(rgba[..., 0] & 240)
        yield OddImage(f"{kind} L", _write_image(image, kind), _make_grey(np.asarray(image)))
    inks = random.integers(0, 256, (9, 6, 4), dtype=np.uint8)
    shades = np.rint((1 - inks[..., :3] / 255) * (1 - inks[..., 3:] / 255) * 255).astype(np.uint8)
    yield OddImage("TIFF CMYK", _write_image(Image.fromarray(inks, "CMYK"), "TIFF"), shades, 2)
    yield OddImage("TIFF Lab", _lab_file(), np.full((3, 4, 3), (155, 99, 168), np.uint8), 1)
    logo = np.zeros((12, 12, 4), np.uint8)
    logo[3:9, 3:9, 3] = 255
    pixels = on_white(logo / 255)
    for kind in ("PNG", "GIF", "WEBP", "TIFF", "AVIF"):
        yield OddImage(f"{kind} logo on nothing", _write_image(Image.fromarray(logo, "RGBA"), kind), pixels, 12)


def _lab_file() -> bytes:
    """L 50.2, a 32, b -28 (ISO 13655, D50), which is (155, 99, 168) in sRGB."""
    return _write_image(Image.new("LAB", (4, 3), (128, 160, 100)), "TIFF")


def _opencv_files() -> Iterator[OddImage]:
    """Yield images of 16 bits that OpenCV writes and reads back."""
    random = np.random.default_rng(9)
    for kind, channels in itertools.product((".png", ".tiff"), (1, 3)):
        for number in range(3):
            samples = random.integers(0, 65536, (4 + number, 9, channels), dtype=np.uint16)
            data = cv2.imencode(kind, samples)[1]
            pixels = cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1]
            yield OddImage(f"OpenCV {kind} {channels} channels {number}", data.tobytes(), pixels)
