"""Image that the demo generates, with descriptions of it. One is from its pixels, one by a model."""

import asyncio
import base64
import sys
import time
from pathlib import Path
from typing import Any

from omnibus.cli import demo_world
from omnibus.errors import BadRequest
from omnibus.families import catalog

MODEL = next(name for name, family in catalog.WORLD.items() if "vae" in catalog.FAMILIES[family]["components"])
_QUESTION = "What do you see?"
#: Size in pixels, steps and guidance of an image, as in the training of the model.
_IMAGE_SIZE, _STEP_COUNT, _GUIDANCE = "64x64", 8, 2.0
_MAX_ANSWER_TOKENS = 20


async def draw_and_describe(url: str, wish: str, looking: str, out: Path) -> None:
    """Generate an image of ``wish`` with ``MODEL`` and describe it. Writes the PNG to ``out`` and prints two
    descriptions: from its pixels, and by the model ``looking``."""
    _print_line(f"\nasking {MODEL} to draw: {wish}")
    began = time.monotonic()
    image = await asyncio.to_thread(_generate_image, url, wish)
    _print_line(f"drawn after {time.monotonic() - began:.2f} s; it is in {out}")
    await asyncio.to_thread(out.write_bytes, image)
    if sys.stdout.isatty():
        _print_line(f"\n{demo_world.terminal_image(image)}\n")
    descriptions = {"a program without a model": await demo_world.describe_media(out)}
    descriptions[looking] = await asyncio.to_thread(_describe_image, url, looking, image)
    for name, words in descriptions.items():
        _print_line(f"{name} sees: {words}: {demo_world.verdict_text(words == wish)}")


def _generate_image(url: str, wish: str) -> bytes:
    import openai

    try:
        response = _openai_client(url).images.generate(
            model=MODEL,
            prompt=wish,
            size=_IMAGE_SIZE,
            extra_body={"steps": _STEP_COUNT, "guidance": _GUIDANCE, "seed": 1},
        )
    except openai.APIStatusError as error:
        raise BadRequest(f"the gateway answered {error.status_code}: {error.message}") from error
    return base64.b64decode((response.data or [])[0].b64_json or "")


def _describe_image(url: str, model: str, png: bytes) -> str:
    import openai

    image = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    content: list[Any] = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": _QUESTION}]
    try:
        answer = _openai_client(url).chat.completions.create(
            model=model, messages=[{"role": "user", "content": content}], max_tokens=_MAX_ANSWER_TOKENS, temperature=0
        )
    except openai.APIStatusError as error:
        raise BadRequest(f"the gateway answered {error.status_code}: {error.message}") from error
    return answer.choices[0].message.content or ""


def _openai_client(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none")


def _print_line(text: str) -> None:
    print(text, flush=True)
