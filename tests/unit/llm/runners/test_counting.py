"""Counting a prompt's tokens without computing: the count matches the usage of an answer."""

import pytest

from omnibus_llm.runners.thinker import ThinkRunner
from tests.unit.jobs import MemoryJob, run
from tests.unit.llm.halves import Halves
from tests.unit.llm.runners.test_thinker import embedding, job, picture, text

CHATS = [(text(3), None), (picture(2), [embedding(1)])]


def usage(one: MemoryJob) -> dict[str, int]:
    return dict(one.outputs["text"].items[-1].data["usage"])


@pytest.mark.parametrize(("messages", "items"), CHATS)
async def test_the_count_is_that_of_an_answer(runner: ThinkRunner, messages: object, items: list[object] | None):
    counted, answered = job(messages, items, count_only=True), job(messages, items)
    for one in (counted, answered):
        await run(runner, one)

    assert usage(counted) == {**usage(answered), "completion_tokens": 0}
    assert len(counted.outputs["text"].items) == 1
    assert runner.stats()["tokens"] == answered.inputs["params"]["max_tokens"]


async def test_both_halves_count_too(halves: Halves):
    counted = await halves.answer(job(text(3), count_only=True))
    answered = await halves.answer(job(text(3)))

    assert usage(counted) == {**usage(answered), "completion_tokens": 0}
    assert len(counted.outputs["text"].items) == 1
