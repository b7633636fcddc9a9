"""Wishes for pictures of the small world over HTTP, and the pictures."""

import asyncio
import base64
import io
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import httpx
import numpy as np
from PIL import Image

from tests.e2e.system import System

PAINTER = "qwen-image-world"
#: Right answers of a hundred that are enough.
ENOUGH = 0.95
_AT_ONCE = 8
_STEPS, _GUIDANCE = 8, 2.0

T = TypeVar("T")


async def paint(http: httpx.AsyncClient, prompt: str, seed: int, path: str = "") -> np.ndarray:
    """A picture of what is told, uint8 [64, 64, 3]; ``path`` names the executors that make it."""
    wish = {"model": PAINTER, "prompt": prompt, "size": "64x64", "steps": _STEPS, "guidance": _GUIDANCE, "seed": seed}
    answer = await http.post("/v1/images/generations", json=wish, headers={"x-omnibus-path": path} if path else {})
    assert answer.status_code == 200, answer.text
    [made] = answer.json()["data"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(made["b64_json"]))))


async def some_at_once(each: Sequence[Awaitable[T]], most: int = _AT_ONCE) -> list[T]:
    """The results of all, ``most`` of which run at a time."""
    room = asyncio.Semaphore(most)

    async def one(asked: Awaitable[T]) -> T:
        async with room:
            return await asked

    return list(await asyncio.gather(*map(one, each)))


def open_door(house: System) -> httpx.AsyncClient:
    """A client with room and patience for many at once."""
    return httpx.AsyncClient(base_url=house.url, timeout=120, limits=httpx.Limits(max_connections=64))


def share(right: Sequence[bool]) -> float:
    return sum(right) / len(right)
