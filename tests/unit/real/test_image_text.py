"""A trained reader of images: the rows of a receipt, and images that it cannot use."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from omnibus.errors import BadMedia
from omnibus_real import ReadImage, TextLine
from omnibus_real.image_text import arrange_rows
from tests.unit.real.calls import call_in_vain, call_task, parts_of

RECEIPT = [("CORNER SHOP", ""), ("2 Espresso", "5.00"), ("1 Croissant", "2.20"), ("Total EUR", "7.20")]


def draw_receipt(rise: int) -> np.ndarray:
    """Return an image uint8 [height, width, 3]. Amounts are ``rise`` pixels above their items."""
    image = Image.new("RGB", (480, 330), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(28)
    for row, (item, amount) in enumerate(RECEIPT):
        draw.text((30, 30 + 70 * row), item, "black", font)
        draw.text((360, 30 + 70 * row - rise), amount, "black", font)
    return np.asarray(image)


@pytest.mark.real
@pytest.mark.parametrize("as_file", [True, False])
async def test_an_amount_is_in_the_row_of_its_item(reader: ReadImage, as_file: bool):
    pixels, file = draw_receipt(12), io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")

    read = await call_task(reader, media=np.frombuffer(file.getvalue(), np.uint8) if as_file else pixels)

    [lines], [text] = (
        (each["value"] for each in parts_of(read, "lines")),
        (each["value"] for each in parts_of(read, "text")),
    )
    assert text == "CORNER SHOP\n2 Espresso 5.00\n1 Croissant 2.20\nTotal EUR 7.20"
    assert [line["text"] for line in lines][-2:] == ["Total EUR", "7.20"]
    assert all(0.9 < line["score"] <= 1 for line in lines)
    (left, top), _, (right, bottom), _ = lines[-1]["box"]
    assert (left, right) == pytest.approx((360, 418), abs=8)
    assert 218 < top < bottom < 270


@pytest.mark.real
async def test_an_image_without_text_is_rejected(reader: ReadImage):
    error = await call_in_vain(reader, media=np.full((120, 160, 3), 255, np.uint8))

    assert isinstance(error, BadMedia)
    assert "no text was found" in error.message


@pytest.mark.real
async def test_a_file_of_another_kind_is_rejected(reader: ReadImage):
    assert isinstance(await call_in_vain(reader, media=np.frombuffer(b"no image", np.uint8)), BadMedia)


def make_line(text: str, x: float, y: float, height: float = 20) -> TextLine:
    return TextLine(text=text, box=[(x, y), (x + 50, y), (x + 50, y + height), (x, y + height)], score=1.0)


def test_rows_are_arranged_by_the_middles_of_lines():
    lines = [make_line("b", 200, 5), make_line("a", 10, 0), make_line("d", 100, 40, 10), make_line("c", 10, 30, 30)]

    rows = arrange_rows(lines)

    assert [[line.text for line in row] for row in rows] == [["a", "b"], ["c", "d"]]
