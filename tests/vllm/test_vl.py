"""A vLLM thinker under load, invalid input, disconnects, and engine death."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio

from omnibus.errors import BadRequest, ContextTooLong, StageUnavailable
from omnibus.executor.runner import Item
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_llm.vllm.runner import VllmRunner
from omnibus_models.families import load_family
from tests.e2e.questions import VL_QUESTIONS
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.runners.test_thinker import embedding, job, mixed, picture, text
from tests.unit.models.split import encode
from tests.vllm.conftest import CONTEXT, IN_PROCESS, descriptors, engine_core, sent, transformers, vllm

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

_BACK_WITHIN = 120.0  # seconds; a busy machine takes its time to import everything again


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(vl: Path) -> AsyncIterator[VllmRunner]:
    async with vllm("qwen2_5_vl", vl, batch=8) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(vl: Path) -> AsyncIterator[ThinkRunner]:
    async with transformers("qwen2_5_vl", vl) as made:
        yield made


async def both(
    runner: VllmRunner, reference: ThinkRunner, make: Callable[[], MemoryJob]
) -> tuple[MemoryJob, MemoryJob]:
    return await run(runner, make()), await run(reference, make())


async def until(true: Callable[[], bool], within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not true():
            await asyncio.sleep(0.01)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


async def test_it_holds_the_language_model_alone(runner: VllmRunner, reference: ThinkRunner) -> None:
    # On a CPU some weights are packed for its kernels and count as parameters no more.
    assert 0 < runner.stats()["parameters"] <= reference.stats()["parameters"]


async def test_it_reports_the_memory_of_keys_and_values(runner: VllmRunner, reference: ThinkRunner) -> None:
    stats = runner.stats()

    assert stats["kv_bytes_per_token"] == reference.stats()["kv_bytes_per_token"] > 0
    assert stats["kv_bytes"] > 1000 * stats["kv_bytes_per_token"]
    assert stats["engine_gpu_bytes"] == 0


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens", shape="L")
@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_it_says_what_transformers_says(vl: Path, runner: VllmRunner, reference: ThinkRunner, name: str) -> None:
    question = VL_QUESTIONS[name]
    kinds = [kind for kind, _ in question.parts if kind != "text"]
    items = sent(encode([load_family("qwen2_5_vl").load("vision", vl)], kinds, question.media))

    mine, other = await both(runner, reference, lambda: job(question.plain, items, max_tokens=24))

    assert mine.ids == other.ids
    assert (mine.text, mine.end_of_answer("text")) == (other.text, other.end_of_answer("text"))


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens", shape="L")
async def test_32_mixed_requests_at_once_equal_those_of_transformers(
    runner: VllmRunner, reference: ThinkRunner
) -> None:
    mine, other = mixed(32), mixed(32)

    await asyncio.gather(*(run(runner, one) for one in mine))
    await asyncio.gather(*(run(reference, one) for one in other))

    assert [one.ids for one in mine] == [one.ids for one in other]
    assert [one.end_of_answer("text") for one in mine] == [one.end_of_answer("text") for one in other]


async def test_the_end_of_turn_ends_the_answer_as_with_transformers(runner: VllmRunner, reference: ThinkRunner) -> None:
    make = lambda: [job(text(n), ignore_eos=False, max_tokens=60, repetition_penalty=1.3) for n in range(12)]  # noqa: E731
    mine, other = make(), make()

    await asyncio.gather(*(run(runner, one) for one in mine))
    await asyncio.gather(*(run(reference, one) for one in other))

    assert [one.ids for one in mine] == [one.ids for one in other]
    assert "stop" in {one.end("text")["finish_reason"] for one in mine}


async def test_a_stop_string_ends_the_text_before_it(runner: VllmRunner, reference: ThinkRunner) -> None:
    free = await run(reference, job(text(4), max_tokens=30))
    stop = free.text[len(free.text) // 2 : len(free.text) // 2 + 5]

    mine, other = await both(runner, reference, lambda: job(text(4), max_tokens=30, stop=[stop]))

    assert mine.text == other.text == free.text[: free.text.index(stop)]
    assert mine.end_of_answer("text") == other.end_of_answer("text")
    await until(lambda: runner.stats()["used"] == 0)


async def test_sampling_depends_on_the_seed_and_not_on_company(runner: VllmRunner) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 24}
    lonely = [await run(runner, job(text(4), seed=seed, **settings)) for seed in (1, 2)]

    company = [job(text(4), seed=seed, **settings) for seed in (1, 2, 1)]
    await asyncio.gather(*(run(runner, one) for one in [*mixed(4), *company]))

    assert [one.ids for one in company] == [lonely[0].ids, lonely[1].ids, lonely[0].ids]
    assert lonely[0].ids != lonely[1].ids


async def test_equal_rows_on_another_grid_are_another_picture(runner: VllmRunner, reference: ThinkRunner) -> None:
    lying, standing = embedding(3, 2, 3), embedding(3, 3, 2)
    assert np.array_equal(lying.array, standing.array)

    for item in (lying, standing, lying):
        mine, other = await both(runner, reference, lambda item=item: job(picture(3), [item]))
        assert mine.ids == other.ids


def nan() -> Item:
    return embedding(1)._replace(array=np.full((6, 64), np.nan, np.float32))


MALFORMED = {
    "too few rows": embedding(1)._replace(array=np.ones((5, 64), np.float32)),
    "another width": embedding(1)._replace(array=np.ones((6, 32), np.float32)),
    "whole numbers": embedding(1)._replace(array=np.ones((6, 64), np.int32)),
    "one dimension": embedding(1)._replace(array=np.ones(384, np.float32)),
    "no array": embedding(1)._replace(array=None),
    "not numbers": nan(),
    "no grid": Item({"modality": "image"}, embedding(1).array),
    "a video": Item({**embedding(1).data, "modality": "video"}, embedding(1).array),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_embedding_is_refused_and_the_engine_hears_nothing_of_it(
    runner: VllmRunner, name: str
) -> None:
    heard = runner.stats()["prompt_tokens"]

    with pytest.raises(BadRequest):
        await run(runner, job(picture(1), [MALFORMED[name]]))

    assert runner.stats()["prompt_tokens"] == heard
    assert descriptors() == []


async def test_a_prompt_over_the_context_is_refused(runner: VllmRunner) -> None:
    with pytest.raises(ContextTooLong, match=str(CONTEXT)):
        await run(runner, job([{"role": "user", "content": "mat " * 1200}]))


async def test_a_cancelled_request_stops_within_a_step_and_lets_go_of_everything(runner: VllmRunner) -> None:
    long = job(picture(1), [embedding(1)], max_tokens=900)
    running = asyncio.create_task(run(runner, long))
    await long.outputs["text"].until(3)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    made = len(long.ids)
    after = await run(runner, job(text(2), max_tokens=5))

    assert len(after.ids) == 5
    assert running.cancelled()
    assert made < 900
    await until(lambda: runner.stats()["used"] == 0)
    assert descriptors() == []


async def test_one_cancelled_before_its_first_token_harms_nobody(runner: VllmRunner, reference: ThinkRunner) -> None:
    doomed = [asyncio.create_task(run(runner, job(picture(2), [embedding(9 + n)]))) for n in range(16)]
    good = mixed(6)
    others = [asyncio.create_task(run(runner, one)) for one in good]
    for n, task in enumerate(doomed):
        for _ in range(n % 5):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)
    await asyncio.gather(*others)

    mine, other = await both(runner, reference, lambda: job(picture(2), [embedding(9)]))

    assert mine.ids == other.ids
    expected = mixed(6)
    await asyncio.gather(*(run(reference, one) for one in expected))
    assert [one.ids for one in good] == [one.ids for one in expected]
    # A cancelled task keeps its frames, and with them a request that a thread had just read.
    doomed.clear()
    del task
    gc.collect()
    assert descriptors() == []


async def test_neither_process_keeps_memory_of_requests_that_are_over(runner: VllmRunner) -> None:
    await asyncio.gather(*(run(runner, job(picture(1), [embedding(40 + n)])) for n in range(24)))

    await run(runner, job(text(1), max_tokens=8))  # steps after which it cannot be needed any more

    assert descriptors() == []
    assert descriptors(engine_core(children()).pid) == []


async def test_an_engine_that_dies_fails_what_runs_and_serves_again(runner: VllmRunner, reference: ThinkRunner) -> None:
    jobs = [job(picture(1), [embedding(n)], max_tokens=900) for n in range(4)]
    running = [asyncio.create_task(run(runner, one)) for one in jobs]
    await asyncio.gather(*(one.outputs["text"].until(2) for one in jobs))

    engine_core(children()).send_signal(signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 10)

    assert {type(result) for result in results} == {StageUnavailable}
    assert {result.stage for result in results if isinstance(result, StageUnavailable)} == {"thinker"}
    await until(lambda: not runner.serving)
    with pytest.raises(StageUnavailable, match="is restarting"):
        await run(runner, job(text(1)))
    await until(lambda: runner.serving, _BACK_WITHIN)
    mine, other = await both(runner, reference, lambda: job(picture(2), [embedding(5)]))
    assert mine.ids == other.ids
    assert runner.stats()["restarts"] == 1
    assert descriptors() == []


async def test_closing_fails_what_still_runs_and_leaves_no_process(vl: Path, runner: VllmRunner) -> None:
    long = job(text(1), max_tokens=900)
    running = asyncio.create_task(run(runner, long))
    await long.outputs["text"].until(1)
    core = engine_core(children())

    await runner.close()

    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], StageUnavailable)
    await asyncio.to_thread(core.wait, 10)
