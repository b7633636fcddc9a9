"""Conversations that are longer than the context of their model."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.errors import ContextTooLong
from omnibus.executor.runner import Job
from tests.unit.gateway.house import OMNI, House, house
from tests.unit.gateway.realtime.test_responses_by_voice import listening
from tests.unit.gateway.realtime_house import Caller, calls

WORDS = ["one", "two", "three", "four", "five", "six"]


class Narrow:
    """A thinker with a context of ``most`` messages."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.answered: list[list[str]] = []

    async def __call__(self, job: Job) -> None:
        messages = await job.value("messages")
        if len(messages) > self.most:
            raise ContextTooLong(f"the prompt has {len(messages)} messages and the model's context {self.most}")
        self.answered.append([each["content"][0]["text"] for each in messages])
        await job.send("text", {"text": "fine", "ids": [1]})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


@pytest.fixture
def narrow() -> Narrow:
    return Narrow(4)


@pytest.fixture
async def told(tmp_path: Path, narrow: Narrow) -> AsyncIterator[tuple[House, Caller]]:
    """A session with six user messages."""
    async with house(tmp_path) as home:
        await listening(home, OMNI, narrow)
        async with calls(home) as caller:
            await caller.update(output_modalities=["text"])
            for word in WORDS:
                await caller.say(word)
            yield home, caller


async def test_what_is_too_long_is_answered_without_its_beginning(told: tuple[House, Caller], narrow: Narrow):
    home, caller = told

    response = (await caller.respond())[-1]["response"]

    assert response["status"] == "completed"
    assert narrow.answered == [WORDS[2:]]  # a quarter is left out, and a quarter of the rest
    await home.emptied()


async def test_without_truncation_it_is_an_error(told: tuple[House, Caller], narrow: Narrow):
    home, caller = told
    await caller.update(truncation="disabled")

    response = (await caller.respond())[-1]["response"]

    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "context_length_exceeded"
    assert narrow.answered == []
    await home.emptied()


async def test_the_last_message_is_never_left_out(told: tuple[House, Caller], narrow: Narrow):
    home, caller = told
    narrow.most = 0

    response = (await caller.respond())[-1]["response"]

    assert (response["status"], narrow.answered) == ("failed", [])
    await home.emptied()
