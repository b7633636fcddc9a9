"""Things to ask of models that were trained, and what is in their answers, as told without any model."""

import asyncio
import os
from pathlib import Path

from omnibus.errors import DeadlineExceeded, Fatal
from omnibus.up.spec import ROOT, python

_WITHIN = 60.0  # seconds
_COLUMNS = 32  # of a picture in a terminal


async def wish(directory: Path, seed: int | None) -> str:
    """Words for a picture that no training saw; without a ``seed`` another time others. ``directory`` takes files."""
    chosen = [] if seed is None else ["--seed", str(seed)]
    return (await _run("make", str(directory), *chosen)).splitlines()[-1]


async def told(file: Path) -> str:
    """What a picture shows or a sound says."""
    return await _run("tell", str(file))


def verdict(right: bool) -> str:
    return "right" if right else "wrong"


def mosaic(picture: bytes) -> str:
    """A picture as text for a terminal with colours: two rows of dots in one of characters."""
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB").resize((_COLUMNS, _COLUMNS))
    dots = [[image.getpixel((x, y)) for x in range(_COLUMNS)] for y in range(_COLUMNS)]
    lines = ("".join(map(_half, upper, lower)) for upper, lower in zip(dots[::2], dots[1::2], strict=True))
    return "\n".join(f"  {line}\033[0m" for line in lines)


def _half(upper: tuple[int, int, int], lower: tuple[int, int, int]) -> str:
    above, below = (";".join(map(str, colour)) for colour in (upper, lower))
    return f"\033[38;2;{above}m\033[48;2;{below}m▀"


async def _run(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *python("omnibus_models.world", *arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_WITHIN):
            output, problems = await process.communicate()
    except TimeoutError:
        raise DeadlineExceeded(f"omnibus_models.world {arguments[0]} took longer than {_WITHIN:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Fatal(f"omnibus_models.world {arguments[0]} failed:\n{problems.decode()[-2000:]}")
    return output.decode().strip()
