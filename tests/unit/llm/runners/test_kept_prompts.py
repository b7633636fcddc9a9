"""Turns of a conversation reuse the last prompt, with the same answers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Encoded, Thinker
from tests.close import assert_close
from tests.unit.gateway.realtime.test_early_answers import Ears, start_hearing_gateway
from tests.unit.gateway.realtime_house import open_realtime_call
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves
from tests.unit.llm.runners.test_thinker import TEXT, answer_alone, make_chat_job, make_embedding

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

FIRST = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": f"{TEXT} {TEXT}"}]}]
NEXT = [*FIRST, {"role": "assistant", "content": "a cat"}, {"role": "user", "content": "and the fox?"}]
WANTS = ("prompt", "layout", "rows")


def make_settings(**more: Any) -> ThinkSettings:
    return ThinkSettings(**{"slots": 4, "context": 512, "share": 64, "kept_bytes": 16 << 20, **more})


@pytest.fixture
async def caching_runner(vl: Path) -> AsyncIterator[ThinkRunner]:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", make_settings()))
    await runner.load()
    yield runner
    await runner.close()


def make_turn(messages: object, key: str = "talk", seed: int = 1, **params: Any) -> MemoryJob:
    return make_chat_job(messages, [make_embedding(seed)], **({"cache_key": key} if key else {}), **params)


async def count_cached(runner: ThinkRunner, one: MemoryJob) -> tuple[int, int]:
    """Return the prompt tokens from the cache, and all of them."""
    usage = (await finish_job(runner, one)).end("text")["usage"]
    return usage.get("cached_tokens", 0), usage["prompt_tokens"]


@pytest.mark.numeric
async def test_the_next_turn_begins_behind_the_last_prompt(caching_runner: ThinkRunner, thinker: Thinker) -> None:
    first, later = make_turn(FIRST), make_turn(NEXT)
    none, prompt = await count_cached(caching_runner, first)
    cached_count, whole = await count_cached(caching_runner, later)

    assert (none, cached_count) == (0, prompt)
    assert whole > prompt
    assert first.ids == answer_alone(thinker, first)
    assert later.ids == answer_alone(thinker, later)
    assert caching_runner.stats()["reused_tokens"] == prompt
    assert caching_runner.stats()["kept_prompts"] == 1


@pytest.mark.numeric
async def test_what_differs_is_computed_anew(caching_runner: ThinkRunner, thinker: Thinker) -> None:
    """An edit changes the words, another image changes the later rows."""
    edited_messages = [*FIRST, {"role": "assistant", "content": "a dog"}, {"role": "user", "content": "and the fox?"}]
    media = [Encoded(torch.tensor(make_embedding(1).array), make_embedding(1).data)]
    before_picture = int(thinker.assemble_prefill(thinker.prompt(FIRST), media).media.nonzero()[0])
    await finish_job(caching_runner, make_turn(NEXT))
    turns = [make_turn(edited_messages), make_turn(edited_messages, seed=2)]
    cached_counts = [(await count_cached(caching_runner, one))[0] for one in turns]

    assert [one.ids for one in turns] == [answer_alone(thinker, one) for one in turns]
    assert cached_counts[0] > before_picture + 6
    assert cached_counts[1] == before_picture


@pytest.mark.parametrize("key", ["", "other"])
async def test_other_conversations_take_nothing_over(caching_runner: ThinkRunner, key: str) -> None:
    await finish_job(caching_runner, make_turn(FIRST))

    assert (await count_cached(caching_runner, make_turn(FIRST, key)))[0] == 0


async def test_another_salt_takes_nothing_over_and_leaves_what_is_kept(caching_runner: ThinkRunner) -> None:
    await finish_job(caching_runner, make_turn(FIRST))
    cached_count, _ = await count_cached(caching_runner, make_turn(NEXT, cache_salt="apart"))

    assert cached_count == 0
    assert (await count_cached(caching_runner, make_turn(NEXT)))[0] > 0
    assert (await count_cached(caching_runner, make_turn(NEXT, cache_salt="apart")))[0] > 0


async def test_an_equal_prompt_is_computed_in_its_last_row(caching_runner: ThinkRunner, thinker: Thinker) -> None:
    _, prompt = await count_cached(caching_runner, make_turn(FIRST))
    again = make_turn(FIRST)

    assert await count_cached(caching_runner, again) == (prompt - 1, prompt)
    assert again.ids == answer_alone(thinker, again)


async def test_the_least_recently_used_conversation_leaves_first(vl: Path) -> None:
    whole = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", make_settings()))
    await whole.load()
    await finish_job(whole, make_turn(FIRST))
    size = whole.stats()["kept_bytes"]
    await whole.close()
    small = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", make_settings(kept_bytes=2 * size)))
    await small.load()
    for key in ("a", "b", "a", "c"):
        await finish_job(small, make_turn(FIRST, key))
    is_cached = {key: (await count_cached(small, make_turn(FIRST, key)))[0] > 0 for key in ("a", "c", "b")}
    stats = small.stats()
    await small.close()

    assert is_cached == {"a": True, "c": True, "b": False}
    assert stats["kept_bytes"] == 2 * size
    assert size > 0


@pytest.mark.numeric
async def test_a_talker_hears_all_of_a_prompt_that_was_taken_over(omni: Path) -> None:
    words = {"role": "user", "content": f"{TEXT} {TEXT}"}
    later = [words, {"role": "assistant", "content": "a cat"}, {"role": "user", "content": "and the fox?"}]
    params = {"max_tokens": 8, "ignore_eos": True}
    outputs: dict[bool, list[np.ndarray]] = {}
    runner = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", make_settings()))
    await runner.load()
    for keeps in (True, False):
        key = {"cache_key": "talk"} if keeps else {}
        for messages in ([words], later):
            one = MemoryJob({"messages": messages, "params": {**params, **key}, "voice": "Chelsie"}, wants=WANTS)
            await finish_job(runner, one)
        outputs[keeps] = [one.array("prompt"), one.whole("rows")]
    reused_count = runner.stats()["reused_tokens"]
    silent = make_chat_job([words], cache_key="silent")  # its rows for a talker are not cached
    await finish_job(runner, silent)
    spoken_job = MemoryJob(
        {"messages": later, "params": {**params, "cache_key": "silent"}, "voice": "Chelsie"}, wants=WANTS
    )
    await finish_job(runner, spoken_job)
    assert runner.stats()["reused_tokens"] == reused_count > 0
    await runner.close()

    for cached_rows, anew in zip(outputs[True], outputs[False], strict=True):
        assert_close(cached_rows, anew)


async def test_a_prefill_of_its_own_takes_prompts_over_too(vl: Path) -> None:
    first, second = (ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", make_settings()) for _ in range(2))
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near=False)
    await halves.prefill.load()
    await halves.decode.load()
    answers = [await halves.answer(make_turn(messages)) for messages in (FIRST, NEXT)]
    await halves.prefill.close()
    await halves.decode.close()

    before, after = (each.end("text")["usage"] for each in answers)
    assert "cached_tokens" not in before
    assert after["cached_tokens"] == before["prompt_tokens"]


@pytest.mark.numeric
async def test_a_prompt_that_was_only_prefilled_is_how_its_answer_begins(
    caching_runner: ThinkRunner, thinker: Thinker
) -> None:
    """Nothing is decoded for it, and only the cached prompt remains."""
    more = [*NEXT, {"role": "assistant", "content": "it runs"}, {"role": "user", "content": "and jumps?"}]
    ahead, later = make_turn(NEXT, prefill_only=True), make_turn(more)
    none, prompt = await count_cached(caching_runner, ahead)
    cached_prompts, used_slots = caching_runner.stats()["kept_prompts"], caching_runner._core.engine.used
    cached_count, whole = await count_cached(caching_runner, later)

    assert ahead.ids == []
    assert (none, ahead.end("text")["usage"]["completion_tokens"]) == (0, 0)
    assert (cached_prompts, used_slots) == (1, 0)
    assert cached_count == prompt < whole
    assert later.ids == answer_alone(thinker, later)


@pytest.mark.numeric
async def test_what_was_only_prefilled_has_what_a_talker_needs(omni: Path) -> None:
    words = [{"role": "user", "content": f"{TEXT} {TEXT}"}]
    params = {"max_tokens": 8, "ignore_eos": True}
    runner = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", make_settings()))
    await runner.load()
    outputs: list[list[np.ndarray]] = []
    for key in ("talk", ""):
        all_params = {**params, "cache_key": key} if key else params
        if key:
            ahead = {"messages": words, "params": {**all_params, "prefill_only": True}, "voice": "Chelsie"}
            await finish_job(runner, MemoryJob(ahead))
        one = MemoryJob({"messages": words, "params": all_params, "voice": "Chelsie"}, wants=WANTS)
        await finish_job(runner, one)
        outputs.append([one.array("prompt"), one.whole("rows")])
    reused_count = runner.stats()["reused_tokens"]
    await runner.close()

    assert reused_count == len(outputs[0][0]) - 4  # all but the last row, and those that begin and end a text
    for kept_rows, anew in zip(*outputs, strict=True):
        assert_close(kept_rows, anew)


async def test_halves_prefill_for_later_turns_too(vl: Path) -> None:
    first, second = (ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", make_settings()) for _ in range(2))
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near=False)
    await halves.prefill.load()
    await halves.decode.load()
    ahead = await halves.answer(make_turn(NEXT, prefill_only=True))
    request = await halves.answer(make_turn(NEXT))
    steps = second.batch_counts.steps
    await halves.prefill.close()
    await halves.decode.close()

    usage = request.end("text")["usage"]
    assert ahead.ids == []
    assert usage["cached_tokens"] == usage["prompt_tokens"] - 1
    assert steps == len(request.ids) - 1  # of the answer alone


def test_a_language_model_that_keeps_no_prompts_says_so(vl: Path) -> None:
    keeps = [
        runner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", make_settings(kept_bytes=size))).keeps_prompts
        for runner in (ThinkRunner, PrefillRunner)
        for size in (1, 0)
    ]

    assert keeps == [True, False, True, False]


async def test_a_session_by_voice_says_what_was_cached_of_its_second_turn(tmp_path: Path, omni: Path) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", make_settings()))
    await runner.load()
    usages = []
    async with start_hearing_gateway(tmp_path, runner.run, Ears()) as home, open_realtime_call(home) as caller:
        await caller.update(output_modalities=["text"], max_output_tokens=4)
        for sentence in (TEXT, "and the fox?"):
            await caller.say(sentence)
            usages.append((await caller.respond())[-1]["response"]["usage"])
        aside = (await caller.respond(conversation="none"))[-1]["response"]["usage"]
        await home.emptied()
    await runner.close()

    cached_counts = [each["input_token_details"]["cached_tokens"] for each in (*usages, aside)]
    assert cached_counts == [0, usages[0]["input_tokens"], 0]
