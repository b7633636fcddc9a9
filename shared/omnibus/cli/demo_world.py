"""Samples for trained models, and descriptions of answers without a model."""

from pathlib import Path
from typing import NamedTuple

from omnibus.errors import Fatal
from omnibus.process import run_module

_TIMEOUT_SECONDS = 60.0  # seconds
_IMAGE_COLUMNS = 32  # of an image in a terminal


class DemoSample(NamedTuple):
    """Sample for a trained model: a PNG, a WAV file and the words.

    ``answer`` is the right answer about both. ``wish`` describes another image, to generate.
    """

    picture: bytes
    sound: bytes
    answer: str = ""
    wish: str = ""


async def make_sample(directory: Path, seed: int | None) -> DemoSample:
    """Return a sample that was not in the training data. It is random without a ``seed``. The files are written to
    ``directory``."""
    seed_arguments = [] if seed is None else ["--seed", str(seed)]
    answer, wish = (await _run_world("make", str(directory), *seed_arguments)).splitlines()
    return DemoSample((directory / "seen.png").read_bytes(), (directory / "heard.wav").read_bytes(), answer, wish)


async def describe_media(file: Path) -> str:
    """Return the words that describe an image or an audio file."""
    return await _run_world("tell", str(file))


def verdict_text(right: bool) -> str:
    return "right" if right else "wrong"


def terminal_image(data: bytes) -> str:
    """Return an image as text for a terminal with colours: two rows of pixels in each row of characters."""
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB").resize((_IMAGE_COLUMNS, _IMAGE_COLUMNS))
    dots = [[image.getpixel((x, y)) for x in range(_IMAGE_COLUMNS)] for y in range(_IMAGE_COLUMNS)]
    lines = ("".join(map(_half_block, upper, lower)) for upper, lower in zip(dots[::2], dots[1::2], strict=True))
    return "\n".join(f"  {line}\033[0m" for line in lines)


def _half_block(upper: tuple[int, int, int], lower: tuple[int, int, int]) -> str:
    above, below = (";".join(map(str, colour)) for colour in (upper, lower))
    return f"\033[38;2;{above}m\033[48;2;{below}m▀"


async def _run_world(*arguments: str) -> str:
    result = await run_module.run_module("omnibus_models.world", *arguments, within=_TIMEOUT_SECONDS)
    if result.code:
        raise Fatal(f"omnibus_models.world {arguments[0]} failed:\n{result.said[-2000:]}")
    return result.output.strip()
