"""An encoder under load returns the same embeddings as for single items."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from omnibus.errors import BadMedia, BadRequest
from omnibus.executor.runner import Item
from omnibus_encoder.media_encoder import Batcher, EncodeRunner, EncodeSettings
from omnibus_models import limits, tiny
from omnibus_models.contract import MediaEncoder
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models import files

DEADLINE_SECONDS = 60


@pytest.fixture(scope="session")
def vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="session")
def encoder(vl: Path) -> MediaEncoder:
    return load_family("qwen2_5_vl").load("vision", vl)


@pytest.fixture
async def runner(vl: Path) -> AsyncIterator[EncodeRunner]:
    encode_runner = EncodeRunner("vision", "qwen2_5_vl", vl, "cpu", "float32", EncodeSettings(items=4))
    await encode_runner.load()
    yield encode_runner
    await encode_runner.close()


def make_jpeg(seed: int, width: int = 90, height: int = 60) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return np.frombuffer(out.getvalue(), np.uint8)


def make_job(data: np.ndarray, modality: str = "image") -> MemoryJob:
    return MemoryJob({"media": Item({"modality": modality, "mime": "image/jpeg", "sha256": "0" * 64}, data)})


async def test_an_image_that_a_task_made_is_encoded_like_its_png_file(runner: EncodeRunner) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    pixel_job, file_job = MemoryJob({"media": Item({}, pixels)}), make_job(np.frombuffer(out.getvalue(), np.uint8))

    await finish_job(runner, pixel_job)
    await finish_job(runner, file_job)

    (one,), (other,) = (each.outputs["embedding"].items for each in (pixel_job, file_job))
    assert one.data == other.data
    assert np.array_equal(one.array, other.array)


async def test_a_tensor_that_is_no_image_is_refused(runner: EncodeRunner) -> None:
    with pytest.raises(BadRequest, match="an image must be uint8"):
        await finish_job(runner, MemoryJob({"media": Item({}, np.zeros((4, 4), np.float32))}))


@pytest.mark.numeric
async def test_pictures_of_many_requests_equal_single_runs(runner: EncodeRunner, encoder: MediaEncoder) -> None:
    pictures = [make_jpeg(seed, 60 + 20 * (seed % 4)) for seed in range(10)]
    jobs = [make_job(picture) for picture in pictures]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for one, picture in zip(jobs, pictures, strict=True):
        with torch.inference_mode():
            [reference] = encoder.encode([encoder.prepare(picture.data, "image")])
        [item] = one.outputs["embedding"].items
        assert item.array is not None
        assert item.array.dtype == np.float32
        assert_close(item.array, reference.embeds.numpy())
        assert item.data["modality"] == "image"
        assert item.data["n_tokens"] == len(item.array)
    assert runner.stats()["parameters"] == encoder.parameters
    assert max(int(size) for size in runner.stats()["batches"]) <= 4


@pytest.mark.numeric
async def test_a_corrupt_picture_fails_only_its_own_request(runner: EncodeRunner) -> None:
    whole = make_jpeg(1)
    jobs = [
        make_job(whole),
        make_job(np.frombuffer(b"\xff\xd8 no picture", np.uint8)),
        make_job(whole),
        make_job(whole[:0]),
    ]

    results = await asyncio.gather(*(finish_job(runner, one) for one in jobs), return_exceptions=True)
    after = await finish_job(runner, make_job(whole))

    assert [isinstance(result, BadMedia) for result in results] == [False, True, False, True]
    first, third = (jobs[n].array("embedding") for n in (0, 2))
    assert_close(first, third)
    assert_close(first, after.array("embedding"))


@pytest.mark.numeric
async def test_an_item_that_breaks_its_batch_fails_alone(encoder: MediaEncoder) -> None:
    async def encode_items(items):
        with torch.inference_mode():
            return [one.embeds for one in encoder.encode(items)]

    good = encoder.prepare(make_jpeg(1).data, "image")
    cut = replace(good, features={name: tensor[..., :-1] for name, tensor in good.features.items()})
    batcher = Batcher(encode_items, items=8, tokens=10_000)
    waiting = [asyncio.create_task(batcher.encode(one)) for one in (good, cut, good)]
    serving = asyncio.create_task(batcher.serve())

    results = await asyncio.gather(*waiting, return_exceptions=True)
    serving.cancel()

    assert isinstance(results[1], Exception)
    torch.testing.assert_close(results[0], results[2])


async def test_a_modality_that_the_encoder_does_not_read_is_refused(runner: EncodeRunner) -> None:
    with pytest.raises(BadRequest, match="image, video, not audio"):
        await finish_job(runner, make_job(make_jpeg(1), "audio"))


async def test_a_cancelled_request_puts_nothing(runner: EncodeRunner) -> None:
    jobs = [make_job(make_jpeg(seed)) for seed in range(3)]
    running = [asyncio.create_task(finish_job(runner, one)) for one in jobs]
    await asyncio.sleep(0)

    running[1].cancel()
    await asyncio.gather(*running, return_exceptions=True)

    assert [len(one.outputs["embedding"].items) for one in jobs] == [1, 0, 1]


async def test_a_film_that_nobody_waits_for_is_not_decoded_to_its_end(
    runner: EncodeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, began, is_cancelled = [], threading.Event(), threading.Event()

    class WatchedDecodeBudget(limits.DecodeBudget):
        def raise_if_spent(self) -> None:
            checks.append(len(checks))
            began.set()
            assert is_cancelled.wait(DEADLINE_SECONDS)
            super().raise_if_spent()

    monkeypatch.setattr(limits, "DecodeBudget", WatchedDecodeBudget)
    watching = asyncio.create_task(finish_job(runner, make_job(np.frombuffer(files.make_film(8.0), np.uint8), "video")))
    assert await asyncio.to_thread(began.wait, DEADLINE_SECONDS)

    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    is_cancelled.set()
    await finish_job(runner, make_job(make_jpeg(1)))
    await runner.close()  # waits for the decoder

    assert checks == [0]


async def test_only_what_is_computed_counts_as_busy(runner: EncodeRunner) -> None:
    before = runner.busy
    await finish_job(runner, make_job(make_jpeg(1)))
    after = runner.busy
    with pytest.raises(BadMedia):
        await finish_job(runner, make_job(np.frombuffer(b"no picture", np.uint8)))

    assert before == 0.0
    assert after > 0.0
    assert runner.busy == after
