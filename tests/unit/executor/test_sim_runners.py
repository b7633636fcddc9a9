"""Simulated components have the same inputs and outputs as real ones."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from omnibus.errors import BadMedia, BadRequest, ContextTooLong, OmnibusError
from omnibus.executor.job_clock import JobClock, set_current_clock
from omnibus.executor.runner import Item
from omnibus.executor.sim.language import WORDS, SimulatedDecode, SimulatedPrefill
from tests.unit.executor.simulated import (
    THINKER,
    make_chat_job,
    make_media_job,
    make_profile,
    make_row,
    open_bench,
    select_component,
)
from tests.unit.jobs import MemoryJob, MemoryPipe

# Encoders


async def test_an_encoder_turns_media_into_an_embedding_of_the_profiles_shape():
    async with open_bench(make_profile()) as here:
        job = make_media_job(seed=3)
        end_times = await here.run("vision", job)

    [item] = job.outputs["embedding"].items
    assert item.data == {"modality": "image", "n_tokens": 10}
    assert (item.array.shape, item.array.dtype) == ((10, 3), np.float32)
    assert end_times == [2.0]


async def test_an_encoder_serves_batches_of_whoever_waits():
    async with open_bench(make_profile()) as here:
        end_times = await here.run("vision", *(make_media_job() for _ in range(6)))
        stats = here["vision"].stats()

    assert end_times == [5.0] * 4 + [8.0] * 2
    assert stats["batches"] == {"2": 1, "4": 1}
    assert (stats["tokens"], stats["waiting"], stats["seconds"]) == (60, 0, 8.0)


async def test_a_job_begins_with_the_first_batch_that_it_is_in():
    """The service time, from which gateways predict waiting times, starts there."""
    start_times: list[float] = []

    class StartJobClock(JobClock):
        def set_now(self) -> None:
            if not self.began:
                self.began = 1.0
                start_times.append(here.time.passed)

    async def run_job(job: MemoryJob) -> None:
        set_current_clock(StartJobClock())
        await here["vision"].run(job)

    async with open_bench(make_profile()) as here:
        await here["vision"].load()
        await asyncio.gather(*(run_job(make_media_job()) for _ in range(6)))
        assert start_times == [0.0] * 4 + [5.0] * 2

        start_times.clear()
        await here["thinker"].load()
        set_current_clock(StartJobClock())
        await here["thinker"].run(make_chat_job())
        assert start_times == [8.0], "a sequence begins once, whatever steps it takes"


async def test_an_embedding_may_follow_from_the_size_of_its_medium():
    async with open_bench(make_profile(select_component("vision", tokens={"any": {"per": 2}, "audio": 7}))) as here:
        jobs = [make_media_job(b"x" * 10240, "video"), make_media_job(b"x" * 1024), make_media_job(modality="audio")]
        await here.run("vision", *jobs)

    assert [len(job.array("embedding")) for job in jobs] == [20, 2, 7]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (Item({"modality": "image"}), BadMedia),
        ({"modality": "image"}, BadMedia),
        (Item({"modality": "smell"}, np.zeros(3, np.uint8)), BadRequest),
        (Item({}, np.zeros(3, np.uint8)), BadRequest),
    ],
)
async def test_media_that_an_encoder_cannot_read_are_refused(value: Any, error: type[OmnibusError]):
    async with open_bench(make_profile()) as here:
        with pytest.raises(error) as caught:
            await here.run("vision", MemoryJob({"media": value}))

    assert caught.value.param == "media"


# Thinkers


async def test_a_thinker_answers_token_by_token_and_says_what_it_used():
    async with open_bench(make_profile()) as here:
        job = make_chat_job("x" * 40)
        end_times = await here.run("thinker", job)

    items = job.outputs["text"].items
    assert [len(item.data["ids"]) for item in items[:-1]] == [1] * 5
    assert job.text == "".join(f"{WORDS[id]} " for id in job.ids)
    assert job.end("text") == {
        "finish_reason": "stop",
        "usage": {
            "prompt_tokens": 10, "completion_tokens": 5, "image_tokens": 0, "audio_tokens": 0, "video_tokens": 0,
        },
    }  # fmt: skip
    assert end_times == [1.0 + 4 * 1.0]
    assert not job.outputs.keys() & {"rows", "prompt", "layout"}


async def test_an_answer_that_is_known_in_part_goes_on_behind_it():
    async with open_bench(make_profile()) as here:
        whole = make_chat_job(max_tokens=6, ignore_eos=True)
        [alone] = await here.run("thinker", whole)
        ids = [id for item in whole.outputs["text"].items for id in item.data.get("ids", ())]
        rest = make_chat_job(max_tokens=6, ignore_eos=True)
        rest._resumes = {"text": {"ids": ids[:4]}}
        [resumed_time] = await here.run("thinker", rest)

    first = rest.outputs["text"].items[0].data
    assert first["ids"] == ids[:5]  # those again, so that its reader can compare, and a new one
    assert [id for item in rest.outputs["text"].items for id in item.data.get("ids", ())] == ids
    assert resumed_time - alone < alone


async def test_media_count_as_they_came_from_the_encoder():
    items = [Item({"modality": kind}, np.zeros((count, 3), np.float32)) for kind, count in (("image", 10), ("audio", 5), ("image", 1))]  # fmt: skip
    body = json.dumps([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "x" * 80}]}]).encode()
    job = MemoryJob({"messages": Item({}, np.frombuffer(body, np.uint8)), "items": items, "params": None})

    async with open_bench(make_profile()) as here:
        await here.run("thinker", job)

    usage = job.end("text")["usage"]
    assert (usage["prompt_tokens"], usage["image_tokens"], usage["audio_tokens"]) == (36, 11, 5)


async def test_answers_that_come_together_are_stepped_together():
    async with open_bench(make_profile()) as here:
        end_times = await here.run("thinker", *(make_chat_job() for _ in range(5)))
        stats = here["thinker"].stats()

    step = 0.5 + 4 * 0.5
    assert end_times == [1 + 4 * step] * 4 + [1 + 4 * step + 1 + 4 * 1.0]
    assert stats["steps"] == {"1": 4, "4": 4}
    assert stats["batches"] == {"1": 1, "4": 1}
    assert (stats["used"], stats["waiting"], stats["utilisation"]) == (0, 0, 1.0)


async def test_one_that_comes_later_joins_between_two_steps():
    async with open_bench(make_profile()) as here:
        first = await here.begin("thinker", make_chat_job(max_tokens=50, ignore_eos=True))
        while not here.time.passed:
            await asyncio.sleep(0)
        await here.run("thinker", make_chat_job())
        assert not first.done()
        stats = here["thinker"].stats()
        first.cancel()

    assert stats["steps"]["2"] == 4
    assert stats["batches"] == {"1": 2}


@pytest.mark.parametrize(
    ("params", "tokens", "finish"),
    [
        ({}, 5, "stop"),
        ({"max_tokens": 3}, 3, "length"),
        ({"max_tokens": 5}, 5, "stop"),
        ({"max_tokens": 9}, 5, "stop"),
        ({"max_tokens": 9, "ignore_eos": True}, 9, "length"),
        ({"max_tokens": 1}, 1, "length"),
        ({"ignore_eos": True}, 5, "stop"),
        ({"temperature": 0.3, "stop": ["sea"]}, 5, "stop"),
    ],
)
async def test_the_length_of_an_answer_is_drawn_and_cut_as_asked(params: dict, tokens: int, finish: str):
    async with open_bench(make_profile()) as here:
        job = make_chat_job(**params)
        await here.run("thinker", job)

    assert len(job.ids) == tokens
    assert job.end("text")["finish_reason"] == finish


async def test_tokens_that_share_a_message_come_together_but_for_the_first():
    async with open_bench(make_profile(select_component("thinker", chunk=3, steps=9))) as here:
        job = make_chat_job()
        await here.run("thinker", job)

    assert [len(item.data["ids"]) for item in job.outputs["text"].items[:-1]] == [1, 3, 3, 2]


@pytest.mark.parametrize("finish", [1, 6])
async def test_a_thinker_gives_a_talker_its_prompt_and_a_row_for_each_later_token(finish: int):
    async with open_bench(make_profile(select_component("thinker", chunk=2, steps=finish))) as here:
        job = make_chat_job("x" * 16, wants=("text", "rows", "prompt", "layout"))
        await here.run("thinker", job)

    assert job.array("prompt").shape == (4 + 3, 3)
    assert (job.array("layout").shape, job.array("layout").dtype) == ((3, 4), np.int32)
    rows = [len(item.array) for item in job.outputs["rows"].items if item.array is not None]
    assert sum(rows) == finish - 1
    assert job.end("rows") == {"finish": "stop"}


@pytest.mark.parametrize(
    ("inputs", "param"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"messages": Item({}, np.frombuffer(b"\xff{", np.uint8))}, "messages"),
        ({"messages": [], "items": [{"a": 1}]}, "items"),
        ({"messages": [], "items": {"a": 1}}, "items"),
        ({"messages": [], "params": {"max_tokens": 0}}, "params"),
        ({"messages": [], "params": {"max_tokens": "many"}}, "params"),
        ({"messages": [], "params": 3}, "params"),
    ],
)
async def test_what_is_no_prompt_is_refused_with_its_name(inputs: dict, param: str):
    async with open_bench(make_profile()) as here:
        with pytest.raises(BadRequest) as caught:
            await here.run("thinker", MemoryJob(inputs))
        assert here["thinker"].stats()["used"] == 0

    assert caught.value.param == param


async def test_the_context_bounds_prompt_and_answer():
    async with open_bench(make_profile(select_component("thinker", steps=100)), context=20) as here:
        job = make_chat_job("x" * 60)
        await here.run("thinker", job)
        assert (len(job.ids), job.end("text")["finish_reason"]) == (5, "length")
        with pytest.raises(ContextTooLong, match="prompt has 25 tokens and the model's context 20"):
            await here.run("thinker", make_chat_job("x" * 100))
        with pytest.raises(BadRequest, match="leaves 5; send max_tokens of at most 5"):
            await here.run("thinker", make_chat_job("x" * 60, max_tokens=6))


# Prefill and decode


async def test_a_prompt_and_its_answer_may_be_computed_in_two_places():
    halves = {"p": {**THINKER, "kind": "prefill"}, "d": {**THINKER, "kind": "decode"}}
    whole, first = make_chat_job("x" * 40), make_chat_job("x" * 40)
    async with open_bench(make_profile(halves)) as here:
        assert isinstance(here["p"], SimulatedPrefill)
        assert isinstance(here["d"], SimulatedDecode)
        assert await here.run("p", first) == [1.0]
        [start], [cache] = first.outputs["start"].items, first.outputs["cache"].items
        second = MemoryJob({"cache": cache, "start": start, "params": {}})
        assert await here.run("d", second) == [1.0 + 5 * 1.0]
    async with open_bench(make_profile()) as here:
        await here.run("thinker", whole)

    assert cache.array.shape == (10, 3)
    assert second.end("text")["usage"] == whole.end("text")["usage"]
    assert len(second.ids) == len(whole.ids)


async def test_a_prefill_gives_a_talker_its_prompt():
    first = make_chat_job("x" * 40, wants=("cache", "start", "prompt", "layout"))
    async with open_bench(make_profile({"p": {**THINKER, "kind": "prefill"}})) as here:
        await here.run("p", first)

    assert first.array("prompt").shape == (10 + 3, 3)
    assert first.array("layout").shape == (3, 10)


async def test_a_start_without_a_length_is_refused():
    async with open_bench(make_profile({"d": {**THINKER, "kind": "decode"}})) as here:
        with pytest.raises(BadRequest, match="start must say the prompt's length"):
            await here.run("d", MemoryJob({"cache": make_row(), "start": Item({})}))


# Anything else

DENOISER = {
    "slots": 2, "step": {"base": 2.0}, "steps": 6, "chunk": 4, "inputs": ["embeds"],
    "outputs": {
        "latents": {"shape": [2, 3], "dtype": "float16", "data": {"of": "noise"}},
        "progress": {"stream": True},
        "seen": {"data": {"value": 1}},
    },
}  # fmt: skip


async def test_any_other_task_waits_for_its_inputs_and_gives_its_outputs():
    async with open_bench(make_profile({"denoiser": DENOISER})) as here:
        embeds = MemoryPipe()
        job = MemoryJob({"embeds": embeds, "steps": 20})
        task = await here.begin("denoiser", job)
        assert here.time.passed == 0
        embeds.feed(Item({}, np.zeros((4, 4), np.float32)), last=True)
        await task

    [latents] = job.outputs["latents"].items
    assert (latents.data, latents.array.shape, latents.array.dtype) == ({"of": "noise"}, (2, 3), np.float16)
    assert [item.data for item in job.outputs["progress"].items] == [{"step": 4, "steps": 6}, {"step": 6, "steps": 6}]
    assert job.outputs["seen"].items == [Item({"value": 1}, None)]
    assert here.time.passed == 12.0


async def test_any_other_task_may_take_one_batch_that_follows_from_what_it_reads():
    counter = {
        "slots": 4, "batch": {"per_token": 1.0}, "tokens": {"any": {"per": 1}}, "inputs": ["items"], "streams": ["more"],
        "outputs": {"y": {"shape": [1], "stream": True}},
    }  # fmt: skip
    more = MemoryPipe()
    more.feed(Item({}, np.zeros(1024, np.uint8)))
    more.close({})
    async with open_bench(make_profile({"counter": counter})) as here:
        job = MemoryJob({"items": [Item({}, np.zeros(2048, np.uint8)), Item({})], "more": more, "x": 1})
        end_times = await here.run("counter", job)

    assert end_times == [3.0]
    assert [item.data for item in job.outputs["y"].items] == [{"step": 1, "steps": 1}]
    assert here["counter"].stats()["batches"] == {"1": 1}
