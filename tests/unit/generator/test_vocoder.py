"""A waveform is independent of its codes' chunks and other streams."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus_generator.vocoder import VocodeRunner, VocodeSettings, piece_sizes
from omnibus_models import tiny
from omnibus_models.contract import Vocoder
from omnibus_models.families import load_family
from tests.unit.jobs import MemoryJob, MemoryPipe, finish_job

VOICE = "Chelsie"


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_omni", tmp_path_factory.mktemp("models") / "omni")


@pytest.fixture(scope="session")
def vocoder(omni: Path) -> Vocoder:
    return load_family("qwen2_5_omni").load("vocoder", omni)


@pytest.fixture
async def runner(omni: Path) -> AsyncIterator[VocodeRunner]:
    vocode_runner = VocodeRunner("vocoder", "qwen2_5_omni", omni, "cpu", "float32", VocodeSettings(codes=24))
    await vocode_runner.load()
    yield vocode_runner
    await vocode_runner.close()


def make_codes(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 60, count).tolist()


def make_job(chunks: Sequence[Sequence[Any]], seed: int = 7, **more: Any) -> MemoryJob:
    stream = MemoryPipe()
    for chunk in chunks:
        stream.feed(Item({"codes": list(chunk)}))
    stream.close({"finish_reason": "stop"})
    return MemoryJob({"codes": stream, "voice": VOICE, **more}, seed=seed)


def vocode_once(vocoder: Vocoder, all_codes: Sequence[int], seed: int = 7) -> np.ndarray:
    with torch.inference_mode():
        return vocoder.open(VOICE, seed).push(all_codes, last=True).numpy()


@pytest.mark.parametrize("sizes", [[60], [1] * 60, [12, 24, 24], [5, 50, 5]])
async def test_a_waveform_does_not_depend_on_the_chunks(
    runner: VocodeRunner, vocoder: Vocoder, sizes: list[int]
) -> None:
    ends = np.cumsum(sizes)
    chunks = [make_codes(60)[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    one = await finish_job(runner, make_job(chunks))

    wave = one.whole("audio")
    np.testing.assert_allclose(wave, vocode_once(vocoder, make_codes(60)), atol=1e-5)
    assert wave.dtype == np.float32
    assert one.end("audio") == {"samples": len(wave)}
    assert all(item.data["rate"] == vocoder.rate for item in one.outputs["audio"].items[:-1])


def draw_sizes(count: int, random: np.random.Generator) -> list[int]:
    """Return sizes of chunks of ``count`` codes, some of them empty."""
    cuts = np.sort(random.integers(0, count + 1, random.integers(1, 40)))
    return np.diff(cuts, prepend=0, append=count).tolist()


async def feed_codes(
    stream: MemoryPipe, all_codes: Sequence[Any], sizes: Sequence[int], random: np.random.Generator
) -> None:
    """Send ``all_codes`` in chunks of ``sizes``, with random pauses; the end is delayed, too."""
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        stream.feed(Item({"codes": list(all_codes[end - size : end])}))
        for _ in range(random.choice([0, 0, 1, 20, 400])):
            await asyncio.sleep(0)
    stream.close({"finish_reason": "stop"})


@pytest.mark.parametrize("count", [5, 72, 100])
async def test_samples_are_the_same_however_codes_arrive_and_whoever_is_there(runner: VocodeRunner, count: int) -> None:
    random = np.random.default_rng(count)
    alone = await finish_job(runner, make_job([make_codes(count)]))

    for _ in range(2):
        streams, other_jobs = [MemoryPipe() for _ in range(2)], [make_job([make_codes(40, 1)], seed=1)]
        jobs = [MemoryJob({"codes": stream, "voice": VOICE}, seed=7) for stream in streams]
        feeding = [feed_codes(stream, make_codes(count), draw_sizes(count, random), random) for stream in streams]
        await asyncio.gather(*feeding, *(finish_job(runner, one) for one in (*jobs, *other_jobs)))

        for one in jobs:
            # The same computations in one process, so to the bit.
            assert np.array_equal(one.whole("audio"), alone.whole("audio"))


@pytest.mark.parametrize(
    ("codes_per_second", "first"), [(50, [12, 12, 12, 12, 12, 12, 24]), (12.5, [4] * 6 + [8] * 6 + [16])]
)
def test_pieces_begin_small_and_grow_to_the_largest(codes_per_second: float, first: list[int]) -> None:
    sizes = list(islice(piece_sizes(codes_per_second, 48), 100))

    assert sizes[: len(first)] == first
    assert sizes == sorted(sizes)
    assert sizes[-1] == 48
    assert next(piece_sizes(codes_per_second, 3)) == 3


async def test_sound_comes_before_the_last_code(runner: VocodeRunner) -> None:
    stream = MemoryPipe()
    one = MemoryJob({"codes": stream, "voice": VOICE})
    running = asyncio.create_task(finish_job(runner, one))

    stream.feed(Item({"codes": make_codes(100)}))
    early = await one.outputs["audio"].until(1)

    assert early[0].array is not None
    assert not one.outputs["audio"].closed
    stream.close({"finish_reason": "stop"})
    await running


async def test_many_waveforms_at_once_equal_single_runs(runner: VocodeRunner, vocoder: Vocoder) -> None:
    jobs = [make_job([make_codes(40, seed)[:15], make_codes(40, seed)[15:]], seed=seed) for seed in range(4)]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))

    for seed, one in enumerate(jobs):
        np.testing.assert_allclose(one.whole("audio"), vocode_once(vocoder, make_codes(40, seed), seed), atol=1e-5)
    assert runner.stats()["used"] == 0


async def test_a_short_waveform_does_not_wait_for_a_long_one(runner: VocodeRunner) -> None:
    long, short = make_job([make_codes(150)]), make_job([make_codes(24)])
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["audio"].until(1)

    await finish_job(runner, short)

    assert not long.outputs["audio"].closed
    await running


async def test_who_has_no_sound_goes_before_who_has_some(omni: Path) -> None:
    # No request has waited for that long, even on a busy machine.
    runner = VocodeRunner("vocoder", "qwen2_5_omni", omni, "cpu", "float32", VocodeSettings(patience=-1e6))
    await runner.load()
    poor, other, stream = make_job([make_codes(48, 1)]), make_job([make_codes(48, 2)]), MemoryPipe()
    rich = MemoryJob({"codes": stream, "voice": VOICE})
    stream.feed(Item({"codes": make_codes(48)}))
    tasks = [asyncio.create_task(finish_job(runner, rich))]
    await rich.outputs["audio"].until(1)
    await wait_until_settled(runner)

    # The vocoder is in use. First the stream with audio waits for it, then the one without.
    release_event = threading.Event()
    blocker = asyncio.create_task(runner._compute(release_event.wait))
    tasks.append(asyncio.create_task(finish_job(runner, other)))
    await runner_is(runner, waiting=0)
    stream.feed(Item({"codes": make_codes(48, 3)}))
    await runner_is(runner, waiting=1)
    tasks.append(asyncio.create_task(finish_job(runner, poor)))
    await runner_is(runner, waiting=2)
    before = len(rich.outputs["audio"].items)
    release_event.set()

    await poor.outputs["audio"].until(1)
    assert len(rich.outputs["audio"].items) == before
    stream.close({})
    await asyncio.gather(blocker, *tasks)
    assert len(rich.outputs["audio"].items) > before
    await runner.close()


async def wait_until_settled(runner: VocodeRunner) -> None:
    """Wait until the vocoder is free and has no waiters."""
    free = 0
    while free < 50:
        await asyncio.sleep(0)
        free = 0 if runner._floor._taken else free + 1


async def runner_is(runner: VocodeRunner, waiting: int) -> None:
    """Wait until the vocoder is in use with ``waiting`` waiters."""
    while not runner._floor._taken or len(runner._floor._waiting) != waiting:
        await asyncio.sleep(0.001)


async def test_the_seed_of_the_request_goes_before_that_of_the_invocation(
    runner: VocodeRunner, vocoder: Vocoder
) -> None:
    one = await finish_job(runner, make_job([make_codes(30)], seed=1, params={"seed": 5}))

    np.testing.assert_allclose(one.whole("audio"), vocode_once(vocoder, make_codes(30), 5), atol=1e-5)
    assert not np.allclose(one.whole("audio"), vocode_once(vocoder, make_codes(30), 1), atol=1e-3)


async def test_no_codes_give_no_sound(runner: VocodeRunner) -> None:
    one = await finish_job(runner, make_job([]))

    assert one.outputs["audio"].items == [Item({"samples": 0})]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"voice": "nobody"}, VOICE),
        ({"params": {"seed": "x"}}, "seed"),
        ({"params": {"colour": 1}}, "colour"),
    ],
)
async def test_wrong_inputs_are_refused(runner: VocodeRunner, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await finish_job(runner, make_job([make_codes(5)], **changes))


async def test_codes_that_are_no_numbers_are_refused(runner: VocodeRunner) -> None:
    with pytest.raises(BadRequest, match="whole numbers"):
        await finish_job(runner, make_job([["a"]]))


async def test_a_cancelled_waveform_leaves_the_vocoder_free(runner: VocodeRunner, vocoder: Vocoder) -> None:
    long = make_job([make_codes(150)])
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["audio"].until(1)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    one = await finish_job(runner, make_job([make_codes(24)]))

    np.testing.assert_allclose(one.whole("audio"), vocode_once(vocoder, make_codes(24)), atol=1e-5)
    assert not long.outputs["audio"].closed
    assert runner.stats()["used"] == 0


async def test_waveforms_are_counted_as_busy(runner: VocodeRunner) -> None:
    before = runner.busy
    await finish_job(runner, make_job([make_codes(12)]))

    assert before == 0.0
    assert runner.busy > 0.0


@pytest.mark.parametrize("sent_share", [0.3, 1.0])
async def test_sound_begins_behind_what_the_listener_has(runner: VocodeRunner, sent_share: float):
    all_codes = make_codes(96)
    whole = (await finish_job(runner, make_job([all_codes]))).whole("audio")
    sent_samples = int(sent_share * len(whole))

    again = make_job([all_codes])
    again._resumes = {"audio": {"rows": sent_samples}}
    answer = await finish_job(runner, again)

    first = answer.outputs["audio"].items[0]
    begin = first.data["resumed_at"]
    assert begin <= sent_samples
    assert first.array is not None
    assert not first.array.size
    np.testing.assert_allclose(answer.whole("audio"), whole[begin:], atol=1e-5)
    assert answer.end("audio") == {"samples": len(whole)}


@pytest.mark.parametrize(("reason", "end"), [("stop", {"samples": 0}), ("length", {"finish_reason": "length"})])
async def test_the_end_of_speech_says_that_a_limit_has_cut_it(
    runner: VocodeRunner, reason: str, end: dict[str, Any]
) -> None:
    stream = MemoryPipe()
    stream.feed(Item({"codes": make_codes(6)}))
    stream.close({"finish_reason": reason})

    one = await finish_job(runner, MemoryJob({"codes": stream, "voice": VOICE}))

    assert one.end("audio") == {**end, "samples": len(one.whole("audio"))}
