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
from tests.unit.jobs import MemoryJob, finish_job


@pytest.fixture
async def runner(image_checkpoint: Path) -> AsyncIterator[DecodeImageRunner]:
    decode_runner = DecodeImageRunner("vae", "qwen_image", image_checkpoint, "cpu", "float32", LatentDecodeSettings())
    await decode_runner.load()
    yield decode_runner
    await decode_runner.close()


def make_latents(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    array = np.random.default_rng(seed).standard_normal((4, 1, height, width), np.float32)
    array.setflags(write=False)  # as an arena's
    return array


@pytest.mark.numeric
async def test_pictures_of_many_requests_are_those_of_each(runner: DecodeImageRunner, image_checkpoint: Path) -> None:
    decoder: Any = load_family("qwen_image").load("vae", image_checkpoint)
    inputs = [make_latents(seed, height=4 + 2 * seed) for seed in range(4)]
    jobs = [MemoryJob({"latents": Item({}, each)}) for each in inputs]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for each, one in zip(inputs, jobs, strict=True):
        picture = one.array("image")
        assert (picture.shape, picture.dtype.name) == ((8 * each.shape[2], 64, 3), "uint8")
        np.testing.assert_array_equal(picture, decoder.decode(torch.tensor(each)).numpy())
    assert runner.stats()["pictures"] == 4
    assert runner.stats()["used"] == 0


@pytest.mark.parametrize("bad_latents", [Item({}, None), None, Item({}, np.zeros((16, 1, 8, 8), np.float32))])
async def test_what_are_no_latents_is_refused(runner: DecodeImageRunner, bad_latents: Any) -> None:
    with pytest.raises(BadRequest, match="latents"):
        await finish_job(runner, MemoryJob({"latents": bad_latents}))
