"""Benefit of the generator's engines: batched images, and time to the first audio.

Both halves of a ratio are measured alternately in this process, on one thread, with tiny models. The result is the
median of the rounds' ratios. Images have several lengths and must be equal either way. Audio lasts ten seconds and all
of its codes are available at the start, so the vocoder alone determines when playback can begin.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import torch

from omnibus.executor.runner import Item
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings
from omnibus_generator.vocoder import VocodeRunner, VocodeSettings
from omnibus_models import tiny
from tests.bench.cases import FIRST_SOUND, PICTURES
from tests.unit.jobs import MemoryJob, MemoryPipe, finish_job

_ROUNDS = 3
_AT_ONCE, _STEPS = 16, (8, 12)
_CODES = 500  # 10 s of audio
_TOKENS, _WIDTH = 48, 64  # of a prompt


def make_jobs() -> list[MemoryJob]:
    chance = np.random.default_rng(0)
    embeds = chance.standard_normal((_AT_ONCE, 2, _TOKENS, _WIDTH), np.float32)
    mask = np.arange(_TOKENS) < chance.integers(8, _TOKENS, (_AT_ONCE, 2, 1))
    return [
        MemoryJob(
            {
                "width": 64,
                "height": 64,
                "steps": _STEPS[place % len(_STEPS)],
                "seed": place,
                "embeds": Item({}, embeds[place]),
                "mask": Item({}, mask[place]),
            }
        )
        for place in range(_AT_ONCE)
    ]


async def measure_batching(checkpoint: Path) -> float:
    """Speedup of generating images together over one after another."""
    runner = DenoiseRunner("dit", "qwen_image", checkpoint, "cpu", "float32", DenoiseSettings(pictures=_AT_ONCE))
    await runner.load()

    async def measure_ratio() -> float:
        alone, together = make_jobs(), make_jobs()
        begin = time.perf_counter()
        for job in alone:
            await finish_job(runner, job)
        middle = time.perf_counter()
        await asyncio.gather(*(finish_job(runner, job) for job in together))
        ratio = (middle - begin) / (time.perf_counter() - middle)
        for one, other in zip(alone, together, strict=True):
            if not np.allclose(one.array("latents"), other.array("latents"), rtol=0, atol=1e-5):
                sys.exit("the pictures differ: what was measured is not the same work")
        return ratio

    median = await _measure_median(measure_ratio)
    await runner.close()
    return median


async def first_sound(checkpoint: Path) -> float:
    """Time to the first audio over the time to the last."""
    runner = VocodeRunner("vocoder", "qwen2_5_omni", checkpoint, "cpu", "float32", VocodeSettings())
    await runner.load()
    codes = np.random.default_rng(0).integers(0, 60, _CODES).tolist()

    async def measure_first() -> float:
        stream = MemoryPipe()
        stream.feed(Item({"codes": codes}))
        stream.close({})
        job = MemoryJob({"codes": stream, "voice": "Chelsie"})
        begin = time.perf_counter()
        sounding = asyncio.create_task(finish_job(runner, job))
        await job.outputs["audio"].until(1)
        first = time.perf_counter() - begin
        await sounding
        whole = time.perf_counter() - begin
        if len(job.whole("audio")) != _CODES * 480:
            sys.exit("samples are lost: what was measured is not the whole sound")
        return first / whole

    median = await _measure_median(measure_first)
    await runner.close()
    return median


async def _measure_median(once: Callable[[], Awaitable[float]]) -> float:
    ratios = [await once() for _ in range(1 + _ROUNDS)]  # the first is for warming up
    return statistics.median(ratios[1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        image = tiny.build("qwen_image", Path(directory) / "image")
        omni = tiny.build("qwen2_5_omni", Path(directory) / "omni")
        print(json.dumps({PICTURES: asyncio.run(measure_batching(image)), FIRST_SOUND: asyncio.run(first_sound(omni))}))
