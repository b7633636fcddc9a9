"""Counting a prompt's tokens without computing: the count matches the usage of an answer."""

from typing import Any

import pytest

from omnibus.errors import ContextTooLong
from omnibus_llm.runners import prompt_tokens
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


def read_prompt(job: MemoryJob) -> dict[str, Any]:
    """Return the reported prompt: its ids, the entries of the vocabulary, and the text."""
    chunks = [item.data for item in job.outputs["text"].items]
    return {
        "ids": [id for chunk in chunks for id in chunk.get("ids", ())],
        "tokens": [token for chunk in chunks for token in chunk.get("tokens", ())],
        "text": "".join(chunk.get("text", "") for chunk in chunks),
    }


def check_prompt(thinker: Any, job: MemoryJob, messages: list[dict[str, Any]]) -> None:
    ids = list(thinker.prompt(messages).ids)
    tokenizer = thinker.tokenizer
    assert read_prompt(job) == {
        "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids), "text": tokenizer.decode(ids),
    }  # fmt: skip
    assert "<|im_start|>" in read_prompt(job)["text"]
    assert read_usage(job)["prompt_tokens"] == len(ids)


async def test_the_tokens_of_a_prompt_are_reported(runner: ThinkRunner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_tokens, "PIECE_TOKENS", 5)
    messages = make_text_chat(3)
    job = make_chat_job(messages, count_only=True, report_prompt=True)

    await finish_job(runner, job)

    check_prompt(runner._core.thinker, job, messages)
    assert len(job.outputs["text"].items) > 3


async def test_both_halves_report_the_tokens_of_a_prompt(halves: Halves):
    messages = make_text_chat(3)

    job = await halves.answer(make_chat_job(messages, count_only=True, report_prompt=True))

    check_prompt(halves.decode._core.thinker, job, messages)


def make_long_chat(turns: int) -> list[dict[str, Any]]:
    words = "one two three four five six seven eight nine ten"
    talk = [{"role": role, "content": f"{words} {number}"} for number in range(turns) for role in ("user", "assistant")]
    return [{"role": "system", "content": "Be short."}, *talk, {"role": "user", "content": "the last question"}]


async def test_old_messages_are_left_out_of_a_prompt_that_is_too_long(halves: Halves, runner: ThinkRunner):
    options = {"count_only": True, "report_prompt": True, "max_tokens": 40}
    with pytest.raises(ContextTooLong):
        await finish_job(runner, make_chat_job(make_long_chat(60), **options))

    job = make_chat_job(make_long_chat(60), **options, drop_history=True)
    await finish_job(runner, job)
    split_job = await halves.answer(make_chat_job(make_long_chat(60), **options, drop_history=True))

    text = read_prompt(job)["text"]
    assert read_prompt(split_job)["text"] == text
    assert ("Be short." in text, "the last question" in text, "ten 59" in text) == (True, True, True)
    assert "ten 0<" not in text
    assert runner._core.context - 80 < len(read_prompt(job)["ids"]) <= runner._core.context - 40
