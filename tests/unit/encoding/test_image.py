"""Encoding pixels to files that other programs can open."""

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from omnibus.encoding.image import MIME, PictureFormat, encode_image
from omnibus.errors import BadRequest


def make_gradient(width: int = 40, height: int = 24) -> NDArray[np.uint8]:
    across = np.linspace(0, 255, width, dtype=np.uint8)[None, :, None]
    return np.broadcast_to(across, (height, width, 3)).copy()


@pytest.mark.parametrize("format", MIME)
def test_a_picture_is_read_back_in_its_size(format: PictureFormat):
    image = Image.open(io.BytesIO(encode_image(make_gradient(), format)))

    assert (image.format, image.size, image.get_format_mimetype()) == (format.upper(), (40, 24), MIME[format])
    np.testing.assert_allclose(np.asarray(image.convert("RGB"), int), make_gradient().astype(int), atol=12)


def test_png_is_exact():
    image = Image.open(io.BytesIO(encode_image(make_gradient(), "png")))

    np.testing.assert_array_equal(np.asarray(image), make_gradient())


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_less_quality_is_a_smaller_file(format: PictureFormat):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)

    sizes = [len(encode_image(noise, format, quality)) for quality in (0, 50, 100)]

    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_picture_can_be_scaled():
    image = Image.open(io.BytesIO(encode_image(make_gradient(), "png", size=(80, 48))))

    assert image.size == (80, 48)
    assert np.asarray(image)[0, -1].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_picture_is_refused(pixels: NDArray[np.uint8]):
    with pytest.raises(BadRequest, match="an image must be uint8"):
        encode_image(pixels, "png")


def test_a_view_that_is_not_contiguous_is_encoded_as_it_looks():
    view = make_gradient().transpose(1, 0, 2)

    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_image(view, "png")))), view)
