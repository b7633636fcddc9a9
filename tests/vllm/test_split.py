"""Prefill and decode in separate vLLM engines give the whole model's answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from omnibus.errors import BadRequest, ProtocolError, StageUnavailable
from omnibus.executor.runner import Item
from omnibus.executor.settings import ExecutorSettings
from omnibus_llm.runners.thinker import ThinkRunner
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves
from tests.unit.llm.runners.test_thinker import (
    make_chat_job,
    make_embedding,
    make_mixed_jobs,
    make_picture_chat,
    make_text_chat,
)
from tests.vllm.conftest import IN_PROCESS, list_descriptors, start_transformers
from tests.vllm.halves import Three, start_three

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vl_three(vl: Path) -> AsyncIterator[Three]:
    async with start_three("qwen2_5_vl", vl) as new_engines:
        yield new_engines


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(vl: Path) -> AsyncIterator[ThinkRunner]:
    async with start_transformers("qwen2_5_vl", vl) as new_reference:
        yield new_reference


@pytest.fixture(params=["P>D", "PD"])
def shape(request: pytest.FixtureRequest) -> str:
    """Apart, or together in one engine."""
    return str(request.param)


@pytest.fixture
def halves(shape: str, vl_three: Three) -> Halves:
    return vl_three.halves(near=shape == "PD")


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens")
async def test_halves_say_what_transformers_says(halves: Halves, vl_three: Three, reference: ThinkRunner) -> None:
    jobs, wholes = make_mixed_jobs(20), make_mixed_jobs(20)

    answers = await asyncio.gather(*(halves.answer(one) for one in jobs))
    await asyncio.gather(*(finish_job(reference, one) for one in wholes))

    assert [one.ids for one in answers] == [one.ids for one in wholes]
    assert [(one.text, one.end_of_answer("text")) for one in answers] == [
        (one.text, one.end_of_answer("text")) for one in wholes
    ]
    await vl_three.until_idle()
    assert list_descriptors() == []


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens")
@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.4},
        {"max_tokens": 1},
        {"max_tokens": None},
        {"max_tokens": 60, "ignore_eos": False, "repetition_penalty": 1.3},
    ],
)
async def test_halves_take_the_settings_of_a_thinker(
    halves: Halves, reference: ThinkRunner, params: dict[str, Any]
) -> None:
    whole = await finish_job(
        reference, make_chat_job(make_picture_chat(2), [make_embedding(1)], **{"max_tokens": 24, **params})
    )

    answer = await halves.answer(
        make_chat_job(make_picture_chat(2), [make_embedding(1)], **{"max_tokens": 24, **params})
    )

    assert answer.ids == whole.ids
    assert (answer.text, answer.end_of_answer("text")) == (whole.text, whole.end_of_answer("text"))


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens", shape="P>D")
async def test_equal_words_under_other_pictures_are_other_prompts(vl_three: Three, reference: ThinkRunner) -> None:
    halves = vl_three.halves()

    answers = [
        await halves.answer(make_chat_job(make_picture_chat(3), [make_embedding(seed, 8, 8)])) for seed in (1, 2, 1)
    ]

    wholes = [
        await finish_job(reference, make_chat_job(make_picture_chat(3), [make_embedding(seed, 8, 8)]))
        for seed in (1, 2, 1)
    ]
    assert [one.ids for one in answers] == [one.ids for one in wholes]
    assert answers[0].ids != answers[1].ids


@pytest.mark.cell("vllm", "qwen2_5_vl", "sampled", shape=("P>D", "PD"))
@pytest.mark.parametrize("settings", [{"top_p": 0.9}, {"top_k": 20, "seed": 5}, {"repetition_penalty": 1.2}])
async def test_sampled_answers_do_not_depend_on_where_decode_is(vl_three: Three, settings: dict[str, Any]) -> None:
    def make_request() -> MemoryJob:
        return make_chat_job(make_picture_chat(2), [make_embedding(4)], max_tokens=24, temperature=1.0, **settings)

    near = await vl_three.halves(near=True).answer(make_request())
    far = await vl_three.halves().answer(make_request())

    assert far.ids == near.ids
    assert len(set(far.ids)) > 1


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens", shape="P>D")
async def test_a_long_prompt_in_several_steps_goes_whole(vl_three: Three, reference: ThinkRunner) -> None:
    messages = [{"role": "user", "content": "the small cat sleeps on a warm red mat " * 30}]

    answers = await asyncio.gather(*(vl_three.halves().answer(make_chat_job(messages)) for _ in range(3)))

    whole = await finish_job(reference, make_chat_job(messages))
    assert [one.ids for one in answers] == [whole.ids] * 3


async def test_decode_asks_for_a_cache_when_it_has_room_and_lets_go_of_it_at_once(vl_three: Three) -> None:
    halves = vl_three.halves()
    jobs = [halves.jobs(make_chat_job(make_text_chat(n), max_tokens=600)) for n in range(9)]
    running = [asyncio.create_task(finish_job(halves.prefill, first)) for first, _ in jobs]
    await asyncio.gather(*running)
    decoding = [asyncio.create_task(finish_job(halves.decode, second)) for _, second in jobs]
    await asyncio.gather(*(second.outputs["text"].until(3) for _, second in jobs[:8]))

    cache_requests = ["cache" in second.asked for _, second in jobs]
    read = [list(second.read) for _, second in jobs]
    decoding[0].cancel()
    await jobs[8][1].outputs["text"].until(3)
    for task in decoding:
        task.cancel()
    await asyncio.gather(*decoding, return_exceptions=True)

    assert cache_requests == [True] * 8 + [False]
    assert read == [["cache"]] * 8 + [[]]
    await vl_three.until_idle()
    assert list_descriptors() == []


async def test_a_cancelled_request_frees_both_halves(halves: Halves, vl_three: Three) -> None:
    first, second = halves.jobs(make_chat_job(make_text_chat(1), max_tokens=900))
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
    await vl_three.until_idle()
    assert list_descriptors() == []


async def test_a_prefill_whose_decode_never_comes_leaves_the_engine(vl_three: Three) -> None:
    halves = vl_three.halves(near=True)
    first, second = halves.jobs(make_chat_job(make_text_chat(1), max_tokens=900))
    running = asyncio.create_task(finish_job(halves.prefill, first))
    await first.outputs["start"].until(1)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    await vl_three.until_idle()
    with pytest.raises(StageUnavailable, match="is gone"):
        await finish_job(halves.decode, second)


async def test_what_another_engine_or_another_model_made_is_refused(vl_three: Three) -> None:
    halves = vl_three.halves()
    first, _ = halves.jobs(make_chat_job(make_text_chat(3)))
    await finish_job(halves.prefill, first)
    start = first.outputs["start"].items[0]

    foreign = Item({**start.data, "layout": "transformers"})
    with pytest.raises(ProtocolError, match="declare the same engine"):
        await finish_job(halves.decode, MemoryJob({"start": foreign, "params": {}}))
    cut = Item({}, first.array("cache")[:, :-1])
    with pytest.raises(ProtocolError, match="must run one model"):
        await finish_job(halves.decode, MemoryJob({"start": start, "cache": cut, "params": {}}))
    assert list_descriptors() == []


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens", shape="P>D")
async def test_a_preempted_sequence_takes_its_cache_again(vl_three: Three, reference: ThinkRunner) -> None:
    halves = vl_three.halves()
    jobs, wholes = ([make_chat_job(make_text_chat(n), max_tokens=700) for n in range(8)] for _ in range(2))

    answers = await asyncio.gather(*(halves.answer(one) for one in jobs))
    await asyncio.gather(*(finish_job(reference, one) for one in wholes))

    assert [one.ids for one in answers] == [one.ids for one in wholes]
    assert vl_three.far.stats()["preempted"] > 0


async def test_each_half_can_take_the_place_of_the_other_one(vl_three: Three, reference: ThinkRunner) -> None:
    settings = ExecutorSettings()
    prefill = vl_three.far.switch_role("prefill", settings)
    decode = vl_three.prefill.switch_role("decode", settings)
    for runner in (prefill, decode):
        await runner.load()

    answer = await Halves(prefill, decode, near=False).answer(make_chat_job(make_text_chat(7)))

    whole = await finish_job(reference, make_chat_job(make_text_chat(7)))
    assert answer.ids == whole.ids
    assert prefill._core is vl_three.far._core
    with pytest.raises(BadRequest, match="was not started for thinker"):
        decode.switch_role("thinker", settings)
    for runner in (prefill, decode):
        await runner.close()
    assert vl_three.far.serving
