"""Steps, waveforms, images and embeddings per second of the engines, against the build of another checkout.

    python -m tests.bench.engines ../before [CASE...]

    engine.talker.steps_over_before     frames of a Qwen3-Omni talker, 1 and 8 answers at once (``.c1``, ``.c8``)
    engine.talker.sampled_over_before   the same with sampled codes, 8 at once
    engine.vocoder.batch8_over_before   8 waveforms at once, of Qwen2.5-Omni and of Qwen3-Omni (``.frames``)
    engine.denoiser.steps_over_before   steps with guidance of 1 image, and of 4 at once (``.c4``)
    engine.encoder.batch8_over_before   8 images at once, from files to embeddings

Tiny models on one thread. Each build has a process, and both take turns in short rounds, so that other programs disturb
them alike. Results are medians of the ratios of the rounds.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from omnibus.executor.runner import Item, Runner
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings
from omnibus_generator.vocoder import VocodeRunner, VocodeSettings
from omnibus_llm.runners.talker import TalkRunner, TalkSettings
from omnibus_models import tiny
from tests.unit.jobs import MemoryJob, MemoryPipe, finish_job
from tests.unit.models import files

ROOT = Path(__file__).parents[2]

_ROUNDS, _WARM_UPS = 7, 3
_FRAMES, _CODES, _STEPS = 40, 48, 20
_RATES = {"qwen2_5_omni": 1, "qwen3_omni_moe": 4}  # codes of a frame
_SIZES = [(90, 60), (56, 84), (120, 60), (84, 84)]

#: Sends the work of a round to a runner.
Work = Callable[[Runner], Awaitable[None]]


async def run_jobs(runner: Runner, jobs: list[MemoryJob]) -> None:
    await asyncio.gather(*(finish_job(runner, job) for job in jobs))


def fill_pipe(*items: Item) -> MemoryPipe:
    """A stream that is complete."""
    pipe = MemoryPipe()
    for item in items:
        pipe.feed(item)
    pipe.close({})
    return pipe


def talk(count: int, **params: Any) -> Work:
    """Speak ``count`` answers at once."""

    async def work(runner: Runner) -> None:
        jobs = []
        for seed in range(count):
            numbers = np.random.default_rng(seed)
            prompt, rows = (numbers.standard_normal((size, 64), np.float32) for size in (23, 12))
            layout = np.tile(np.arange(20, dtype=np.int32), (5, 1))
            layout[:2] = 0
            inputs = {"prompt": Item({}, prompt), "layout": Item({}, layout), "rows": fill_pipe(Item({}, rows))}
            options = {"voice": "chelsie", "params": {"max_codes": _FRAMES, **params}}
            jobs.append(MemoryJob({**inputs, **options}, seed=seed))
        await run_jobs(runner, jobs)

    return work


def vocode(family: str, voice: str, count: int = 8) -> Work:
    """Synthesize ``count`` waveforms at once."""

    async def work(runner: Runner) -> None:
        jobs = []
        for seed in range(count):
            numbers, groups = np.random.default_rng(seed), _RATES[family]
            codes = numbers.integers(0, 60, _CODES if groups == 1 else (_CODES // 4, groups)).tolist()
            jobs.append(MemoryJob({"codes": fill_pipe(Item({"codes": codes})), "voice": voice}, seed=seed))
        await run_jobs(runner, jobs)

    return work


def draw(count: int) -> Work:
    """Generate ``count`` images at once, with prompts of one length, as guidance has two."""

    async def work(runner: Runner) -> None:
        numbers = np.random.default_rng(0)
        jobs = [
            MemoryJob(
                {
                    "width": 64,
                    "height": 64,
                    "steps": _STEPS,
                    "seed": seed,
                    "embeds": Item({}, numbers.standard_normal((2, 24, 64), np.float32)),
                    "mask": Item({}, np.ones((2, 24), bool)),
                }
            )
            for seed in range(count)
        ]
        await run_jobs(runner, jobs)

    return work


def encode(count: int) -> Work:
    """Encode ``count`` images of four sizes at once."""
    pictures = [np.frombuffer(files.make_picture(seed, *_SIZES[seed % 4]), np.uint8) for seed in range(count)]

    async def work(runner: Runner) -> None:
        await run_jobs(runner, [MemoryJob({"media": Item({"modality": "image"}, data)}) for data in pictures])

    return work


def open_runner(kind: str, family: str, directory: Path) -> Runner:
    checkpoint = tiny.build(family, directory / family)
    source = (family, checkpoint, "cpu", "float32")
    match kind:
        case "talker":
            return TalkRunner("talker", *source, TalkSettings(slots=8, context=512))
        case "vocoder":
            return VocodeRunner("vocoder", *source, VocodeSettings())
        case "denoiser":
            return DenoiseRunner("dit", *source, DenoiseSettings())
    return EncodeRunner("vision", *source, EncodeSettings())


_SAMPLED = {"temperature": 0.9, "top_k": 50}
#: Kind of runner, its family, and the work of a round, by name.
CASES: dict[str, tuple[str, str, Work]] = {
    "engine.talker.steps_over_before.c1": ("talker", "qwen3_omni_moe", talk(1)),
    "engine.talker.steps_over_before.c8": ("talker", "qwen3_omni_moe", talk(8)),
    "engine.talker.sampled_over_before.c8": ("talker", "qwen3_omni_moe", talk(8, **_SAMPLED)),
    "engine.vocoder.batch8_over_before": ("vocoder", "qwen2_5_omni", vocode("qwen2_5_omni", "Chelsie")),
    "engine.vocoder.batch8_over_before.frames": ("vocoder", "qwen3_omni_moe", vocode("qwen3_omni_moe", "chelsie")),
    "engine.denoiser.steps_over_before": ("denoiser", "qwen_image", draw(1)),
    "engine.denoiser.steps_over_before.c4": ("denoiser", "qwen_image", draw(4)),
    "engine.encoder.batch8_over_before": ("encoder", "qwen2_5_vl", encode(8)),
}


async def serve_cases(directory: Path) -> None:
    """Run the case that each line of the input names, and print its seconds."""
    runners: dict[tuple[str, str], Runner] = {}
    for line in sys.stdin:
        kind, family, work = CASES[line.strip()]
        runner = runners.get((kind, family))
        if runner is None:
            runner = runners[kind, family] = open_runner(kind, family, directory)
            await runner.load()
        begin = time.perf_counter()
        await work(runner)
        print(time.perf_counter() - begin, flush=True)
    for runner in runners.values():
        await runner.close()


@contextlib.contextmanager
def start_build(tree: Path, directory: str) -> Iterator[Callable[[str], float]]:
    """Yield a function that runs a case with the code of ``tree``, and returns its seconds."""
    packages = [tree / "shared", *sorted(each.parent for each in tree.glob("services/*/omnibus_*")), ROOT]
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, packages))}
    command = (sys.executable, "-m", "tests.bench.engines", "--serve", directory)
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield lambda name: _ask_process(process.stdin, process.stdout, name)
        process.stdin.close()


def _ask_process(requests: IO[str] | None, answers: IO[str] | None, name: str) -> float:
    assert requests is not None
    assert answers is not None
    print(name, file=requests, flush=True)
    return float(answers.readline())


def measure_ratios(before: Path, names: list[str]) -> dict[str, float]:
    """The ratios of ``names``."""
    ratios = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        start_build(before, directory) as run_before,
        start_build(ROOT, directory) as run_here,
    ):
        for name in names:
            for _ in range(_WARM_UPS):
                run_before(name), run_here(name)
            pairs = [(run_before(name), run_here(name)) for _ in range(_ROUNDS)]
            print(name, *(f"{old:.3f}/{new:.3f}" for old, new in pairs), file=sys.stderr)
            ratios[name] = round(statistics.median(old / new for old, new in pairs), 3)
    return ratios


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        torch.set_num_threads(1)
        asyncio.run(serve_cases(Path(sys.argv[2])))
    else:
        chosen = sys.argv[2:] or list(CASES)
        print(json.dumps(measure_ratios(Path(sys.argv[1]).resolve(), chosen)))
