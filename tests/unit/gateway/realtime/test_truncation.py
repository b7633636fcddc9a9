"""Conversations that are longer than the context of their model."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.errors import ContextTooLong
from omnibus.executor.runner import Job
from tests.unit.gateway.house import OMNI, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime.test_responses_by_voice import serve_thinker
from tests.unit.gateway.realtime_house import RealtimeCaller, open_realtime_call

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
def narrow_thinker() -> Narrow:
    return Narrow(4)


@pytest.fixture
async def long_session(tmp_path: Path, narrow_thinker: Narrow) -> AsyncIterator[tuple[ToyGateway, RealtimeCaller]]:
    """A session with six user messages."""
    async with start_toy_gateway(tmp_path) as home:
        await serve_thinker(home, OMNI, narrow_thinker)
        async with open_realtime_call(home) as caller:
            await caller.update(output_modalities=["text"])
            for word in WORDS:
                await caller.say(word)
            yield home, caller


async def test_what_is_too_long_is_answered_without_its_beginning(
    long_session: tuple[ToyGateway, RealtimeCaller], narrow_thinker: Narrow
):
    home, caller = long_session

    response = (await caller.respond())[-1]["response"]

    assert response["status"] == "completed"
    assert narrow_thinker.answered == [WORDS[2:]]  # a quarter is left out, and a quarter of the rest
    await home.emptied()


async def test_without_truncation_it_is_an_error(
    long_session: tuple[ToyGateway, RealtimeCaller], narrow_thinker: Narrow
):
    home, caller = long_session
    await caller.update(truncation="disabled")

    response = (await caller.respond())[-1]["response"]

    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "context_length_exceeded"
    assert narrow_thinker.answered == []
    await home.emptied()


async def test_the_last_message_is_never_left_out(
    long_session: tuple[ToyGateway, RealtimeCaller], narrow_thinker: Narrow
):
    home, caller = long_session
    narrow_thinker.most = 0

    response = (await caller.respond())[-1]["response"]

    assert (response["status"], narrow_thinker.answered) == ("failed", [])
    await home.emptied()
