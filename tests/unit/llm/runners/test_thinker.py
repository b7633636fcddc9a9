"""A thinker under load answers every request as if it were alone."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, ContextTooLong, Fatal, Rejected
from omnibus.executor.job_clock import JobClock, set_current_clock
from omnibus.executor.runner import Item
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Encoded, Thinker
from omnibus_models.families import load_family
from tests.unit.jobs import MemoryJob, MemoryPipe, finish_job
from tests.unit.llm.conftest import decode_greedily

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

TEXT = "the quick brown fox jumps over the lazy dog and the small white cat sleeps on a warm red mat"
WORDS = TEXT.split()


def make_text_chat(number: int) -> list[dict[str, object]]:
    return [{"role": "user", "content": " ".join(WORDS[: 2 + number % 17])}]


def make_picture_chat(number: int) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": "image"}, *({"type": "text", "text": w} for w in WORDS[:number])]}]


def make_embedding(seed: int, rows: int = 2, columns: int = 3) -> Item:
    """Return a vision encoder's output for ``rows`` by ``columns`` tokens."""
    array = np.random.default_rng(seed).normal(size=(rows * columns, 64)).astype(np.float32)
    array.setflags(write=False)
    meta = {"modality": "image", "n_tokens": len(array), "grid_thw": [1, rows * 2, columns * 2]}
    return Item(meta, array)


def make_chat_job(messages: object, items: list[Any] | None = None, **params: Any) -> MemoryJob:
    inputs = {"messages": messages, "params": {"max_tokens": 16, "ignore_eos": True, **params}}
    return MemoryJob(inputs if items is None else {**inputs, "items": items})


def make_mixed_jobs(count: int) -> list[MemoryJob]:
    """Return requests of different lengths; every third has an image."""
    return [
        make_chat_job(make_picture_chat(n % 5), [make_embedding(n, 2 + n % 2)], max_tokens=4 + n)
        if n % 3 == 0
        else make_chat_job(make_text_chat(n), max_tokens=3 + 2 * n)
        for n in range(count)
    ]


def answer_alone(thinker: Thinker, job: MemoryJob) -> list[int]:
    """Return the plain loop's answer to a job."""
    items = job.inputs.get("items", [])
    media = [Encoded(torch.tensor(item.array), item.data) for item in items]
    prefill = thinker.assemble_prefill(thinker.prompt(job.inputs["messages"]), media)
    params = job.inputs["params"]
    return decode_greedily(thinker, prefill, params["max_tokens"], () if params["ignore_eos"] else thinker.eos)


async def test_the_seconds_of_all_requests_are_those_that_the_engine_computed(runner: ThinkRunner) -> None:
    """Each is charged its part of the steps. The engine is a step of about a hundred ahead of the last answer's end."""
    clocks: list[JobClock] = []

    async def run_charged(one: MemoryJob) -> None:
        clock = JobClock()
        clocks.append(clock)
        set_current_clock(clock)
        await finish_job(runner, one)
        clock.closed = True

    await asyncio.gather(*map(run_charged, make_mixed_jobs(12)))

    assert sum(clock.seconds for clock in clocks) == pytest.approx(runner.busy, rel=0.03)
    assert all(clock.seconds for clock in clocks)


@pytest.mark.numeric
async def test_sixteen_mixed_requests_that_join_and_leave_equal_single_runs(
    runner: ThinkRunner, thinker: Thinker
) -> None:
    jobs = make_mixed_jobs(16)
    running = []

    for number, one in enumerate(jobs):
        running.append(asyncio.create_task(finish_job(runner, one)))
        if number % 4 == 3:
            await one.outputs["text"].until(2)
    await asyncio.gather(*running)

    for one in jobs:
        assert one.ids == answer_alone(thinker, one)
        assert one.text == thinker.decode_ids(one.ids)
        assert one.end("text")["finish_reason"] == "length"
    sizes = [int(size) for size in runner.stats()["batches"]]
    assert max(sizes) == 5
    assert len(sizes) > 2


def test_the_memory_of_a_token_is_that_of_its_keys_and_values(runner: ThinkRunner, vl: Path) -> None:
    whole = json.loads((vl / "config.json").read_text())
    stats, config = runner.stats(), whole.get("text_config", whole)
    width = config["hidden_size"] // config["num_attention_heads"]

    assert stats["kv_bytes_per_token"] == 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * width
    rows = stats["slots"] + 1  # one is reserved for a tenant without running work
    assert stats["kv_bytes"] == stats["kv_bytes_per_token"] * rows * runner._core.context
    assert "gpu_bytes" not in stats


@pytest.mark.numeric
@pytest.mark.parametrize("share", [1, 7, 4096])
async def test_a_prompt_in_shares_gives_the_same_answer(vl, thinker: Thinker, share: int) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=2, share=share)))
    await runner.load()
    jobs = [make_chat_job(make_picture_chat(3), [make_embedding(1)]), make_chat_job(make_text_chat(9))]

    await asyncio.gather(*(finish_job(runner, one) for one in jobs))
    await runner.close()

    assert [one.ids for one in jobs] == [answer_alone(thinker, one) for one in jobs]


async def test_the_end_of_turn_stops_the_answer_and_is_an_id_without_text(
    runner: ThinkRunner, thinker: Thinker
) -> None:
    jobs = [make_chat_job(make_dialogue(number), ignore_eos=False, max_tokens=40) for number in range(40)]
    await asyncio.gather(*(finish_job(runner, one) for one in jobs))
    ended_job = next(one for one in jobs if one.end("text")["finish_reason"] == "stop")

    assert ended_job.ids == answer_alone(thinker, ended_job)
    assert ended_job.ids[-1] in thinker.eos
    assert ended_job.text == thinker.decode_ids(ended_job.ids[:-1])
    assert ended_job.end("text")["usage"]["completion_tokens"] == len(ended_job.ids)


def make_dialogue(number: int) -> list[dict[str, object]]:
    return [
        *make_text_chat(number),
        {"role": "assistant", "content": WORDS[number % 19]},
        {"role": "user", "content": "yes?"},
    ]


@pytest.mark.numeric
async def test_media_that_come_late_are_waited_for_and_counted(runner: ThinkRunner, thinker: Thinker) -> None:
    late = MemoryPipe()
    one = make_chat_job(make_picture_chat(2), [late])

    running = asyncio.create_task(finish_job(runner, one))
    other = await finish_job(runner, make_chat_job(make_text_chat(3)))
    late.feed(make_embedding(5), last=True)
    await running

    assert other.end("text")["usage"]["image_tokens"] == 0
    reference_job = make_chat_job(make_picture_chat(2), [make_embedding(5)])
    assert one.ids == answer_alone(thinker, reference_job)
    usage = one.end("text")["usage"]
    assert usage["image_tokens"] == 6
    assert usage["prompt_tokens"] == len(thinker.prompt(make_picture_chat(2)).ids) + 5
    assert usage["completion_tokens"] == 16


async def test_another_picture_changes_the_answer(runner: ThinkRunner) -> None:
    first = await finish_job(runner, make_chat_job(make_picture_chat(2), [make_embedding(1)]))
    second = await finish_job(runner, make_chat_job(make_picture_chat(2), [make_embedding(2)]))

    assert first.ids != second.ids


@pytest.mark.numeric
async def test_messages_may_come_as_bytes(runner: ThinkRunner) -> None:
    body = Item({}, np.frombuffer(json.dumps(make_text_chat(4)).encode(), np.uint8))

    assert (await finish_job(runner, make_chat_job(body))).ids == (
        await finish_job(runner, make_chat_job(make_text_chat(4)))
    ).ids


async def test_sampling_depends_on_the_seed_and_not_on_company(runner: ThinkRunner) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 24}
    lonely = [await finish_job(runner, make_chat_job(make_text_chat(4), seed=seed, **settings)) for seed in (1, 2)]

    crowd = make_mixed_jobs(8)
    company = [make_chat_job(make_text_chat(4), seed=seed, **settings) for seed in (1, 2, 1)]
    await asyncio.gather(*(finish_job(runner, one) for one in [*crowd[:4], *company, *crowd[4:]]))

    assert [one.ids for one in company] == [lonely[0].ids, lonely[1].ids, lonely[0].ids]
    assert lonely[0].ids != lonely[1].ids


@pytest.mark.numeric
async def test_without_a_seed_the_invocation_decides(runner: ThinkRunner) -> None:
    inputs = {"messages": make_text_chat(4), "params": {"max_tokens": 16, "temperature": 1.0, "ignore_eos": True}}

    answers = [await finish_job(runner, MemoryJob(inputs, seed=seed)) for seed in (1, 1, 2)]

    assert answers[0].ids == answers[1].ids != answers[2].ids


@pytest.mark.numeric
async def test_a_stop_string_across_tokens_ends_the_text_before_it(runner: ThinkRunner, thinker: Thinker) -> None:
    free = await finish_job(runner, make_chat_job(make_text_chat(4), max_tokens=30))
    middle = len(thinker.decode_ids(free.ids[:10]))
    stop = free.text[middle - 2 : middle + 3]

    stopped_job = await finish_job(runner, make_chat_job(make_text_chat(4), max_tokens=30, stop=[stop]))

    assert stopped_job.text == free.text[: free.text.index(stop)]
    assert stopped_job.end("text")["finish_reason"] == "stop"
    assert stopped_job.ids == free.ids[: len(stopped_job.ids)]
    assert stop in thinker.decode_ids(stopped_job.ids)
    assert stop not in thinker.decode_ids(stopped_job.ids[:-1])


class GatedSendJob(MemoryJob):
    """A request whose chunks are not taken until ``gate`` opens."""

    gate: asyncio.Event

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await self.gate.wait()
        await super().send(output, data, array)


async def test_tokens_behind_a_stop_string_are_dropped_when_the_reader_is_slow(
    runner: ThinkRunner, thinker: Thinker
) -> None:
    free = make_chat_job(make_text_chat(4), max_tokens=30)
    await finish_job(runner, free)
    middle = len(thinker.decode_ids(free.ids[:10]))
    stop = free.text[middle - 2 : middle + 3]
    slow = GatedSendJob(
        {"messages": make_text_chat(4), "params": {"max_tokens": 30, "ignore_eos": True, "stop": [stop]}}
    )
    slow.gate = asyncio.Event()

    running = asyncio.create_task(finish_job(runner, slow))
    await finish_job(runner, make_chat_job(make_text_chat(4), max_tokens=40))
    slow.gate.set()
    await running

    assert slow.text == free.text[: free.text.index(stop)]
    assert stop not in thinker.decode_ids(slow.ids[:-1])
    assert slow.end("text")["usage"]["completion_tokens"] == len(slow.ids) < 30


@pytest.mark.numeric
async def test_an_embedding_of_nan_fails_only_its_own_request(runner: ThinkRunner, thinker: Thinker) -> None:
    poison = make_embedding(1)._replace(array=np.full((6, 64), np.nan, np.float32))
    good = make_mixed_jobs(6)
    bad = make_chat_job(make_picture_chat(1), [poison])

    results = await asyncio.gather(*(finish_job(runner, one) for one in [bad, *good]), return_exceptions=True)
    after = await finish_job(runner, make_chat_job(make_text_chat(7)))

    assert isinstance(results[0], Fatal)
    assert [one.ids for one in good] == [answer_alone(thinker, one) for one in good]
    assert after.ids == answer_alone(thinker, after)


async def test_max_tokens_none_is_the_rest_of_the_context(vl) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=1, context=64)))
    await runner.load()

    one = await finish_job(runner, make_chat_job(make_text_chat(1), max_tokens=None))

    usage = one.end("text")["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 64
    await runner.close()


async def test_max_tokens_over_the_context_names_the_largest(runner: ThinkRunner) -> None:
    length = (await finish_job(runner, make_chat_job(make_text_chat(1)))).end("text")["usage"]["prompt_tokens"]

    with pytest.raises(BadRequest, match=f"at most {512 - length}") as caught:
        await finish_job(runner, make_chat_job(make_text_chat(1), max_tokens=512))

    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize("param", ["messages", "say"])
async def test_a_text_far_over_the_context_is_refused_before_it_is_tokenised(
    runner: ThinkRunner, monkeypatch: pytest.MonkeyPatch, param: str
) -> None:
    giant, read, thinker = "the fox " * 500_000, [], runner._core.thinker
    tokenise = thinker._tokenizer._encode_plus

    def count_text(text: Any, *args: Any, **options: Any) -> Any:
        read.append(len(text))
        return tokenise(text, *args, **options)

    monkeypatch.setattr(thinker._tokenizer, "_encode_plus", count_text)
    request = (
        make_chat_job([{"role": "user", "content": giant}])
        if param == "messages"
        else make_chat_job(make_text_chat(1), say=giant[:60_000])
    )

    with pytest.raises(ContextTooLong) as caught:
        await finish_job(runner, request)

    assert caught.value.param == param
    assert sum(read) < 100_000


async def test_a_prompt_that_nobody_waits_for_is_not_tokenised(
    runner: ThinkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, release_event, read = runner._core, threading.Event(), []
    prompt = core.thinker.prompt
    monkeypatch.setattr(core.thinker, "prompt", lambda *args: read.append(args) or prompt(*args))
    core._words.submit(release_event.wait, 60)  # another request's prompt
    waiting = [asyncio.create_task(finish_job(runner, make_chat_job(make_text_chat(number)))) for number in range(3)]
    while core._words._work_queue.qsize() < 3:
        await asyncio.sleep(0.001)

    for left in waiting[:2]:
        left.cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    release_event.set()
    await waiting[2]

    assert len(read) == 1


async def test_a_prompt_over_the_context_is_refused(runner: ThinkRunner) -> None:
    with pytest.raises(ContextTooLong, match="512"):
        await finish_job(runner, make_chat_job([{"role": "user", "content": "mat " * 600}]))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"colour": 1}, "colour"),
        ([], "params"),
    ],
)
async def test_a_wrong_parameter_is_named(runner: ThinkRunner, params: object, name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await finish_job(runner, MemoryJob({"messages": make_text_chat(1), "params": params}))

    assert caught.value.param == name


@pytest.mark.parametrize("messages", ["hello", None, ["hello"], Item({}, np.frombuffer(b"\xff[", np.uint8))])
async def test_wrong_messages_are_refused(runner: ThinkRunner, messages: object) -> None:
    with pytest.raises(BadRequest):
        await finish_job(runner, make_chat_job(messages))


async def test_only_what_comes_after_loading_counts_as_busy(runner: ThinkRunner) -> None:
    before = runner.busy
    await finish_job(runner, make_chat_job(make_text_chat(3)))

    assert before == 0.0
    assert runner.busy > 0.0


# Given answers


def make_say_inputs(text: str, **params: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "say it"}], "params": {"say": text, **params}, "voice": "Chelsie"}


@pytest.mark.parametrize("params", [{}, {"max_tokens": 3}, {"temperature": 1.5, "repetition_penalty": 2.0}])
async def test_a_given_answer_is_said_word_for_word(runner: ThinkRunner, thinker: Thinker, params: dict[str, object]):
    one = await finish_job(runner, MemoryJob(make_say_inputs("hello world, the cat sat on the mat.", **params)))

    assert one.text == "hello world, the cat sat on the mat."
    assert one.ids[:-1] == [*thinker.encode_text("hello world, the cat sat on the mat.")]
    assert one.ids[-1] in thinker.eos
    assert one.end("text")["finish_reason"] == "stop"


@pytest.mark.numeric
async def test_a_given_answer_has_the_rows_of_that_answer(omni_runner: ThinkRunner, omni: Path):
    wants = ("prompt", "layout", "rows")
    spoken_job = await finish_job(omni_runner, MemoryJob(make_say_inputs("hello world"), wants=wants))

    other = await finish_job(omni_runner, MemoryJob(make_say_inputs("hello there"), wants=wants))

    thinker = load_family("qwen2_5_omni").load("thinker", omni)
    rows = spoken_job.whole("rows")
    assert len(rows) == len(thinker.encode_text("hello world"))
    np.testing.assert_array_equal(spoken_job.array("prompt"), other.array("prompt"))
    assert not np.allclose(rows[-1], other.whole("rows")[-1])


@pytest.mark.parametrize(
    ("text", "message"),
    [("word " * 600, "shorter text"), ("", "say"), (7, "say")],
)
async def test_what_cannot_be_said_is_refused(runner: ThinkRunner, text: object, message: str):
    with pytest.raises(Rejected, match=message):
        await finish_job(runner, MemoryJob(make_say_inputs(text)))  # type: ignore[arg-type]

    assert await finish_job(runner, MemoryJob(make_say_inputs("still here"))) is not None
