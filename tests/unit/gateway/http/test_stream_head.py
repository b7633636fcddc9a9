"""Sending the head of a streamed answer once all stages accept the request. Earlier errors set the status."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import StageUnavailable
from omnibus.executor.runner import Job
from tests.unit.gateway.house import TEXT, VL, House, error, events, house, question
from tests.unit.gateway.http.test_exchange import Client
from tests.unit.sidecar.node import until

pytestmark = pytest.mark.usefixtures("either_way")


class Thinker:
    """A thinker that writes one word when allowed."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.begun.set()
        await self.go.wait()
        await job.send("text", {"text": "word"})
        job.close("text", {"finish_reason": "stop", "usage": {}})


@pytest.fixture
def thinker() -> Thinker:
    return Thinker()


async def begin(home: House, client: Client) -> "asyncio.Task[None]":
    return asyncio.ensure_future(home.app(client.scope, client.receive, client.send))


async def full(home: House, model: str, thinker: Thinker) -> "asyncio.Task[None]":
    """Occupy the only executor of ``model`` with the returned request."""
    home.serve(model)
    await home.executor(model, "L" if model == TEXT else "EL", "thinker", thinker=thinker, credits=1)
    busy = await begin(home, Client(question(model, "hi")))
    await asyncio.wait_for(thinker.begun.wait(), 10)
    return busy


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_full_system_answers_429_with_retry_after(home: House, thinker: Thinker, stream: bool):
    busy = await full(home, TEXT, thinker)

    response = await home.ask(TEXT, stream=stream)

    assert response.status_code == 429
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["retry-after"]) >= 1
    assert error(response)["code"] == "overloaded"
    assert error(response)["request_id"] == response.headers["x-request-id"]
    thinker.go.set()
    await busy
    await home.emptied()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_stage_that_cannot_run_answers_503(home: House, stream: bool):
    async def fails(job: Job) -> None:
        raise StageUnavailable("the engine is starting", stage="thinker")

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=fails)

    response = await home.ask(TEXT, stream=stream)

    assert response.status_code == 503
    assert error(response)["code"] == "stage_unavailable"
    await home.emptied()


async def test_a_deadline_that_passes_before_the_request_is_taken_answers_504(tmp_path: Path, thinker: Thinker):
    async with house(tmp_path, deadline=0.1) as home:  # earlier than executors confirm
        home.serve(TEXT)
        await home.executor(TEXT, "L", "thinker", thinker=thinker)

        response = await home.ask(TEXT, stream=True)

        assert response.status_code == 504
        assert error(response)["code"] == "deadline_exceeded"


async def test_the_head_leaves_when_the_request_is_taken_before_anything_is_written(home: House, thinker: Thinker):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=thinker)
    client = Client(question(TEXT, "hi", stream=True))
    serving = await begin(home, client)

    await until(lambda: len(client.messages) == 2)

    assert client.messages[0]["status"] == 200
    assert '"role":"assistant"' in client.text
    assert "word" not in client.text
    thinker.go.set()
    await asyncio.wait_for(serving, 10)
    assert '"content":"word"' in client.text
    await home.emptied()


async def test_the_first_output_takes_the_head_along(home: House):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker")
    client = Client(question(TEXT, "hi", stream=True))

    await asyncio.wait_for(await begin(home, client), 10)

    head, first, *_ = client.messages
    assert head["status"] == 200
    assert b'"role":"assistant"' in first["body"]
    assert b'"content":"You ' in first["body"]


async def test_a_request_that_moves_to_another_executor_before_its_head_is_answered(home: House, thinker: Thinker):
    busy = await full(home, TEXT, thinker)
    other = Thinker()
    other.go.set()
    await home.executor(TEXT, "L", "thinker", id="other", thinker=other)

    responses = [await home.ask(TEXT, stream=True) for _ in range(3)]

    assert [response.status_code for response in responses] == [200] * 3
    assert all(events(response)[-1] == "[DONE]" for response in responses)
    thinker.go.set()
    await busy
    await home.emptied()


async def test_what_fails_later_is_an_event(home: House):
    async def breaks(job: Job) -> None:
        await job.send("text", {"text": "word"})
        raise StageUnavailable("the engine died", stage="thinker")

    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", thinker=breaks)

    response = await home.ask(VL, stream=True)

    assert response.status_code == 200
    told: list[Any] = events(response)
    assert told[-1]["error"]["code"] == "stage_unavailable"
    await home.emptied()
