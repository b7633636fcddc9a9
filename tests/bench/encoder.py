"""Benefit of batches and cache, on tiny encoders and one thread.

    python -m tests.bench.encoder

    encoder.batch.speedup   how many times as fast 16 images of different sizes are in one pass as in 16
    cache.hit_over_miss     time for a cached image of 640 x 480, over the time to encode it;
                            both from its bytes to its embedding, a copy of which the consumer gets
    encoder.sound_goes_on   time to encode 29 s of audio of which 27 s are cached, over the time without the cache, in
                            the encoder alone: files are decoded and cut into frequencies as a whole either way

Both sides of a ratio are measured alternately. The ratio is that of their medians.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from omnibus.executor.runner import Item
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models import files

_ITEMS, _ROUNDS, _PICTURES, _SOUNDS = 16, 15, 30, 10
_SIZES = [(90, 60), (56, 84), (120, 60), (84, 84)]


def _measure_seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure_batches(checkpoint: Path) -> float:
    """Forward passes alone: files are decoded one by one either way."""
    encoder = load_family("qwen2_5_vl").load("vision", checkpoint)
    pictures = [files.make_picture(seed, *_SIZES[seed % len(_SIZES)]) for seed in range(_ITEMS)]
    items = [encoder.prepare(memoryview(picture), "image") for picture in pictures]
    single, together = [], []
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            single.append(_measure_seconds(lambda: [encoder.encode([item]) for item in items]))
            together.append(_measure_seconds(lambda: encoder.encode(items)))
    return statistics.median(single) / statistics.median(together)


async def measure_cache(checkpoint: Path) -> float:
    """Encode each image twice: the first time is a cache miss."""
    runner = EncodeRunner("vision", "qwen2_5_vl", checkpoint, "cpu", "float32", EncodeSettings(cache=64 << 20))
    await runner.load()
    misses, hits = [], []
    for seed in range(_PICTURES):
        data = np.frombuffer(files.make_picture(seed, 640, 480, "JPEG"), np.uint8)
        for times in (misses, hits):
            job = MemoryJob({"media": Item({"modality": "image"}, data)})
            begin = time.perf_counter()
            await finish_job(runner, job)
            times.append(time.perf_counter() - begin)
    counts = runner.stats()["cache"]
    if (counts["misses"], counts["hits"]) != (_PICTURES, _PICTURES):
        raise SystemExit(f"each picture was to be a miss and a hit: {counts}")
    await runner.close()
    return statistics.median(hits) / statistics.median(misses)


async def measure_sound(checkpoint: Path) -> float:
    """Encode each audio clip three times: its beginning, the rest after that, and all of it without a cache."""
    runner = EncodeRunner("audio", "qwen2_5_omni", checkpoint, "cpu", "float32", EncodeSettings(cache=64 << 20))
    await runner.load()

    async def encode_tone(seconds: float, seed: int, salt: str) -> float:
        data = np.frombuffer(files.make_tone(seconds, seed, rate=24_000), np.uint8)
        before = runner.busy
        await finish_job(runner, MemoryJob({"media": Item({"modality": "audio", "salt": salt}, data)}))
        return runner.busy - before

    behind, anew = [], []
    for seed in range(_SOUNDS):
        await encode_tone(27.0, seed, "known")
        behind.append(await encode_tone(29.0, seed, "known"))
        anew.append(await encode_tone(29.0, seed, "unknown"))
    await runner.close()
    return statistics.median(behind) / statistics.median(anew)


def measure_encoder() -> dict[str, float]:
    """All values by name."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = tiny.build("qwen2_5_vl", Path(directory) / "vl")
        values = {
            "encoder.batch.speedup": measure_batches(checkpoint),
            "cache.hit_over_miss": asyncio.run(measure_cache(checkpoint)),
            "encoder.sound_goes_on": asyncio.run(measure_sound(tiny.build("qwen2_5_omni", Path(directory) / "omni"))),
        }
    return {name: round(value, 4) for name, value in values.items()}


if __name__ == "__main__":
    print(json.dumps(measure_encoder()))
