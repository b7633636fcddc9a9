"""Counting a prompt's tokens without computing: the count matches the usage of an answer."""

import pytest

from omnibus_llm.runners.thinker import ThinkRunner
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.halves import Halves
from tests.unit.llm.runners.test_thinker import make_chat_job, make_embedding, make_picture_chat, make_text_chat

CHATS = [(make_text_chat(3), None), (make_picture_chat(2), [make_embedding(1)])]


def read_usage(one: MemoryJob) -> dict[str, int]:
    return dict(one.outputs["text"].items[-1].data["usage"])


@pytest.mark.parametrize(("messages", "items"), CHATS)
async def test_the_count_is_that_of_an_answer(runner: ThinkRunner, messages: object, items: list[object] | None):
    count_job, answer_job = make_chat_job(messages, items, count_only=True), make_chat_job(messages, items)
    for one in (count_job, answer_job):
        await finish_job(runner, one)

    assert read_usage(count_job) == {**read_usage(answer_job), "completion_tokens": 0}
    assert len(count_job.outputs["text"].items) == 1
    assert runner.stats()["tokens"] == answer_job.inputs["params"]["max_tokens"]


async def test_both_halves_count_too(halves: Halves):
    count_job = await halves.answer(make_chat_job(make_text_chat(3), count_only=True))
    answer_job = await halves.answer(make_chat_job(make_text_chat(3)))

    assert read_usage(count_job) == {**read_usage(answer_job), "completion_tokens": 0}
    assert len(count_job.outputs["text"].items) == 1
