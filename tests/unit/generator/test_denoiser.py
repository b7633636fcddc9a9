"""The denoiser makes images as if alone, with progress and cancellation."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, StageUnavailable, TooLarge
from omnibus.executor.runner import Item
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings
from omnibus_models.contract import Denoiser, ImageSpec
from omnibus_models.families import load_family
from tests.close import DENOISED_BOUND, assert_close
from tests.unit.jobs import MemoryJob, finish_job

WIDTH = 64
LENGTHS = (9, 5)  # of the prompt and of the negative prompt


@pytest.fixture(scope="module")
def denoiser(image_checkpoint: Path) -> Denoiser:
    return load_family("qwen_image").load("dit", image_checkpoint)


@pytest.fixture
async def runner(image_checkpoint: Path) -> AsyncIterator[DenoiseRunner]:
    denoise_runner = DenoiseRunner(
        "dit", "qwen_image", image_checkpoint, "cpu", "float32", DenoiseSettings(pixels=256 * 256)
    )
    await denoise_runner.load()
    yield denoise_runner
    await denoise_runner.close()


def make_guides(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings of two prompts, and their mask; masked values are NaN."""
    embeds = np.random.default_rng(seed).standard_normal((2, max(LENGTHS), WIDTH), np.float32)
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    embeds[~mask] = np.nan
    return embeds, mask


def make_job(*wants: str, invocation: int = 7, prompt: int = 0, **more: Any) -> MemoryJob:
    embeds, mask = make_guides(prompt)
    inputs = {"width": 64, "height": 64, "steps": 4, **more, "embeds": Item({}, embeds), "mask": Item({}, mask)}
    return MemoryJob({**inputs, **more}, wants=wants, seed=invocation)


def denoise_alone(denoiser: Denoiser, picture: ImageSpec, prompt: int = 0) -> np.ndarray:
    embeds, mask = make_guides(prompt)
    with torch.inference_mode():
        one = denoiser.open(picture, [torch.from_numpy(row[good]) for row, good in zip(embeds, mask, strict=True)])
        while one.done < one.steps:
            denoiser.step([one])
        return denoiser.latents(one).numpy()


@pytest.mark.numeric
async def test_a_picture_is_what_its_inputs_say(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    one = await finish_job(runner, make_job(width=96, height=48, steps=5, guidance=2.5, seed=3))

    reference = denoise_alone(denoiser, ImageSpec(96, 48, 5, 3, 2.5))
    assert_close(one.array("latents"), reference, DENOISED_BOUND)
    assert one.array("latents").shape == (4, 1, 6, 12)
    assert {"embeds", "mask"} <= {*one.read}


@pytest.mark.numeric
async def test_without_a_seed_it_is_the_invocations(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    one, other = [await finish_job(runner, make_job(invocation=seed)) for seed in (11, 12)]

    assert_close(one.array("latents"), denoise_alone(denoiser, ImageSpec(64, 64, 4, 11)), DENOISED_BOUND)
    assert not np.allclose(one.array("latents"), other.array("latents"), atol=1e-2)


@pytest.mark.numeric
async def test_one_prompt_alone_guides_without_a_negative_one(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    one = make_job()
    for name in ("embeds", "mask"):
        one._inputs[name] = Item({}, one._inputs[name].array[:1])

    await finish_job(runner, one)

    assert_close(one.array("latents"), denoise_alone(denoiser, ImageSpec(64, 64, 4, 7, 1.0)), DENOISED_BOUND)


@pytest.mark.numeric
async def test_many_pictures_at_once_are_as_if_each_were_alone(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    wishes = [
        (ImageSpec(64, 64, 9, 1, 3.0), 0), (ImageSpec(64, 64, 3, 2, None), 1), (ImageSpec(96, 48, 5, 3, 1.0), 2),
        (ImageSpec(64, 64, 6, 4, 6.0), 3), (ImageSpec(96, 48, 8, 5, 4.0), 0), (ImageSpec(64, 64, 2, 6, 1.0), 1),
    ]  # fmt: skip
    jobs = [
        make_job(
            width=wish.width,
            height=wish.height,
            steps=wish.steps,
            guidance=wish.guidance,
            seed=wish.seed,
            prompt=prompt,
        )
        for wish, prompt in wishes
    ]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for (wish, prompt), one in zip(wishes, jobs, strict=True):
        assert_close(one.array("latents"), denoise_alone(denoiser, wish, prompt), DENOISED_BOUND)
    assert max(map(int, runner.stats()["batches"])) > 1
    assert runner.stats()["used"] == 0


@pytest.mark.numeric
async def test_a_picture_that_comes_later_joins_the_steps_of_others(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    long = make_job("progress", steps=400)
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["progress"].until(3)

    one = await finish_job(runner, make_job(steps=5))

    assert not long.outputs["latents"].closed
    assert runner.stats()["batches"]["2"] == 5
    assert_close(one.array("latents"), denoise_alone(denoiser, ImageSpec(64, 64, 5, 7)), DENOISED_BOUND)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_each_step_is_told(runner: DenoiseRunner) -> None:
    one = await finish_job(runner, make_job("progress", steps=3))

    assert [item.data for item in one.outputs["progress"].items] == [{"step": n, "steps": 3} for n in (1, 2, 3)]
    assert one.outputs["progress"].closed


@pytest.mark.numeric
async def test_previews_are_made_for_who_wants_them_and_of_some_steps(runner: DenoiseRunner) -> None:
    preview_job, blind = await asyncio.gather(
        finish_job(runner, make_job("preview", steps=7, every=2)), finish_job(runner, make_job(steps=7))
    )

    items = preview_job.outputs["preview"].items
    assert [item.data["step"] for item in items] == [2, 4, 6]
    assert {(item.array.shape, item.array.dtype.name) for item in items} == {((8, 8, 3), "uint8")}
    assert len({item.array.tobytes() for item in items}) == 3
    assert preview_job.outputs["preview"].closed
    assert blind.outputs["preview"].items == []
    np.testing.assert_array_equal(preview_job.array("latents"), blind.array("latents"))


async def test_a_preview_is_not_made_of_the_last_step(runner: DenoiseRunner) -> None:
    one = await finish_job(runner, make_job("preview", steps=4, every=4))

    assert one.outputs["preview"].items == []


def steps_taken(runner: DenoiseRunner) -> int:
    return sum(runner.stats()["batches"].values())


async def test_a_cancelled_picture_takes_no_further_step(runner: DenoiseRunner) -> None:
    one = make_job("progress", steps=400)
    running = asyncio.create_task(finish_job(runner, one))
    await one.outputs["progress"].until(2)

    step_count = steps_taken(runner)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert runner.stats()["used"] == 0

    # One step may have been under way, and this one's two are the only others.
    await finish_job(runner, make_job(steps=2))
    assert steps_taken(runner) <= step_count + 1 + 2
    assert not one.outputs["latents"].items


@pytest.mark.numeric
async def test_a_picture_that_cannot_step_fails_alone(
    runner: DenoiseRunner, denoiser: Denoiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good, begin = make_job(seed=99), make_job(), runner.model.open

    def open_broken(picture: ImageSpec, *given: Any) -> Any:
        one = begin(picture, *given)
        if picture.seed == 99:
            one.guides = (torch.zeros(3, 5),)
        return one

    monkeypatch.setattr(runner.model, "open", open_broken)

    failure, result = await asyncio.gather(finish_job(runner, bad), finish_job(runner, good), return_exceptions=True)

    assert isinstance(failure, RuntimeError)
    assert_close(result.array("latents"), denoise_alone(denoiser, ImageSpec(64, 64, 4, 7)), DENOISED_BOUND)
    assert runner.stats()["used"] == 0


@pytest.mark.numeric
async def test_a_preview_that_cannot_be_made_fails_its_picture_alone(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    runner._colours = asyncio.get_running_loop().create_future()
    runner._colours.set_result(torch.zeros(2, 3))

    failure, result = await asyncio.gather(
        finish_job(runner, make_job("preview")), finish_job(runner, make_job()), return_exceptions=True
    )

    assert isinstance(failure, RuntimeError)
    assert_close(result.array("latents"), denoise_alone(denoiser, ImageSpec(64, 64, 4, 7)), DENOISED_BOUND)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 60}, "multiple of 16"),
        ({"height": -16}, "height"),
        ({"steps": 1}, "steps must be 2 to 1000"),
        ({"steps": "many"}, "steps"),
        ({"frames": 9}, "not videos"),
        ({"guidance": 1e9}, "guidance"),
        ({"seed": -1}, "seed"),
        ({"colour": "red"}, "colour"),
        ({"embeds": Item({}, None)}, "embeds must be"),
        ({"embeds": Item({}, np.zeros((9, WIDTH), np.float32))}, "embeds must be"),
        ({"embeds": Item({}, np.zeros((2, max(LENGTHS), WIDTH + 1), np.float32))}, "tokens, 64"),
        ({"mask": Item({}, np.ones((2, 4), bool))}, "embeds must be"),
        ({"mask": Item({}, np.zeros((2, max(LENGTHS)), bool))}, "tokens, 64"),
        ({"width": 20}, "width must be a multiple of 16"),
        ({"image": Item({}, np.zeros((4, 1, 8, 8), np.float32))}, "from text alone"),
    ],
)
async def test_wrong_inputs_are_refused(runner: DenoiseRunner, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await finish_job(runner, make_job(**changes))


async def test_a_picture_of_too_many_pixels_is_refused(runner: DenoiseRunner) -> None:
    with pytest.raises(TooLarge, match="65536"):
        await finish_job(runner, make_job(width=512, height=512))
    # Of this model's usual size.
    with pytest.raises(TooLarge, match="1048576 pixels are over the limit of 65536"):
        await finish_job(runner, make_job(width=0, height=0))


async def test_sound_is_refused(runner: DenoiseRunner) -> None:
    with pytest.raises(BadRequest, match="does not generate audio"):
        await finish_job(runner, make_job("sound"))


async def test_pictures_in_the_making_are_told_when_the_denoiser_is_closed(image_checkpoint: Path) -> None:
    denoise_runner = DenoiseRunner("dit", "qwen_image", image_checkpoint, "cpu", "float32", DenoiseSettings())
    await denoise_runner.load()
    one = make_job("progress", steps=400)
    running = asyncio.create_task(finish_job(denoise_runner, one))
    await one.outputs["progress"].until(2)

    await denoise_runner.close()

    with pytest.raises(StageUnavailable, match="closed"):
        await running


@pytest.mark.numeric
@pytest.mark.parametrize("checkpoint_count", [1, 7, 9])
async def test_a_picture_goes_on_from_the_last_checkpoint(runner: DenoiseRunner, checkpoint_count: int) -> None:
    output_names = ("checkpoint", "progress", "preview")
    whole = await finish_job(runner, make_job(*output_names, steps=20, every=4))
    checkpoints = whole.outputs["checkpoint"].items[:checkpoint_count]
    preview_count = min(4, (checkpoints[-1].data["step"] + 2) // 4)  # the client has those before it, maybe one more
    had = sum(len(item.array) for item in whole.outputs["preview"].items[:preview_count] if item.array is not None)
    before = sum(size * count for size, count in runner._studio.sizes.items())

    again = make_job(*output_names, steps=20, every=4)
    again._resumes = {"checkpoint": {"item": checkpoints[-1]}, "preview": {"rows": had}}
    answer = await finish_job(runner, again)

    assert [item.data["step"] for item in whole.outputs["checkpoint"].items] == list(range(2, 20, 2))
    np.testing.assert_array_equal(answer.array("latents"), whole.array("latents"))
    assert answer.outputs["progress"].items == whole.outputs["progress"].items
    first = answer.outputs["preview"].items[0]
    assert first.array is not None
    rest = whole.whole("preview")[first.data["resumed_at"] :]
    np.testing.assert_array_equal(answer.whole("preview").reshape(rest.shape), rest)
    step_count = sum(size * count for size, count in runner._studio.sizes.items()) - before
    assert step_count == 20 - checkpoints[-1].data["step"]


async def test_nobody_pays_for_checkpoints_that_are_not_retained(runner: DenoiseRunner) -> None:
    one = await finish_job(runner, make_job("progress"))

    assert "checkpoint" not in one.outputs
