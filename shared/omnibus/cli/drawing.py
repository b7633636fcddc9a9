"""What the demo draws: a picture of words, told by its pixels."""

import asyncio
import base64
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from omnibus import catalog
from omnibus.cli import world
from omnibus.errors import BadRequest

MODEL = next(name for name, family in catalog.WORLD.items() if "vae" in catalog.FAMILIES[family]["components"])
#: Pixels on a side, and steps, of a picture as the model has learnt it.
_SIZE, _STEPS, _GUIDANCE = "64x64", 8, 2.0


async def show(url: str, seed: int | None, out: Path) -> None:
    """Let ``MODEL`` draw a scene that no training saw into ``out``, a PNG file, and say what its pixels show."""
    with tempfile.TemporaryDirectory() as directory:
        wish = await world.wish(Path(directory), seed)
    _say(f"\nasking {MODEL} to draw: {wish}")
    began = time.monotonic()
    picture = await asyncio.to_thread(_drawn, url, wish)
    _say(f"drawn after {time.monotonic() - began:.2f} s; it is in {out}")
    await asyncio.to_thread(out.write_bytes, picture)
    if sys.stdout.isatty():
        _say(f"\n{world.mosaic(picture)}\n")
    seen = await world.told(out)
    _say(f"who looks at its pixels and is no model sees: {seen}: {world.verdict(seen == wish)}")


def _drawn(url: str, wish: str) -> bytes:
    import openai

    try:
        made = _client(url).images.generate(
            model=MODEL, prompt=wish, size=_SIZE, extra_body={"steps": _STEPS, "guidance": _GUIDANCE, "seed": 1}
        )
    except openai.APIStatusError as error:
        raise BadRequest(f"the gateway answered {error.status_code}: {error.message}") from error
    return base64.b64decode((made.data or [])[0].b64_json or "")


def _client(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none")


def _say(text: str) -> None:
    print(text, flush=True)
