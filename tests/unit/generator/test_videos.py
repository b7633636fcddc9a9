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
from tests.unit.jobs import MemoryJob, run

TOKENS, WIDTH = 9, 64


@pytest.fixture(scope="module")
def denoiser(ltx2: Path) -> Denoiser:
    return load_family("ltx2").load("dit", ltx2)


@pytest.fixture
async def runner(ltx2: Path) -> AsyncIterator[DenoiseRunner]:
    made = DenoiseRunner("dit", "ltx2", ltx2, "cpu", "float32", DenoiseSettings(pixels=64 * 64, film=64 * 64 * 20))
    await made.load()
    yield made
    await made.close()


def drawn(seed: int, *shape: int) -> np.ndarray:
    """Return random read-only numbers, like an arena's."""
    made = np.random.default_rng(seed).standard_normal(shape, np.float32)
    made.setflags(write=False)
    return made


def job(*wants: str, **more: Any) -> MemoryJob:
    embeds, mask = drawn(1, 2, TOKENS, WIDTH), np.ones((2, TOKENS), bool)
    given = {"embeds": Item({}, embeds), "mask": Item({}, mask)}
    return MemoryJob({"width": 64, "height": 32, "frames": 9, "steps": 3, **more, **given}, wants=wants)


def alone(denoiser: Denoiser, picture: ImageSpec) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode():
        one = denoiser.open(picture, [torch.tensor(row) for row in drawn(1, 2, TOKENS, WIDTH)])
        while one.done < one.steps:
            denoiser.step([one])
        return denoiser.latents(one).numpy(), denoiser.audio_latents(one).numpy()


@pytest.mark.numeric
async def test_film_and_sound_are_made_together(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    one = await run(runner, job("sound", seed=3, fps=12.0))

    film, sound = alone(denoiser, ImageSpec(64, 32, 3, 3, frames=9, fps=12.0))
    assert_close(one.array("latents"), film, DENOISED_BOUND)
    assert_close(one.array("sound"), sound, DENOISED_BOUND)
    assert (film.shape, sound.shape) == ((8, 2, 4, 8), (2, 19, 4))


@pytest.mark.numeric
async def test_films_of_many_requests_are_each_their_own(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    jobs = [job("sound", seed=seed, steps=2 + seed, guidance=1.0 if seed == 1 else 4.0) for seed in range(4)]

    await asyncio.gather(*(run(runner, one) for one in jobs))

    for seed, one in enumerate(jobs):
        film, sound = alone(denoiser, ImageSpec(64, 32, 2 + seed, seed, 1.0 if seed == 1 else 4.0, 9))
        assert_close(one.array("latents"), film, DENOISED_BOUND)
        assert_close(one.array("sound"), sound, DENOISED_BOUND)


@pytest.mark.numeric
async def test_a_film_is_the_same_whoever_is_there(runner: DenoiseRunner) -> None:
    """The computations are the same, so the results are bit-identical."""
    lone = await run(runner, job("sound", seed=5, steps=6))

    long = [job("progress", steps=60, seed=seed) for seed in range(3)]
    running = [asyncio.create_task(run(runner, one)) for one in (*long, job(steps=60, frames=1))]
    await long[-1].outputs["progress"].until(1)
    several = [job("sound", seed=5, steps=6) for _ in range(3)]
    await asyncio.gather(*(run(runner, one) for one in several))

    for one in several:
        assert np.array_equal(one.array("latents"), lone.array("latents"))
        assert np.array_equal(one.array("sound"), lone.array("sound"))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.numeric
async def test_a_film_that_comes_later_takes_turns_with_others(runner: DenoiseRunner, denoiser: Denoiser) -> None:
    long = job("progress", steps=400)
    running = asyncio.create_task(run(runner, long))
    await long.outputs["progress"].until(2)

    one = await run(runner, job("sound", seed=5))

    assert not long.outputs["latents"].closed
    assert set(runner.stats()["batches"]) == {"1"}
    assert_close(one.array("sound"), alone(denoiser, ImageSpec(64, 32, 3, 5, frames=9))[1], DENOISED_BOUND)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_sound_that_nobody_wants_is_not_sent(runner: DenoiseRunner) -> None:
    one = await run(runner, job())

    assert one.outputs["sound"].items == []


@pytest.mark.parametrize(
    ("changed", "error", "message"),
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
    runner: DenoiseRunner, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await run(runner, job(**changed))


# Decoders


@pytest.fixture
async def screen(ltx2: Path) -> AsyncIterator[DecodeVideoRunner]:
    made = DecodeVideoRunner("vae", "ltx2", ltx2, "cpu", "float32", LatentDecodeSettings())
    await made.load()
    yield made
    await made.close()


@pytest.fixture
async def speaker(ltx2: Path) -> AsyncIterator[DecodeAudioRunner]:
    made = DecodeAudioRunner("audio_vae", "ltx2", ltx2, "cpu", "float32", LatentDecodeSettings())
    await made.load()
    yield made
    await made.close()


@pytest.mark.numeric
async def test_frames_come_in_order_a_few_at_a_time(
    screen: DecodeVideoRunner, ltx2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vae_decoder, "_MAX_BATCH_BYTES", 2 * 32 * 48 * 3 + 1)
    decoder: Any = load_family("ltx2").load("vae", ltx2)
    given = [drawn(seed, 8, 2, 4, 6) for seed in range(3)]
    jobs = [MemoryJob({"latents": Item({}, each)}) for each in given]

    await asyncio.gather(*(run(screen, one) for one in jobs))

    for each, one in zip(given, jobs, strict=True):
        assert [len(item.array) for item in one.outputs["frames"].items] == [2, 2, 2, 2, 1]
        assert one.outputs["frames"].closed
        np.testing.assert_array_equal(one.whole("frames"), decoder.decode(torch.tensor(each)).numpy())
        assert one.read == ["latents"]
    assert screen.stats()["pictures"] == 3


@pytest.mark.numeric
async def test_sound_comes_a_second_at_a_time(speaker: DecodeAudioRunner, ltx2: Path) -> None:
    decoder: Any = load_family("ltx2").load("audio_vae", ltx2)
    given = drawn(1, 2, 60, 4)

    one = await run(speaker, MemoryJob({"latents": Item({}, given)}))

    *heard, end = one.outputs["audio"].items
    assert [(item.data, len(item.array)) for item in heard] == [({"rate": 8000}, n) for n in (8000, 8000, 2960)]
    assert end.data == {"samples": 18960}
    np.testing.assert_allclose(one.whole("audio"), decoder.decode(torch.tensor(given)).numpy(), atol=1e-6)
    assert one.whole("audio").shape == (18960, 2)


@pytest.mark.parametrize("given", [Item({}, None), None, Item({}, np.zeros((16, 1, 8, 8), np.float32))])
async def test_what_are_no_latents_is_refused(
    screen: DecodeVideoRunner, speaker: DecodeAudioRunner, given: Any
) -> None:
    for one in (screen, speaker):
        with pytest.raises(BadRequest, match="latents"):
            await run(one, MemoryJob({"latents": given}))
        assert one.stats()["used"] == 0


def test_a_decoder_makes_what_its_family_makes(ltx2: Path, image: Path) -> None:
    def made(name: str, checkpoint: Path) -> type:
        return type(engines.transformers("vae", ExecutorSettings(family=name, checkpoint=str(checkpoint))))

    assert (made("ltx2", ltx2), made("qwen_image", image)) == (DecodeVideoRunner, DecodeImageRunner)
