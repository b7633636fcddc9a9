"""Sending the head of a streamed answer once all stages accept the request. Earlier errors set the status."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import StageUnavailable
from omnibus.executor.runner import Job
from tests.unit.gateway.house import (
    TEXT,
    VL,
    ToyGateway,
    build_chat_body,
    read_error_body,
    read_sse_events,
    start_toy_gateway,
)
from tests.unit.gateway.http.test_exchange import ExchangeClient
from tests.unit.sidecar.node import wait_until

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


async def begin_request(home: ToyGateway, client: ExchangeClient) -> "asyncio.Task[None]":
    return asyncio.ensure_future(home.app(client.scope, client.receive, client.send))


async def occupy_executor(home: ToyGateway, model: str, thinker: Thinker) -> "asyncio.Task[None]":
    """Occupy the only executor of ``model`` with the returned request."""
    home.serve(model)
    await home.executor(model, "L" if model == TEXT else "EL", "thinker", thinker=thinker, credits=1)
    busy = await begin_request(home, ExchangeClient(build_chat_body(model, "hi")))
    await asyncio.wait_for(thinker.begun.wait(), 10)
    return busy


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_full_system_answers_429_with_retry_after(home: ToyGateway, thinker: Thinker, stream: bool):
    busy = await occupy_executor(home, TEXT, thinker)

    response = await home.ask(TEXT, stream=stream)

    assert response.status_code == 429
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["retry-after"]) >= 1
    assert read_error_body(response)["code"] == "overloaded"
    assert read_error_body(response)["request_id"] == response.headers["x-request-id"]
    thinker.go.set()
    await busy
    await home.emptied()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_stage_that_cannot_run_answers_503(home: ToyGateway, stream: bool):
    async def fail_to_start(job: Job) -> None:
        raise StageUnavailable("the engine is starting", stage="thinker")

    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=fail_to_start)

    response = await home.ask(TEXT, stream=stream)

    assert response.status_code == 503
    assert read_error_body(response)["code"] == "stage_unavailable"
    await home.emptied()


async def test_a_deadline_that_passes_before_the_request_is_taken_answers_504(tmp_path: Path, thinker: Thinker):
    async with start_toy_gateway(tmp_path, deadline=0.1) as home:  # earlier than executors confirm
        home.serve(TEXT)
        await home.executor(TEXT, "L", "thinker", thinker=thinker)

        response = await home.ask(TEXT, stream=True)

        assert response.status_code == 504
        assert read_error_body(response)["code"] == "deadline_exceeded"


async def test_the_head_leaves_when_the_request_is_taken_before_anything_is_written(home: ToyGateway, thinker: Thinker):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker", thinker=thinker)
    client = ExchangeClient(build_chat_body(TEXT, "hi", stream=True))
    serving = await begin_request(home, client)

    await wait_until(lambda: len(client.messages) == 2)

    assert client.messages[0]["status"] == 200
    assert '"role":"assistant"' in client.text
    assert "word" not in client.text
    thinker.go.set()
    await asyncio.wait_for(serving, 10)
    assert '"content":"word"' in client.text
    await home.emptied()


async def test_the_first_output_takes_the_head_along(home: ToyGateway):
    home.serve(TEXT)
    await home.executor(TEXT, "L", "thinker")
    client = ExchangeClient(build_chat_body(TEXT, "hi", stream=True))

    await asyncio.wait_for(await begin_request(home, client), 10)

    head, first, *_ = client.messages
    assert head["status"] == 200
    assert b'"role":"assistant"' in first["body"]
    assert b'"content":"You ' in first["body"]


async def test_a_request_that_moves_to_another_executor_before_its_head_is_answered(home: ToyGateway, thinker: Thinker):
    busy = await occupy_executor(home, TEXT, thinker)
    other = Thinker()
    other.go.set()
    await home.executor(TEXT, "L", "thinker", id="other", thinker=other)

    responses = [await home.ask(TEXT, stream=True) for _ in range(3)]

    assert [response.status_code for response in responses] == [200] * 3
    assert all(read_sse_events(response)[-1] == "[DONE]" for response in responses)
    thinker.go.set()
    await busy
    await home.emptied()


async def test_what_fails_later_is_an_event(home: ToyGateway):
    async def break_off(job: Job) -> None:
        await job.send("text", {"text": "word"})
        raise StageUnavailable("the engine died", stage="thinker")

    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", thinker=break_off)

    response = await home.ask(VL, stream=True)

    assert response.status_code == 200
    chunks: list[Any] = read_sse_events(response)
    assert chunks[-1]["error"]["code"] == "stage_unavailable"
    await home.emptied()
