"""Engines of images made token by token: each as if alone, with progress and cancellation."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, StageUnavailable, TooLarge
from omnibus.executor.runner import Item
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings, PriorRunner
from omnibus_models import tiny
from omnibus_models.contract import ImageSpec
from omnibus_models.families import load_family
from tests.unit.jobs import MemoryJob, finish_job

WIDTH = 64
TOKENS = 16


@pytest.fixture(scope="module")
def janus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("janus", tmp_path_factory.mktemp("models") / "janus")


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("glm_image", tmp_path_factory.mktemp("models") / "glm")


@pytest.fixture
async def janus_runner(janus: Path) -> AsyncIterator[DenoiseRunner]:
    denoise_runner = DenoiseRunner("dit", "janus", janus, "cpu", "float32", DenoiseSettings())
    await denoise_runner.load()
    yield denoise_runner
    await denoise_runner.close()


@pytest.fixture
async def prior_runner(glm: Path) -> AsyncIterator[PriorRunner]:
    runner = PriorRunner("prior", "glm_image", glm, "cpu", "float32", DenoiseSettings(pixels=256 * 256))
    await runner.load()
    yield runner
    await runner.close()


@pytest.fixture
async def glm_runner(glm: Path) -> AsyncIterator[DenoiseRunner]:
    denoise_runner = DenoiseRunner("dit", "glm_image", glm, "cpu", "float32", DenoiseSettings())
    await denoise_runner.load()
    yield denoise_runner
    await denoise_runner.close()


def make_guides(length: int) -> np.ndarray:
    """Return embeddings of a prompt and its twin."""
    embeds: np.ndarray = np.random.default_rng(length).standard_normal((2, length, WIDTH), np.float32)
    return embeds


def make_job(*wants: str, length: int = 9, invocation: int = 7, **more: Any) -> MemoryJob:
    embeds = make_guides(length)
    inputs = {"width": 64, "height": 64, "steps": 20, "embeds": Item({}, embeds)}
    mask = Item({}, np.ones(embeds.shape[:2], bool))
    return MemoryJob({**inputs, "mask": mask, **more}, wants=wants, seed=invocation)


def draw_alone(checkpoint: Path, length: int, seed: int, guidance: float | None = None) -> list[int]:
    model: Any = load_family("janus").load("dit", checkpoint)
    with torch.inference_mode():
        one = model.open(ImageSpec(64, 64, 20, seed, guidance), [torch.from_numpy(row) for row in make_guides(length)])
        while one.done < one.steps:
            model.step([one])
    tokens: list[int] = one.chosen
    return tokens


async def test_many_pictures_at_once_are_as_if_each_were_alone(janus_runner: DenoiseRunner, janus: Path) -> None:
    wishes = [(9, 1, 3.0), (5, 2, None), (14, 3, 1.0), (9, 4, 6.0), (7, 5, None)]
    jobs = [make_job(length=length, seed=seed, guidance=guidance) for length, seed, guidance in wishes]

    await asyncio.gather(*(finish_job(janus_runner, one) for one in jobs))

    for wish, one in zip(wishes, jobs, strict=True):
        assert one.array("latents").shape == (1, 1, 4, 4)
        assert one.array("latents").flatten().tolist() == draw_alone(janus, *wish)
    assert max(map(int, janus_runner.stats()["batches"])) > 1
    assert janus_runner.stats()["used"] == 0


async def test_each_token_is_told_however_many_steps_were_asked_for(janus_runner: DenoiseRunner) -> None:
    one = await finish_job(janus_runner, make_job("progress", steps=3))

    events = [item.data for item in one.outputs["progress"].items]
    assert events == [{"step": step, "steps": TOKENS} for step in range(1, TOKENS + 1)]


async def test_previews_show_what_is_there(janus_runner: DenoiseRunner) -> None:
    one = await finish_job(janus_runner, make_job("preview", every=5))

    items = one.outputs["preview"].items
    assert [item.data["step"] for item in items] == [5, 10, 15]
    assert [int((item.array != 127).any(-1).sum()) for item in items] == [5, 10, 15]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 128}, "64x64"),
        ({"height": 32}, "64x64"),
        ({"frames": 2}, "not videos"),
        ({"embeds": Item({}, np.zeros((2, 9, 8), np.float32))}, "embeddings"),
        ({"image": Item({}, np.zeros((1, 1, 4, 4), np.float32))}, "from text alone"),
        ({"prior": Item({}, np.zeros((1, 1, 4, 4), np.float32))}, "follows no prior"),
    ],
)
async def test_wrong_inputs_are_refused(janus_runner: DenoiseRunner, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await finish_job(janus_runner, make_job(**changes))


# Priors


def make_prior_job(*wants: str, invocation: int = 7, **more: Any) -> MemoryJob:
    return MemoryJob({"prompt": "a red square", "width": 64, "height": 64, **more}, wants=wants, seed=invocation)


def draw_prior(checkpoint: Path, prompt: str, picture: ImageSpec) -> np.ndarray:
    model: Any = load_family("glm_image").load("prior", checkpoint)
    with torch.inference_mode():
        one = model.open(picture, prompt)
        while one.done < one.steps:
            model.step([one])
        prior_latents: np.ndarray = model.latents(one).numpy()
    return prior_latents


async def test_priors_of_many_requests_are_each_their_own(prior_runner: PriorRunner, glm: Path) -> None:
    wishes = [("a red square", ImageSpec(64, 64, 1, 1)), ("a green hill", ImageSpec(96, 64, 1, 2))]
    jobs = [
        make_prior_job("progress", prompt=prompt, width=picture.width, height=picture.height, seed=picture.seed)
        for prompt, picture in wishes
    ]

    await asyncio.gather(*(finish_job(prior_runner, one) for one in jobs))

    for (prompt, picture), one in zip(wishes, jobs, strict=True):
        np.testing.assert_array_equal(one.array("tokens"), draw_prior(glm, prompt, picture))
        steps = len(one.outputs["progress"].items)
        assert one.outputs["progress"].items[-1].data == {"step": steps, "steps": steps}
    assert max(map(int, prior_runner.stats()["batches"])) == 2
    assert prior_runner.stats()["used"] == 0


async def test_without_a_seed_a_prior_is_the_invocations(prior_runner: PriorRunner, glm: Path) -> None:
    one = await finish_job(prior_runner, make_prior_job(invocation=11))

    np.testing.assert_array_equal(one.array("tokens"), draw_prior(glm, "a red square", ImageSpec(64, 64, 1, 11)))


async def test_a_cancelled_prior_draws_no_further_token(prior_runner: PriorRunner) -> None:
    one = make_prior_job("progress")
    running = asyncio.create_task(finish_job(prior_runner, one))
    await one.outputs["progress"].until(2)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert prior_runner.stats()["used"] == 0
    assert not one.outputs["tokens"].items


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"prompt": 3}, BadRequest, "prompt"),
        ({"prompt": "a <sop> b"}, BadRequest, "<sop>"),
        ({"width": 48}, BadRequest, "multiple of 32"),
        ({"height": -1}, BadRequest, "height"),
        ({"seed": -1}, BadRequest, "seed"),
        ({"colour": "red"}, BadRequest, "colour"),
        ({"width": 512, "height": 512}, TooLarge, "65536"),
        ({"width": 0, "height": 0}, TooLarge, "1048576 pixels are over"),  # as it usually makes them
    ],
)
async def test_wrong_wishes_are_refused(
    prior_runner: PriorRunner, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await finish_job(prior_runner, make_prior_job(**changes))


async def test_priors_in_the_making_are_told_when_the_executor_is_closed(glm: Path) -> None:
    runner = PriorRunner("prior", "glm_image", glm, "cpu", "float32", DenoiseSettings())
    await runner.load()
    one = make_prior_job("progress")
    running = asyncio.create_task(finish_job(runner, one))
    await one.outputs["progress"].until(2)

    await runner.close()

    with pytest.raises(StageUnavailable, match="closed"):
        await running


async def test_a_denoiser_follows_its_prior(glm_runner: DenoiseRunner) -> None:
    embeds, mask = np.zeros((2, 3, 32), np.float32), np.ones((2, 3), bool)
    about = {"width": 64, "height": 64, "steps": 2, "embeds": Item({}, embeds), "mask": Item({}, mask)}

    jobs = [
        await finish_job(glm_runner, MemoryJob({**about, "prior": Item({}, np.full((1, 1, 2, 2), token, np.float32))}))
        for token in (1, 2)
    ]

    assert not np.allclose(jobs[0].array("latents"), jobs[1].array("latents"), atol=1e-2)
    assert sorted(jobs[0].read) == ["embeds", "mask", "prior"]
    for prior in (None, Item({}, None), Item({}, np.zeros((1, 1, 3, 2), np.float32))):
        with pytest.raises(BadRequest, match="prior"):
            await finish_job(glm_runner, MemoryJob({**about, "prior": prior}))
