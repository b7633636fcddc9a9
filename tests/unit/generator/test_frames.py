"""A vocoder of frames that arrive in pieces of any size."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus_generator.vocoder import VocodeRunner, VocodeSettings
from omnibus_models import tiny
from omnibus_models.contract import Vocoder
from omnibus_models.families import load_family
from tests.unit.generator.test_vocoder import make_job
from tests.unit.jobs import MemoryJob, MemoryPipe, finish_job

NAME = "qwen3_omni_moe"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(NAME, tmp_path_factory.mktemp("models") / "omni")


@pytest.fixture(scope="module")
def vocoder(checkpoint: Path) -> Vocoder:
    model: Vocoder = load_family(NAME).load("vocoder", checkpoint)
    return model


@pytest.fixture
async def runner(checkpoint: Path) -> AsyncIterator[VocodeRunner]:
    vocode_runner = VocodeRunner("vocoder", NAME, checkpoint, "cpu", "float32", VocodeSettings(codes=6))
    await vocode_runner.load()
    yield vocode_runner
    await vocode_runner.close()


def make_frames(count: int, seed: int = 0) -> list[list[int]]:
    rows: list[list[int]] = np.random.default_rng(seed).integers(0, 64, (count, 4)).tolist()
    return rows


def vocode_once(vocoder: Vocoder, code_frames: list[list[int]]) -> np.ndarray:
    with torch.inference_mode():
        wave: np.ndarray = vocoder.open("Chelsie", 0).push(code_frames, last=True).numpy()
    return wave


async def test_waveforms_do_not_depend_on_pieces_nor_on_company(runner: VocodeRunner, vocoder: Vocoder) -> None:
    pieces = [(1,) * 20, (4, 4, 4, 4, 4), (20,), (0, 19, 1)]
    jobs = []
    for seed, sizes in enumerate(pieces):
        ends = np.cumsum(sizes)
        jobs.append(make_job([make_frames(20, seed)[end - size : end] for size, end in zip(sizes, ends, strict=True)]))

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for seed, one in enumerate(jobs):
        wave = one.whole("audio")
        np.testing.assert_allclose(wave, vocode_once(vocoder, make_frames(20, seed)), rtol=0, atol=1e-5)
        assert one.end("audio") == {"samples": len(wave)} == {"samples": 20 * 1920 - 555}


async def test_the_first_bunch_of_frames_sounds_at_once(runner: VocodeRunner) -> None:
    stream = MemoryPipe()
    stream.feed(Item({"codes": make_frames(4)}))
    one = MemoryJob({"codes": stream, "voice": "Chelsie"})
    running = asyncio.create_task(finish_job(runner, one))

    early = await one.outputs["audio"].until(1)

    assert early[0].array is not None
    assert not one.outputs["audio"].closed
    stream.close({})
    await running


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([1, 2, 3, 4], "whole numbers"),
        ([[1, 2, "a", 4]], "whole numbers"),
        ([[1, 2, 3]], "4 codes"),
        ([[1, 2, 3, 64]], "below 64"),
    ],
)
async def test_what_is_no_frame_is_refused(runner: VocodeRunner, wrong: list[Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        await finish_job(runner, make_job([wrong]))


async def test_frames_are_refused_where_codes_are_meant(checkpoint: Path, tmp_path: Path) -> None:
    other = tiny.build("qwen2_5_omni", tmp_path / "other")
    runner = VocodeRunner("vocoder", "qwen2_5_omni", other, "cpu", "float32", VocodeSettings())
    await runner.load()

    with pytest.raises(BadRequest, match="whole numbers"):
        await finish_job(runner, make_job([make_frames(2)]))
    await runner.close()
