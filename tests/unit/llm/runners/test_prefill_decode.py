"""Prefill here and decode there give the thinker's answer, token by token."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import astuple

from omnibus.errors import ProtocolError, StageUnavailable
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Thinker
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves, make_core
from tests.unit.llm.runners.test_thinker import (
    answer_alone,
    make_chat_job,
    make_embedding,
    make_mixed_jobs,
    make_picture_chat,
    make_text_chat,
)

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


@pytest.mark.numeric
async def test_halves_answer_as_single_runs_do(halves: Halves, thinker: Thinker) -> None:
    jobs = make_mixed_jobs(12)

    answers = await asyncio.gather(*(halves.answer(one) for one in jobs))

    for one, answer in zip(jobs, answers, strict=True):
        assert answer.ids == answer_alone(thinker, one)
        assert answer.text == thinker.decode_ids(answer.ids)
    sizes = [int(size) for size in halves.decode.stats()["batches"]]
    assert max(sizes) == 3
    assert halves.prefill.stats()["used"] == halves.decode.stats()["used"] == 0


async def test_passes_and_steps_are_counted(runner: ThinkRunner) -> None:
    before, jobs = (
        runner.batch_counts,
        [make_chat_job(make_text_chat(4), max_tokens=6), make_chat_job(make_text_chat(9), max_tokens=3)],
    )

    for one in jobs:  # one by one: each prompt is one pass, and gives the first token
        await finish_job(runner, one)

    prompts = sum(one.end("text")["usage"]["prompt_tokens"] for one in jobs)
    counts = [after - count for after, count in zip(astuple(runner.batch_counts), astuple(before), strict=True)]
    assert counts == [2, prompts, 7, 7]


async def test_each_half_counts_its_own_batches(halves: Halves) -> None:
    first, second = halves.prefill.batch_counts, halves.decode.batch_counts

    await halves.answer(make_chat_job(make_text_chat(4), max_tokens=6))

    prefill, decode = halves.prefill.batch_counts, halves.decode.batch_counts
    assert (prefill.passes - first.passes, decode.steps - second.steps, decode.rows - second.rows) == (1, 5, 5)
    assert prefill.tokens > first.tokens
    assert (prefill.steps, prefill.rows, decode.passes, decode.tokens) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.8, "top_k": 20, "seed": 5},
        {"repetition_penalty": 1.4},
        {"temperature": 1.0, "repetition_penalty": 1.2, "seed": 3},
        {"max_tokens": 1},
        {"max_tokens": None},
    ],
)
async def test_halves_answer_as_a_thinker_does(halves: Halves, runner: ThinkRunner, params: dict[str, Any]) -> None:
    whole = await finish_job(
        runner, make_chat_job(make_picture_chat(2), [make_embedding(1)], **{"max_tokens": 24, **params})
    )

    answer = await halves.answer(
        make_chat_job(make_picture_chat(2), [make_embedding(1)], **{"max_tokens": 24, **params})
    )

    assert answer.ids == whole.ids
    assert answer.text == whole.text
    assert answer.end("text") == whole.end("text")


async def test_a_given_answer_is_said_by_both_halves(halves: Halves, thinker: Thinker) -> None:
    inputs = {"messages": make_text_chat(3), "params": {"say": "the quick brown fox.", "temperature": 1.0}}

    answer = await halves.answer(MemoryJob(inputs))

    assert answer.text == "the quick brown fox."
    assert answer.ids[:-1] == [*thinker.encode_text("the quick brown fox.")]
    assert answer.end("text")["finish_reason"] == "stop"


async def test_a_stop_string_ends_the_answer_at_the_same_place(halves: Halves, runner: ThinkRunner) -> None:
    free = await finish_job(runner, make_chat_job(make_text_chat(4), max_tokens=30))
    stops = [free.text[:3], free.text[10:14]]
    wholes = [await finish_job(runner, make_chat_job(make_text_chat(4), max_tokens=30, stop=[stop])) for stop in stops]

    answers = [await halves.answer(make_chat_job(make_text_chat(4), max_tokens=30, stop=[stop])) for stop in stops]

    assert [(one.text, one.end("text")) for one in answers] == [(one.text, one.end("text")) for one in wholes]
    assert halves.decode.stats()["used"] == 0


async def test_a_cancelled_request_frees_both_halves(halves: Halves) -> None:
    first, second = halves.jobs(make_chat_job(make_text_chat(1), max_tokens=400))
    running = [
        asyncio.create_task(finish_job(halves.prefill, first)),
        asyncio.create_task(finish_job(halves.decode, second)),
    ]
    await second.outputs["text"].until(3)

    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    following = await halves.answer(make_chat_job(make_text_chat(2), max_tokens=5))

    assert len(following.ids) == 5
    assert halves.prefill.stats()["used"] == halves.decode.stats()["used"] == 0


async def test_a_prefill_whose_decode_never_comes_frees_its_slot(vl: Path) -> None:
    prefill = PrefillRunner(make_core(vl))
    await prefill.load()
    first, _ = Halves(prefill, DecodeRunner(make_core(vl)), near=True).jobs(make_chat_job(make_text_chat(1)))
    running = asyncio.create_task(finish_job(prefill, first))
    await first.outputs["start"].until(1)

    used_slots = prefill.stats()["used"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert used_slots == 1
    assert prefill.stats()["used"] == 0
    await prefill.close()


async def test_a_number_of_another_invocation_is_refused(halves: Halves) -> None:
    start = {"length": 5, "rope_delta": 0, "first_token": 3, "seed": 1, "prompt_tokens": 5, "here": 0}

    with pytest.raises(StageUnavailable, match="is gone"):
        await finish_job(halves.decode, MemoryJob({"start": start, "params": {"max_tokens": 4}}))


@pytest.mark.parametrize("start", [{"length": 3}, "hello", {"length": "3"}])
async def test_a_start_that_no_prefill_made_is_refused(halves: Halves, start: object) -> None:
    with pytest.raises(ProtocolError, match="start is not"):
        await finish_job(halves.decode, MemoryJob({"start": start}))


async def test_a_cache_that_another_engine_has_arranged_is_refused(halves: Halves) -> None:
    start = {"length": 5, "rope_delta": 0, "first_token": 3, "seed": 1, "prompt_tokens": 5, "layout": "vllm 0.32"}

    with pytest.raises(ProtocolError, match="declare the same engine"):
        await finish_job(halves.decode, MemoryJob({"start": start, "params": {"max_tokens": 4}}))


@pytest.fixture(params=["apart", "together"])
async def omni_halves(request: pytest.FixtureRequest, omni: Path) -> AsyncIterator[Halves]:
    near = request.param == "together"
    first = make_core(omni, "qwen2_5_omni")
    runners = Halves(PrefillRunner(first), DecodeRunner(first if near else make_core(omni, "qwen2_5_omni")), near)
    await runners.prefill.load()
    await runners.decode.load()
    yield runners
    await runners.prefill.close()
    await runners.decode.close()


@pytest.mark.numeric
async def test_halves_of_an_omni_model_write_and_speak_as_a_thinker_does(
    omni_halves: Halves, omni_runner: ThinkRunner
) -> None:
    def make_job(*wants: str) -> MemoryJob:
        inputs = {"messages": make_text_chat(5), "params": {"max_tokens": 12, "ignore_eos": True}, "voice": "Chelsie"}
        return MemoryJob(inputs, wants=wants)

    wants = ("prompt", "layout", "rows")
    whole = await finish_job(omni_runner, make_job(*wants))

    answer = await omni_halves.answer(make_job(), *wants)
    silent = await omni_halves.answer(make_job())

    [(first, _), _] = omni_halves.made
    assert answer.ids == silent.ids == whole.ids
    np.testing.assert_array_equal(first.array("layout"), whole.array("layout"))
    np.testing.assert_allclose(first.array("prompt"), whole.array("prompt"), atol=1e-6)
    np.testing.assert_allclose(answer.whole("rows"), whole.whole("rows"), atol=1e-5)
    assert answer.end("rows") == whole.end("rows")
    assert silent.outputs["rows"].items == []
