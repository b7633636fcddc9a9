"""Requests that arrive or are cancelled while others run, and the slots that they free."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import StageUnavailable
from omnibus_llm.engine import engine
from omnibus_llm.engine.engine import BatchingEngine
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.engine.step import Steps
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.contract import Thinker
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_thinker import answer_alone, make_chat_job, make_text_chat


async def test_a_cancelled_request_makes_at_most_one_more_token_and_frees_its_slot(vl) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=1)))
    await runner.load()
    long = make_chat_job(make_text_chat(1), max_tokens=2000)
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["text"].until(3)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    token_count = runner.stats()["tokens"]
    following = await finish_job(runner, make_chat_job(make_text_chat(2), max_tokens=5))

    assert len(following.ids) == 5
    assert token_count <= runner.stats()["tokens"] - 5 <= token_count + 1
    assert runner.stats()["used"] <= 1
    await runner.close()


async def test_nobody_takes_the_slot_of_one_that_leaves_while_another_slot_is_freed(
    vl: Path, thinker: Thinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=2)))
    await runner.load()
    leaving = [make_chat_job(make_text_chat(number), max_tokens=2000) for number in range(2)]
    coming = [make_chat_job(make_text_chat(number), max_tokens=5) for number in range(2, 4)]
    running = [asyncio.create_task(finish_job(runner, one)) for one in leaving]
    for one in leaving:
        await one.outputs["text"].until(3)
    evict, loop = Steps.evict, asyncio.get_running_loop()

    async def cancel_second() -> None:
        running[1].cancel()
        await asyncio.wait(running[1:], timeout=10)

    def evict_while_another_leaves(steps: Steps[Any]) -> None:
        evict(steps)
        if not running[1].done():
            asyncio.run_coroutine_threadsafe(cancel_second(), loop).result(10)

    monkeypatch.setattr(Steps, "evict", evict_while_another_leaves)
    answers = asyncio.gather(*(finish_job(runner, one) for one in coming))
    running[0].cancel()

    assert [answer.ids for answer in await answers] == [answer_alone(thinker, one) for one in coming]
    await runner.close()


async def test_a_request_cancelled_while_it_waits_never_starts(vl) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=1)))
    await runner.load()
    first, second = make_chat_job(make_text_chat(1), max_tokens=200), make_chat_job(make_text_chat(2))
    running = [asyncio.create_task(finish_job(runner, one)) for one in (first, second)]
    await first.outputs["text"].until(3)
    assert runner.stats()["waiting"] == 1

    running[1].cancel()
    await running[0]

    assert second.ids == []
    assert runner.stats()["tokens"] == 200
    await runner.close()


async def test_closing_fails_what_still_runs(vl) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=1)))
    await runner.load()
    jobs = [make_chat_job(make_text_chat(1), max_tokens=2000), make_chat_job(make_text_chat(2))]
    running = [asyncio.create_task(finish_job(runner, one)) for one in jobs]
    await jobs[0].outputs["text"].until(1)

    await runner.close()
    results = await asyncio.gather(*running, return_exceptions=True)

    assert [type(result) for result in results] == [StageUnavailable, StageUnavailable]


async def test_steps_follow_one_another_without_the_loop_until_it_has_something_to_do(
    vl: Path, thinker: Thinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=2)))
    await runner.load()
    monkeypatch.setattr(engine, "_CALL_SECONDS", 60.0)
    steps_of_calls, decode_on = [], BatchingEngine._decode_on

    def count_steps(self: BatchingEngine[Any], *args: Any) -> Any:
        before = self.batch_counts.steps
        outcomes = decode_on(self, *args)
        steps_of_calls.append(self.batch_counts.steps - before)
        return outcomes

    monkeypatch.setattr(BatchingEngine, "_decode_on", count_steps)
    long, short = make_chat_job(make_text_chat(1), max_tokens=400), make_chat_job(make_text_chat(2), max_tokens=20)
    running = asyncio.create_task(finish_job(runner, long))
    await long.outputs["text"].until(3)
    before = len(long.ids)
    await finish_job(runner, short)
    during = len(long.ids)
    await running

    assert before < during < 400  # neither waited for the other's end
    assert [long.ids, short.ids] == [answer_alone(thinker, one) for one in (long, short)]
    assert 390 < sum(steps_of_calls) < 400  # all but the first token, and the steps between others' prompts
    assert len(steps_of_calls) <= 8
    await runner.close()
