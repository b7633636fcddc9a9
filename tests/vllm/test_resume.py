"""A vLLM language model resumes after the tokens of a lost executor.

It needs one prefill.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from omnibus_llm.vllm.runner import VllmRunner
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves
from tests.unit.llm.runners.test_thinker import make_embedding, make_picture_chat
from tests.vllm.conftest import IN_PROCESS, list_descriptors, start_vllm
from tests.vllm.halves import Three, start_three

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "top_p": 0.9},
    "sampled with a penalty": {"temperature": 1.0, "repetition_penalty": 1.2, "seed": 3},
    "greedy with a penalty": {"repetition_penalty": 1.4},
    "few tokens": {"max_tokens": 5},
    "to the end": {"ignore_eos": False, "max_tokens": None},
}
SPEECH = ("prompt", "layout", "rows")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(vl: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm("qwen2_5_vl", vl, batch=8) as new_runner:
        yield new_runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vl_three(vl: Path) -> AsyncIterator[Three]:
    async with start_three("qwen2_5_vl", vl) as new_engines:
        yield new_engines


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speaker(omni: Path) -> AsyncIterator[VllmRunner]:
    async with start_vllm("qwen2_5_omni", omni) as new_runner:
        yield new_runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def omni_three(omni: Path) -> AsyncIterator[Three]:
    async with start_three("qwen2_5_omni", omni) as new_engines:
        yield new_engines


def make_resume(ids: list[int] | None) -> dict[str, Any]:
    """Tokens ``ids`` of an earlier attempt."""
    return {"text": {"ids": ids}} if ids else {}


def make_request(ids: list[int] | None = None, prompt: dict[str, Any] | None = None, **params: Any) -> MemoryJob:
    """A request with an image; an earlier attempt generated ``ids``."""
    inputs = prompt or {"messages": make_picture_chat(3), "items": [make_embedding(1)]}
    return MemoryJob(
        {**inputs, "params": {"max_tokens": 40, "ignore_eos": True, **params}}, resumes=make_resume(ids), seed=11
    )


def make_spoken(ids: list[int] | None = None, **params: Any) -> MemoryJob:
    inputs = {
        "messages": [{"role": "user", "content": "the quick brown fox"}],
        "params": {"max_tokens": 24, "ignore_eos": True, **params},
        "voice": "Chelsie",
    }
    return MemoryJob(inputs, wants=SPEECH, resumes=make_resume(ids))


async def run_resumed(halves: Halves, again: MemoryJob, *wants: str) -> tuple[MemoryJob, MemoryJob]:
    """Both halves, which begin after the tokens of an earlier attempt."""
    first, second = halves.jobs(again, *wants)
    first._resumes = second._resumes = again._resumes
    await asyncio.gather(finish_job(halves.prefill, first), finish_job(halves.decode, second))
    return first, second


def count_generated(runner: Any) -> int:
    """Tokens that its engine has generated so far."""
    return int(runner.stats()["tokens"])


def read_answer(job: MemoryJob) -> tuple[list[int], str, dict[str, Any]]:
    usage = job.end("text")["usage"]
    assert usage.get("cached_tokens", 0) <= usage["prompt_tokens"]
    return job.ids, job.text, job.end_of_answer("text")


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("part", [0.1, 0.5, 1.0])
async def test_an_answer_that_begins_behind_its_own_tokens_is_the_same(
    runner: VllmRunner, name: str, part: float
) -> None:
    whole = await finish_job(runner, make_request(**SETTINGS[name]))
    ids = whole.ids[: max(1, int(part * len(whole.ids)))]
    before = count_generated(runner)

    again = await finish_job(runner, make_request(ids, **SETTINGS[name]))

    assert read_answer(again) == read_answer(whole)
    assert 0 < count_generated(runner) - before <= len(whole.ids) - len(ids) + 1, "what is known is not generated again"
    assert list_descriptors() == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_prompts_and_tokens_of_several_steps(runner: VllmRunner, vl_three: Three, temperature: float) -> None:
    # More tokens than a step takes (``small_caches``), and none that the second engine's prefix cache has.
    words = f"{temperature} " + "the small cat sleeps on a warm red mat " * 30
    prompt = {"messages": [{"role": "user", "content": words}], "items": []}
    settings = {"prompt": prompt, "max_tokens": 200, "temperature": temperature}
    whole = await vl_three.halves(near=True).answer(make_request(**settings))

    again = await finish_job(runner, make_request(whole.ids[:150], **settings))

    assert read_answer(again) == read_answer(whole)


async def test_a_stop_string_that_begins_before_the_seam_ends_the_answer(runner: VllmRunner) -> None:
    free = await finish_job(runner, make_request())
    stop = free.text[len(free.text) // 2 :][:8]
    whole = await finish_job(runner, make_request(stop=[stop]))
    assert whole.end("text")["finish_reason"] == "stop"
    assert len(whole.ids) < len(free.ids)

    for count in range(len(whole.ids) - 4, len(whole.ids) + 1):
        again = await finish_job(runner, make_request(whole.ids[:count], stop=[stop]))
        assert read_answer(again) == read_answer(whole)


@pytest.mark.parametrize("shape", ["P>D", "PD"])
@pytest.mark.parametrize("name", SETTINGS)
async def test_both_halves_begin_behind_the_tokens(vl_three: Three, name: str, shape: str) -> None:
    halves = vl_three.halves(near=shape == "PD")
    whole = await halves.answer(make_request(**SETTINGS[name]))
    ids = whole.ids[: (len(whole.ids) + 1) // 2]
    before = count_generated(halves.decode)

    _, again = await run_resumed(halves, make_request(ids, **SETTINGS[name]))

    assert read_answer(again) == read_answer(whole)
    assert count_generated(halves.decode) - before <= len(whole.ids) - len(ids) + 1
    await vl_three.until_idle()
    assert list_descriptors() == []


async def test_a_talker_gets_the_rows_of_all_tokens(speaker: VllmRunner) -> None:
    whole = await finish_job(speaker, make_spoken())

    again = await finish_job(speaker, make_spoken(whole.ids[:13]))

    assert read_answer(again) == read_answer(whole)
    assert np.array_equal(again.array("layout"), whole.array("layout"))
    for output in ("prompt", "rows"):
        np.testing.assert_allclose(again.whole(output), whole.whole(output), rtol=0, atol=1e-4)


@pytest.mark.parametrize("params", [{}, {"repetition_penalty": 1.3}])
@pytest.mark.parametrize("shape", ["P>D", "PD"])
async def test_the_talker_of_both_halves_gets_the_rows_of_all_tokens(
    omni_three: Three, shape: str, params: dict[str, Any]
) -> None:
    halves = omni_three.halves(near=shape == "PD")
    whole = await halves.answer(make_spoken(**params), *SPEECH)
    prompt = halves.made[-1][0].array("prompt")

    first, again = await run_resumed(halves, make_spoken(whole.ids[:13], **params), *SPEECH)

    assert read_answer(again) == read_answer(whole)
    np.testing.assert_allclose(first.array("prompt"), prompt, rtol=0, atol=1e-4)
    np.testing.assert_allclose(again.whole("rows"), whole.whole("rows"), rtol=0, atol=1e-4)
    await omni_three.until_idle()
    assert list_descriptors() == []
