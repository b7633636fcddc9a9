"""Default image and audio clip of the demo, generated without downloads."""

import io
import math
import struct
import wave
from collections.abc import Sequence


def make_image() -> bytes:
    """Return a JPEG of 224 x 168 pixels: a red square, a green circle and a yellow triangle on blue."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (224, 168), (40, 70, 160))
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 50, 80, 110), fill=(210, 40, 40))
    draw.ellipse((95, 50, 155, 110), fill=(40, 170, 70))
    draw.polygon([(190, 45), (165, 110), (215, 110)], fill=(240, 210, 60))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def make_audio(seconds: float = 2.0, rate: int = 16000) -> bytes:
    """Return a WAV file, mono, 16 bit: three rising tones."""
    tones = (440.0, 554.37, 659.25)
    count = int(seconds * rate)
    samples = (int(9000 * math.sin(2 * math.pi * tones[min(2, 3 * n // count)] * n / rate)) for n in range(count))
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return out.getvalue()


def draw_receipt(lines: Sequence[tuple[str, str]], total: float) -> bytes:
    """Return a PNG of a receipt: ``lines`` of words and a price, then the total."""
    from PIL import Image, ImageDraw, ImageFont

    rows = [*lines, ("TOTAL EUR", f"{total:.2f}")]
    image = Image.new("L", (420, 60 + 44 * len(rows)), 255)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=28)
    for row, (words, price) in enumerate(rows):
        draw.text((30, 30 + 44 * row), words, fill=0, font=font)
        draw.text((390, 30 + 44 * row), price, fill=0, font=font, anchor="ra")
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
