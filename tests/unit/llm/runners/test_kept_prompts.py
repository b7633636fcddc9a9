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
from tests.unit.gateway.realtime.test_early_answers import Ears, hearing
from tests.unit.gateway.realtime_house import calls
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.halves import Halves
from tests.unit.llm.runners.test_thinker import TEXT, alone, embedding, job

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

FIRST = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": f"{TEXT} {TEXT}"}]}]
NEXT = [*FIRST, {"role": "assistant", "content": "a cat"}, {"role": "user", "content": "and the fox?"}]
WANTS = ("prompt", "layout", "rows")


def settings(**more: Any) -> ThinkSettings:
    return ThinkSettings(**{"slots": 4, "context": 512, "share": 64, "kept_bytes": 16 << 20, **more})


@pytest.fixture
async def keeping(vl: Path) -> AsyncIterator[ThinkRunner]:
    made = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", settings()))
    await made.load()
    yield made
    await made.close()


def turn(messages: object, key: str = "talk", seed: int = 1, **params: Any) -> MemoryJob:
    return job(messages, [embedding(seed)], **({"cache_key": key} if key else {}), **params)


async def cached(runner: ThinkRunner, one: MemoryJob) -> tuple[int, int]:
    """Return the prompt tokens from the cache, and all of them."""
    usage = (await run(runner, one)).end("text")["usage"]
    return usage.get("cached_tokens", 0), usage["prompt_tokens"]


@pytest.mark.numeric
async def test_the_next_turn_begins_behind_the_last_prompt(keeping: ThinkRunner, thinker: Thinker) -> None:
    first, later = turn(FIRST), turn(NEXT)
    none, prompt = await cached(keeping, first)
    taken, whole = await cached(keeping, later)

    assert (none, taken) == (0, prompt)
    assert whole > prompt
    assert first.ids == alone(thinker, first)
    assert later.ids == alone(thinker, later)
    assert keeping.stats()["reused_tokens"] == prompt
    assert keeping.stats()["kept_prompts"] == 1


@pytest.mark.numeric
async def test_what_differs_is_computed_anew(keeping: ThinkRunner, thinker: Thinker) -> None:
    """An edit changes the words, another image changes the later rows."""
    edited = [*FIRST, {"role": "assistant", "content": "a dog"}, {"role": "user", "content": "and the fox?"}]
    media = [Encoded(torch.tensor(embedding(1).array), embedding(1).data)]
    before_picture = int(thinker.assemble_prefill(thinker.prompt(FIRST), media).media.nonzero()[0])
    await run(keeping, turn(NEXT))
    others = [turn(edited), turn(edited, seed=2)]
    taken = [(await cached(keeping, one))[0] for one in others]

    assert [one.ids for one in others] == [alone(thinker, one) for one in others]
    assert taken[0] > before_picture + 6
    assert taken[1] == before_picture


@pytest.mark.parametrize("key", ["", "other"])
async def test_other_conversations_take_nothing_over(keeping: ThinkRunner, key: str) -> None:
    await run(keeping, turn(FIRST))

    assert (await cached(keeping, turn(FIRST, key)))[0] == 0


async def test_another_salt_takes_nothing_over_and_leaves_what_is_kept(keeping: ThinkRunner) -> None:
    await run(keeping, turn(FIRST))
    taken, _ = await cached(keeping, turn(NEXT, cache_salt="apart"))

    assert taken == 0
    assert (await cached(keeping, turn(NEXT)))[0] > 0
    assert (await cached(keeping, turn(NEXT, cache_salt="apart")))[0] > 0


async def test_an_equal_prompt_is_computed_in_its_last_row(keeping: ThinkRunner, thinker: Thinker) -> None:
    _, prompt = await cached(keeping, turn(FIRST))
    again = turn(FIRST)

    assert await cached(keeping, again) == (prompt - 1, prompt)
    assert again.ids == alone(thinker, again)


async def test_the_least_recently_used_conversation_leaves_first(vl: Path) -> None:
    whole = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", settings()))
    await whole.load()
    await run(whole, turn(FIRST))
    size = whole.stats()["kept_bytes"]
    await whole.close()
    small = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", settings(kept_bytes=2 * size)))
    await small.load()
    for key in ("a", "b", "a", "c"):
        await run(small, turn(FIRST, key))
    taken = {key: (await cached(small, turn(FIRST, key)))[0] > 0 for key in ("a", "c", "b")}
    stats = small.stats()
    await small.close()

    assert taken == {"a": True, "c": True, "b": False}
    assert stats["kept_bytes"] == 2 * size
    assert size > 0


@pytest.mark.numeric
async def test_a_talker_hears_all_of_a_prompt_that_was_taken_over(omni: Path) -> None:
    words = {"role": "user", "content": f"{TEXT} {TEXT}"}
    later = [words, {"role": "assistant", "content": "a cat"}, {"role": "user", "content": "and the fox?"}]
    params = {"max_tokens": 8, "ignore_eos": True}
    made: dict[bool, list[np.ndarray]] = {}
    runner = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", settings()))
    await runner.load()
    for keeps in (True, False):
        key = {"cache_key": "talk"} if keeps else {}
        for messages in ([words], later):
            one = MemoryJob({"messages": messages, "params": {**params, **key}, "voice": "Chelsie"}, wants=WANTS)
            await run(runner, one)
        made[keeps] = [one.array("prompt"), one.whole("rows")]
    reused = runner.stats()["reused_tokens"]
    silent = job([words], cache_key="silent")  # its rows for a talker are not cached
    await run(runner, silent)
    spoken = MemoryJob(
        {"messages": later, "params": {**params, "cache_key": "silent"}, "voice": "Chelsie"}, wants=WANTS
    )
    await run(runner, spoken)
    assert runner.stats()["reused_tokens"] == reused > 0
    await runner.close()

    for kept, anew in zip(made[True], made[False], strict=True):
        assert_close(kept, anew)


async def test_a_prefill_of_its_own_takes_prompts_over_too(vl: Path) -> None:
    first, second = (ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", settings()) for _ in range(2))
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near=False)
    await halves.prefill.load()
    await halves.decode.load()
    answers = [await halves.answer(turn(messages)) for messages in (FIRST, NEXT)]
    await halves.prefill.close()
    await halves.decode.close()

    before, after = (each.end("text")["usage"] for each in answers)
    assert "cached_tokens" not in before
    assert after["cached_tokens"] == before["prompt_tokens"]


@pytest.mark.numeric
async def test_a_prompt_that_was_only_prefilled_is_how_its_answer_begins(
    keeping: ThinkRunner, thinker: Thinker
) -> None:
    """Nothing is decoded for it, and only the cached prompt remains."""
    more = [*NEXT, {"role": "assistant", "content": "it runs"}, {"role": "user", "content": "and jumps?"}]
    ahead, later = turn(NEXT, prefill_only=True), turn(more)
    none, prompt = await cached(keeping, ahead)
    kept, used = keeping.stats()["kept_prompts"], keeping._core.engine.used
    taken, whole = await cached(keeping, later)

    assert ahead.ids == []
    assert (none, ahead.end("text")["usage"]["completion_tokens"]) == (0, 0)
    assert (kept, used) == (1, 0)
    assert taken == prompt < whole
    assert later.ids == alone(thinker, later)


@pytest.mark.numeric
async def test_what_was_only_prefilled_has_what_a_talker_needs(omni: Path) -> None:
    words = [{"role": "user", "content": f"{TEXT} {TEXT}"}]
    params = {"max_tokens": 8, "ignore_eos": True}
    runner = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", settings()))
    await runner.load()
    made: list[list[np.ndarray]] = []
    for key in ("talk", ""):
        kept = {**params, "cache_key": key} if key else params
        if key:
            ahead = {"messages": words, "params": {**kept, "prefill_only": True}, "voice": "Chelsie"}
            await run(runner, MemoryJob(ahead))
        one = MemoryJob({"messages": words, "params": kept, "voice": "Chelsie"}, wants=WANTS)
        await run(runner, one)
        made.append([one.array("prompt"), one.whole("rows")])
    reused = runner.stats()["reused_tokens"]
    await runner.close()

    assert reused == len(made[0][0]) - 4  # all but the last row, and those that begin and end a text
    for kept_rows, anew in zip(*made, strict=True):
        assert_close(kept_rows, anew)


async def test_halves_prefill_for_later_turns_too(vl: Path) -> None:
    first, second = (ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", settings()) for _ in range(2))
    halves = Halves(PrefillRunner(first), DecodeRunner(second), near=False)
    await halves.prefill.load()
    await halves.decode.load()
    ahead = await halves.answer(turn(NEXT, prefill_only=True))
    asked = await halves.answer(turn(NEXT))
    steps = second.batch_counts.steps
    await halves.prefill.close()
    await halves.decode.close()

    usage = asked.end("text")["usage"]
    assert ahead.ids == []
    assert usage["cached_tokens"] == usage["prompt_tokens"] - 1
    assert steps == len(asked.ids) - 1  # of the answer alone


def test_a_language_model_that_keeps_no_prompts_says_so(vl: Path) -> None:
    keeps = [
        runner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", settings(kept_bytes=size))).keeps_prompts
        for runner in (ThinkRunner, PrefillRunner)
        for size in (1, 0)
    ]

    assert keeps == [True, False, True, False]


async def test_a_session_by_voice_says_what_was_cached_of_its_second_turn(tmp_path: Path, omni: Path) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", settings()))
    await runner.load()
    usages = []
    async with hearing(tmp_path, runner.run, Ears()) as home, calls(home) as caller:
        await caller.update(output_modalities=["text"], max_output_tokens=4)
        for said in (TEXT, "and the fox?"):
            await caller.say(said)
            usages.append((await caller.respond())[-1]["response"]["usage"])
        aside = (await caller.respond(conversation="none"))[-1]["response"]["usage"]
        await home.emptied()
    await runner.close()

    cached = [each["input_token_details"]["cached_tokens"] for each in (*usages, aside)]
    assert cached == [0, usages[0]["input_tokens"], 0]
