"""The decoder makes one image of each latents, regardless of other work."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus_generator.vae_decoder import DecodeImageRunner, LatentDecodeSettings
from omnibus_models.families import load_family
from tests.unit.jobs import MemoryJob, run


@pytest.fixture
async def runner(image: Path) -> AsyncIterator[DecodeImageRunner]:
    made = DecodeImageRunner("vae", "qwen_image", image, "cpu", "float32", LatentDecodeSettings())
    await made.load()
    yield made
    await made.close()


def latents(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((4, 1, height, width), np.float32)
    made.setflags(write=False)  # as an arena's
    return made


@pytest.mark.numeric
async def test_pictures_of_many_requests_are_those_of_each(runner: DecodeImageRunner, image: Path) -> None:
    decoder: Any = load_family("qwen_image").load("vae", image)
    given = [latents(seed, height=4 + 2 * seed) for seed in range(4)]
    jobs = [MemoryJob({"latents": Item({}, each)}) for each in given]

    await asyncio.gather(*(run(runner, one) for one in jobs))

    for each, one in zip(given, jobs, strict=True):
        picture = one.array("image")
        assert (picture.shape, picture.dtype.name) == ((8 * each.shape[2], 64, 3), "uint8")
        np.testing.assert_array_equal(picture, decoder.decode(torch.tensor(each)).numpy())
    assert runner.stats()["pictures"] == 4
    assert runner.stats()["used"] == 0


@pytest.mark.parametrize("given", [Item({}, None), None, Item({}, np.zeros((16, 1, 8, 8), np.float32))])
async def test_what_are_no_latents_is_refused(runner: DecodeImageRunner, given: Any) -> None:
    with pytest.raises(BadRequest, match="latents"):
        await run(runner, MemoryJob({"latents": given}))
