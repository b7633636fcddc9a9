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
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import (
    make_chat_job,
    make_embedding,
    make_mixed_jobs,
    make_picture_chat,
    make_text_chat,
)
from tests.unit.models.split import encode_files
from tests.vllm.conftest import (
    CONTEXT,
    IN_PROCESS,
    encode_items,
    engine_core,
    list_descriptors,
    start_transformers,
    start_vllm,
)

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

_BACK_WITHIN = 120.0  # seconds; a busy machine takes its time to import everything again


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(vl: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm("qwen2_5_vl", vl, batch=8) as new_runner:
        yield new_runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(vl: Path) -> AsyncIterator[ThinkRunner]:
    async with start_transformers("qwen2_5_vl", vl) as new_reference:
        yield new_reference


async def run_both(
    runner: VllmRunner, reference: ThinkRunner, make: Callable[[], MemoryJob]
) -> tuple[MemoryJob, MemoryJob]:
    return await finish_job(runner, make()), await finish_job(reference, make())


async def wait_until(true: Callable[[], bool], within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not true():
            await asyncio.sleep(0.01)


def list_children() -> list[psutil.Process]:
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
    items = encode_items(encode_files([load_family("qwen2_5_vl").load("vision", vl)], kinds, question.media))

    own_job, other = await run_both(runner, reference, lambda: make_chat_job(question.plain, items, max_tokens=24))

    assert own_job.ids == other.ids
    assert (own_job.text, own_job.end_of_answer("text")) == (other.text, other.end_of_answer("text"))


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens", shape="L")
async def test_32_mixed_requests_at_once_equal_those_of_transformers(
    runner: VllmRunner, reference: ThinkRunner
) -> None:
    own_jobs, other = make_mixed_jobs(32), make_mixed_jobs(32)

    await asyncio.gather(*(finish_job(runner, one) for one in own_jobs))
    await asyncio.gather(*(finish_job(reference, one) for one in other))

    assert [one.ids for one in own_jobs] == [one.ids for one in other]
    assert [one.end_of_answer("text") for one in own_jobs] == [one.end_of_answer("text") for one in other]


async def test_the_end_of_turn_ends_the_answer_as_with_transformers(runner: VllmRunner, reference: ThinkRunner) -> None:
    options = {"ignore_eos": False, "max_tokens": 60, "repetition_penalty": 1.3}
    own_jobs, other = ([make_chat_job(make_text_chat(n), **options) for n in range(12)] for _ in range(2))

    await asyncio.gather(*(finish_job(runner, one) for one in own_jobs))
    await asyncio.gather(*(finish_job(reference, one) for one in other))

    assert [one.ids for one in own_jobs] == [one.ids for one in other]
    assert "stop" in {one.end("text")["finish_reason"] for one in own_jobs}


async def test_a_stop_string_ends_the_text_before_it(runner: VllmRunner, reference: ThinkRunner) -> None:
    free = await finish_job(reference, make_chat_job(make_text_chat(4), max_tokens=30))
    stop = free.text[len(free.text) // 2 : len(free.text) // 2 + 5]

    own_job, other = await run_both(
        runner, reference, lambda: make_chat_job(make_text_chat(4), max_tokens=30, stop=[stop])
    )

    assert own_job.text == other.text == free.text[: free.text.index(stop)]
    assert own_job.end_of_answer("text") == other.end_of_answer("text")
    await wait_until(lambda: runner.stats()["used"] == 0)


async def test_sampling_depends_on_the_seed_and_not_on_company(runner: VllmRunner) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 24}
    lonely = [await finish_job(runner, make_chat_job(make_text_chat(4), seed=seed, **settings)) for seed in (1, 2)]

    company = [make_chat_job(make_text_chat(4), seed=seed, **settings) for seed in (1, 2, 1)]
    await asyncio.gather(*(finish_job(runner, one) for one in [*make_mixed_jobs(4), *company]))

    assert [one.ids for one in company] == [lonely[0].ids, lonely[1].ids, lonely[0].ids]
    assert lonely[0].ids != lonely[1].ids


async def test_equal_rows_on_another_grid_are_another_picture(runner: VllmRunner, reference: ThinkRunner) -> None:
    lying, standing = make_embedding(3, 2, 3), make_embedding(3, 3, 2)
    assert np.array_equal(lying.array, standing.array)

    for item in (lying, standing, lying):
        own_job, other = await run_both(
            runner, reference, lambda item=item: make_chat_job(make_picture_chat(3), [item])
        )
        assert own_job.ids == other.ids


def make_nan() -> Item:
    return make_embedding(1)._replace(array=np.full((6, 64), np.nan, np.float32))


MALFORMED = {
    "too few rows": make_embedding(1)._replace(array=np.ones((5, 64), np.float32)),
    "another width": make_embedding(1)._replace(array=np.ones((6, 32), np.float32)),
    "whole numbers": make_embedding(1)._replace(array=np.ones((6, 64), np.int32)),
    "one dimension": make_embedding(1)._replace(array=np.ones(384, np.float32)),
    "no array": make_embedding(1)._replace(array=None),
    "not numbers": make_nan(),
    "no grid": Item({"modality": "image"}, make_embedding(1).array),
    "a video": Item({**make_embedding(1).data, "modality": "video"}, make_embedding(1).array),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_embedding_is_refused_and_the_engine_hears_nothing_of_it(
    runner: VllmRunner, name: str
) -> None:
    token_count = runner.stats()["prompt_tokens"]

    with pytest.raises(BadRequest):
        await finish_job(runner, make_chat_job(make_picture_chat(1), [MALFORMED[name]]))

    assert runner.stats()["prompt_tokens"] == token_count
    assert list_descriptors() == []


async def test_a_prompt_over_the_context_is_refused(runner: VllmRunner) -> None:
    with pytest.raises(ContextTooLong, match=str(CONTEXT)):
        await finish_job(runner, make_chat_job([{"role": "user", "content": "mat " * 1200}]))


async def test_a_cancelled_request_stops_within_a_step_and_lets_go_of_everything(runner: VllmRunner) -> None:
    long = make_chat_job(make_picture_chat(1), [make_embedding(1)], max_tokens=900)
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["text"].until(3)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    count = len(long.ids)
    after = await finish_job(runner, make_chat_job(make_text_chat(2), max_tokens=5))

    assert len(after.ids) == 5
    assert running.cancelled()
    assert count < 900
    await wait_until(lambda: runner.stats()["used"] == 0)
    assert list_descriptors() == []


async def test_one_cancelled_before_its_first_token_harms_nobody(runner: VllmRunner, reference: ThinkRunner) -> None:
    cancel_tasks = [
        asyncio.create_task(finish_job(runner, make_chat_job(make_picture_chat(2), [make_embedding(9 + n)])))
        for n in range(16)
    ]
    good = make_mixed_jobs(6)
    other_tasks = [asyncio.create_task(finish_job(runner, one)) for one in good]
    for n, task in enumerate(cancel_tasks):
        for _ in range(n % 5):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*cancel_tasks, return_exceptions=True)
    await asyncio.gather(*other_tasks)

    own_job, other = await run_both(runner, reference, lambda: make_chat_job(make_picture_chat(2), [make_embedding(9)]))

    assert own_job.ids == other.ids
    reference_jobs = make_mixed_jobs(6)
    await asyncio.gather(*(finish_job(reference, one) for one in reference_jobs))
    assert [one.ids for one in good] == [one.ids for one in reference_jobs]
    # A cancelled task keeps its frames, and with them a request that a thread had just read.
    cancel_tasks.clear()
    del task
    gc.collect()
    assert list_descriptors() == []


async def test_neither_process_keeps_memory_of_requests_that_are_over(runner: VllmRunner) -> None:
    await asyncio.gather(
        *(finish_job(runner, make_chat_job(make_picture_chat(1), [make_embedding(40 + n)])) for n in range(24))
    )

    await finish_job(
        runner, make_chat_job(make_text_chat(1), max_tokens=8)
    )  # steps after which it cannot be needed any more

    assert list_descriptors() == []
    assert list_descriptors(engine_core(list_children()).pid) == []


async def test_an_engine_that_dies_fails_what_runs_and_serves_again(runner: VllmRunner, reference: ThinkRunner) -> None:
    jobs = [make_chat_job(make_picture_chat(1), [make_embedding(n)], max_tokens=900) for n in range(4)]
    running = [asyncio.create_task(finish_job(runner, one)) for one in jobs]
    await asyncio.gather(*(one.outputs["text"].until(2) for one in jobs))

    engine_core(list_children()).send_signal(signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 10)

    assert {type(result) for result in results} == {StageUnavailable}
    assert {result.stage for result in results if isinstance(result, StageUnavailable)} == {"thinker"}
    await wait_until(lambda: not runner.serving)
    with pytest.raises(StageUnavailable, match="is restarting"):
        await finish_job(runner, make_chat_job(make_text_chat(1)))
    await wait_until(lambda: runner.serving, _BACK_WITHIN)
    own_job, other = await run_both(runner, reference, lambda: make_chat_job(make_picture_chat(2), [make_embedding(5)]))
    assert own_job.ids == other.ids
    assert runner.stats()["restarts"] == 1
    assert list_descriptors() == []


async def test_closing_fails_what_still_runs_and_leaves_no_process(vl: Path, runner: VllmRunner) -> None:
    long = make_chat_job(make_text_chat(1), max_tokens=900)
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["text"].until(1)
    core = engine_core(list_children())

    await runner.close()

    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], StageUnavailable)
    await asyncio.to_thread(core.wait, 10)
