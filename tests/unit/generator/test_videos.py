"""Videos and their audio: made by one denoiser, decoded separately, sent in pieces."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, TooLarge
from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus_engines import registry as engines
from omnibus_generator import vae_decoder
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings
from omnibus_generator.vae_decoder import DecodeAudioRunner, DecodeImageRunner, DecodeVideoRunner, LatentDecodeSettings
from omnibus_models.contract import Denoiser, ImageSpec
from omnibus_models.families import load_family
from tests.close import DENOISED_BOUND, assert_close
from tests.unit.jobs import MemoryJob, finish_job

TOKENS, WIDTH = 9, 64


@pytest.fixture(scope="module")
def denoiser(ltx2: Path) -> Denoiser:
    return load_family("ltx2").load("dit", ltx2)


@pytest.fixture
async def runner(ltx2: Path) -> AsyncIterator[DenoiseRunner]:
    denoise_runner = DenoiseRunner(
        "dit", "ltx2", ltx2, "cpu", "float32", DenoiseSettings(pixels=64 * 64, film=64 * 64 * 20)
    )
    await denoise_runner.load()
    yield denoise_runner
    await denoise_runner.close()


def draw_array(seed: int, *shape: int) -> np.ndarray:
    """Return random read-only numbers, like an arena's."""
    array = np.random.default_rng(seed).standard_normal(shape, np.float32)
    array.setflags(write=False)
    return array


def make_job(*wants: str, **more: Any) -> MemoryJob:
    embeds, mask = draw_array(1, 2, TOKENS, WIDTH), np.ones((2, TOKENS), bool)
    guides = {"embeds": Item({}, embeds), "mask": Item({}, mask)}
    return MemoryJob({"width": 64, "height": 32, "frames": 9, "steps": 3, **more, **guides}, wants=wants)


def denoise_alone(denoiser: Denoiser, picture: ImageSpec) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode():
        one = denoiser.open(picture, [torch.tensor(row) for row in draw_array(1, 2, TOKENS, WIDTH)])
        while one.done < one.steps:
            denoiser.step([one])
        return denoiser.latents(one).numpy(), denoiser.audio_latents(one).numpy()


@pytest.mark.numeric
async def test_film_and_sound_are_made_together(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    one = await finish_job(runner, make_job("sound", seed=3, fps=12.0))

    film, sound = denoise_alone(denoiser, ImageSpec(64, 32, 3, 3, frames=9, fps=12.0))
    assert_close(one.array("latents"), film, DENOISED_BOUND)
    assert_close(one.array("sound"), sound, DENOISED_BOUND)
    assert (film.shape, sound.shape) == ((8, 2, 4, 8), (2, 19, 4))


@pytest.mark.numeric
async def test_films_of_many_requests_are_each_their_own(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    jobs = [make_job("sound", seed=seed, steps=2 + seed, guidance=1.0 if seed == 1 else 4.0) for seed in range(4)]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for seed, one in enumerate(jobs):
        film, sound = denoise_alone(denoiser, ImageSpec(64, 32, 2 + seed, seed, 1.0 if seed == 1 else 4.0, 9))
        assert_close(one.array("latents"), film, DENOISED_BOUND)
        assert_close(one.array("sound"), sound, DENOISED_BOUND)


@pytest.mark.numeric
async def test_a_film_is_the_same_whoever_is_there(runner: DenoiseRunner) -> None:
    """The computations are the same, so the results are bit-identical."""
    lone = await finish_job(runner, make_job("sound", seed=5, steps=6))

    long = [make_job("progress", steps=60, seed=seed) for seed in range(3)]
    running = [asyncio.create_task(finish_job(runner, one)) for one in (*long, make_job(steps=60, frames=1))]
    await long[-1].outputs["progress"].until(1)
    several = [make_job("sound", seed=5, steps=6) for _ in range(3)]
    await asyncio.gather(*(finish_job(runner, one) for one in several))

    for one in several:
        assert np.array_equal(one.array("latents"), lone.array("latents"))
        assert np.array_equal(one.array("sound"), lone.array("sound"))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.numeric
async def test_a_film_that_comes_later_takes_turns_with_others(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    long = make_job("progress", steps=400)
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["progress"].until(2)

    one = await finish_job(runner, make_job("sound", seed=5))

    assert not long.outputs["latents"].closed
    assert set(runner.stats()["batches"]) == {"1"}
    assert_close(one.array("sound"), denoise_alone(denoiser, ImageSpec(64, 32, 3, 5, frames=9))[1], DENOISED_BOUND)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_sound_that_nobody_wants_is_not_sent(runner: DenoiseRunner) -> None:
    one = await finish_job(runner, make_job())

    assert one.outputs["sound"].items == []


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"frames": 8}, BadRequest, "one more than a multiple of 8"),
        ({"frames": 10**9 + 1}, TooLarge, "in all its frames"),
        ({"width": 160}, TooLarge, "4096"),
        ({"fps": -1.0}, BadRequest, "fps"),
        ({"fps": "fast"}, BadRequest, "fps"),
        ({"image": Item({}, np.zeros((8, 1, 4, 4), np.float32))}, BadRequest, "the latents of the first frame"),
    ],
)
async def test_films_that_cannot_be_made_are_refused(
    runner: DenoiseRunner, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await finish_job(runner, make_job(**changes))


# Decoders


@pytest.fixture
async def video_decoder(ltx2: Path) -> AsyncIterator[DecodeVideoRunner]:
    decode_runner = DecodeVideoRunner("vae", "ltx2", ltx2, "cpu", "float32", LatentDecodeSettings())
    await decode_runner.load()
    yield decode_runner
    await decode_runner.close()


@pytest.fixture
async def audio_decoder(ltx2: Path) -> AsyncIterator[DecodeAudioRunner]:
    decode_runner = DecodeAudioRunner("audio_vae", "ltx2", ltx2, "cpu", "float32", LatentDecodeSettings())
    await decode_runner.load()
    yield decode_runner
    await decode_runner.close()


@pytest.mark.numeric
async def test_frames_come_in_order_a_few_at_a_time(
    video_decoder: DecodeVideoRunner, ltx2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vae_decoder, "_MAX_BATCH_BYTES", 2 * 32 * 48 * 3 + 1)
    decoder: Any = load_family("ltx2").load("vae", ltx2)
    inputs = [draw_array(seed, 8, 2, 4, 6) for seed in range(3)]
    jobs = [MemoryJob({"latents": Item({}, each)}) for each in inputs]

    await asyncio.gather(*(finish_job(video_decoder, one) for one in jobs))

    for each, one in zip(inputs, jobs, strict=True):
        assert [len(item.array) for item in one.outputs["frames"].items] == [2, 2, 2, 2, 1]
        assert one.outputs["frames"].closed
        np.testing.assert_array_equal(one.whole("frames"), decoder.decode(torch.tensor(each)).numpy())
        assert one.read == ["latents"]
    assert video_decoder.stats()["pictures"] == 3


@pytest.mark.numeric
async def test_sound_comes_a_second_at_a_time(audio_decoder: DecodeAudioRunner, ltx2: Path) -> None:
    decoder: Any = load_family("ltx2").load("audio_vae", ltx2)
    latents = draw_array(1, 2, 60, 4)

    one = await finish_job(audio_decoder, MemoryJob({"latents": Item({}, latents)}))

    *chunks, end = one.outputs["audio"].items
    assert [(item.data, len(item.array)) for item in chunks] == [({"rate": 8000}, n) for n in (8000, 8000, 2960)]
    assert end.data == {"samples": 18960}
    np.testing.assert_allclose(one.whole("audio"), decoder.decode(torch.tensor(latents)).numpy(), atol=1e-6)
    assert one.whole("audio").shape == (18960, 2)


@pytest.mark.parametrize("bad_latents", [Item({}, None), None, Item({}, np.zeros((16, 1, 8, 8), np.float32))])
async def test_what_are_no_latents_is_refused(
    video_decoder: DecodeVideoRunner, audio_decoder: DecodeAudioRunner, bad_latents: Any
) -> None:
    for one in (video_decoder, audio_decoder):
        with pytest.raises(BadRequest, match="latents"):
            await finish_job(one, MemoryJob({"latents": bad_latents}))
        assert one.stats()["used"] == 0


def test_a_decoder_makes_what_its_family_makes(ltx2: Path, image_checkpoint: Path) -> None:
    def load_runner_type(name: str, checkpoint: Path) -> type:
        return type(engines.transformers("vae", ExecutorSettings(family=name, checkpoint=str(checkpoint))))

    assert (load_runner_type("ltx2", ltx2), load_runner_type("qwen_image", image_checkpoint)) == (
        DecodeVideoRunner,
        DecodeImageRunner,
    )
