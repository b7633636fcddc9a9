"""Image editing: images made from images, of many requests at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, TooLarge
from omnibus.executor.runner import Item
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings
from omnibus_models.contract import Denoiser, ImageSpec
from omnibus_models.families import load_family
from tests.close import DENOISED_BOUND, assert_close
from tests.unit.jobs import MemoryJob, finish_job

TOKENS, WIDTH = 9, 64


@pytest.fixture(scope="module")
def denoiser(edit_checkpoint: Path) -> Denoiser:
    return load_family("qwen_image_edit").load("dit", edit_checkpoint)


@pytest.fixture
async def runner(edit_checkpoint: Path) -> AsyncIterator[DenoiseRunner]:
    denoise_runner = DenoiseRunner(
        "dit", "qwen_image_edit", edit_checkpoint, "cpu", "float32", DenoiseSettings(pixels=128 * 128)
    )
    await denoise_runner.load()
    yield denoise_runner
    await denoise_runner.close()


def draw_array(seed: int, *shape: int) -> np.ndarray:
    """Return random read-only numbers, like an arena's."""
    array = np.random.default_rng(seed).standard_normal(shape, np.float32)
    array.setflags(write=False)
    return array


def make_job(image: np.ndarray | None, **more: Any) -> MemoryJob:
    embeds, mask = draw_array(1, 2, TOKENS, WIDTH), np.ones((2, TOKENS), bool)
    image_inputs = {} if image is None else {"image": Item({}, image)}
    return MemoryJob(
        {
            "width": 0,
            "height": 0,
            "steps": 4,
            **more,
            "embeds": Item({}, embeds),
            "mask": Item({}, mask),
            **image_inputs,
        }
    )


def denoise_alone(denoiser: Denoiser, picture: ImageSpec, image: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        one = denoiser.open(
            picture, [torch.tensor(row) for row in draw_array(1, 2, TOKENS, WIDTH)], torch.tensor(image)
        )
        while one.done < one.steps:
            denoiser.step([one])
        return denoiser.latents(one).numpy()


@pytest.mark.numeric
async def test_a_picture_is_as_large_as_the_one_it_is_made_of(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    image = draw_array(2, 4, 1, 6, 8)

    one = await finish_job(runner, make_job(image, seed=3))

    assert one.array("latents").shape == (4, 1, 6, 8)
    assert_close(one.array("latents"), denoise_alone(denoiser, ImageSpec(64, 48, 4, 3), image), DENOISED_BOUND)
    assert {"embeds", "image", "mask"} <= {*one.read}


@pytest.mark.numeric
async def test_a_picture_may_have_a_size_of_its_own(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    image = draw_array(2, 4, 1, 6, 8)

    one = await finish_job(runner, make_job(image, seed=3, width=32, height=96))

    assert_close(one.array("latents"), denoise_alone(denoiser, ImageSpec(32, 96, 4, 3), image), DENOISED_BOUND)


@pytest.mark.numeric
async def test_pictures_of_many_pictures_share_steps_and_are_each_their_own(
    runner: DenoiseRunner, denoiser: Denoiser
) -> None:
    images = [draw_array(seed, 4, 1, 8, 8 if seed < 5 else 4) for seed in range(2, 7)]
    jobs = [make_job(image, seed=place, steps=3 + place, width=64, height=64) for place, image in enumerate(images)]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for place, (image, one) in enumerate(zip(images, jobs, strict=True)):
        reference = denoise_alone(denoiser, ImageSpec(64, 64, 3 + place, place), image)
        assert_close(one.array("latents"), reference, DENOISED_BOUND)
    assert max(map(int, runner.stats()["batches"])) == 3


async def test_there_is_nothing_to_edit_without_a_picture(runner: DenoiseRunner) -> None:
    with pytest.raises(BadRequest, match="edits images"):
        await finish_job(runner, make_job(None, width=64, height=64))


async def test_a_picture_of_too_many_pixels_is_not_edited(runner: DenoiseRunner) -> None:
    with pytest.raises(TooLarge, match="16384") as caught:
        await finish_job(runner, make_job(draw_array(2, 4, 1, 32, 32), width=64, height=64))

    assert caught.value.param == "image"


@pytest.mark.parametrize("image", [Item({}, None), Item({}, np.zeros((4, 8, 8), np.float32)), [1]])
async def test_what_are_no_latents_is_not_edited(runner: DenoiseRunner, image: Any) -> None:
    one = make_job(None, width=64, height=64)
    one._inputs["image"] = image

    with pytest.raises(BadRequest, match="image must be latents"):
        await finish_job(runner, one)
