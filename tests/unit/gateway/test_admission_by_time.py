"""A gateway with an executor too slow for its deadline: admitted requests end in time, the rest get a 429."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import httpx
import pytest

from omnibus.executor.runner import Job
from tests.unit.gateway.house import (
    TEXT,
    ToyGateway,
    build_chat_body,
    read_chat_answer,
    read_error_body,
    start_toy_gateway,
    write_chat_words,
)

pytestmark = pytest.mark.usefixtures("either_way")

# So few that a busy machine spends little of a service time on each.
DEADLINE, SERVICE, AT_ONCE = 6.0, 0.2, 60  # seconds, seconds, requests


@pytest.fixture
async def slow_gateway(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    """A house whose only thinker runs one request at a time."""
    one_by_one = asyncio.Lock()

    async def work_slowly(job: Job) -> None:
        async with one_by_one:
            await asyncio.sleep(SERVICE)
        await write_chat_words(job)

    async with start_toy_gateway(tmp_path, deadline=DEADLINE) as home:
        home.serve(TEXT)
        assert home.router.plan is not None
        for option, spec in home.router.plan.models[TEXT].options.items():
            await home.executor(TEXT, option, *spec.components, thinker=work_slowly)
        yield home


async def send_burst(home: ToyGateway, stream: bool) -> list[httpx.Response]:
    return list(await asyncio.gather(*start_requests(home, stream)))


def start_requests(home: ToyGateway, stream: bool) -> list[Awaitable[httpx.Response]]:
    body = build_chat_body(TEXT, "hi", stream=stream)
    return [home.http.post("/v1/chat/completions", json=body) for _ in range(AT_ONCE)]


async def test_what_would_not_end_in_time_is_refused_and_all_else_is_served(slow_gateway: ToyGateway):
    for _ in range(8):
        read_chat_answer(await slow_gateway.ask(TEXT))

    responses = await send_burst(slow_gateway, stream=False)

    statuses = Counter(response.status_code for response in responses)
    assert set(statuses) == {200, 429}
    assert DEADLINE / SERVICE / 5 < statuses[200] < DEADLINE / SERVICE
    for response in responses:
        if response.status_code == 429:
            assert read_error_body(response)["code"] == "overloaded"
            assert 1 <= int(response.headers["retry-after"]) <= DEADLINE
    await slow_gateway.emptied()


async def test_streams_end_in_time_as_well(slow_gateway: ToyGateway):
    for _ in range(8):
        read_chat_answer(await slow_gateway.ask(TEXT))

    responses = await send_burst(slow_gateway, stream=True)

    assert not [response for response in responses if "deadline_exceeded" in response.text]
    whole = [response for response in responses if response.status_code == 200 and "[DONE]" in response.text]
    rejections = [response for response in responses if '"overloaded"' in response.text]
    assert len(whole) > DEADLINE / SERVICE / 5
    assert len(rejections) + len([response for response in whole if response not in rejections]) == AT_ONCE
    await slow_gateway.emptied()


async def test_who_was_refused_is_served_when_it_comes_back_as_told(slow_gateway: ToyGateway):
    for _ in range(8):
        read_chat_answer(await slow_gateway.ask(TEXT))
    tasks = [asyncio.ensure_future(ask) for ask in start_requests(slow_gateway, stream=False)]
    for finished_request in asyncio.as_completed(tasks):
        if (rejection := await finished_request).status_code == 429:
            break

    for _ in range(5):  # a busy machine serves more slowly than predicted, and rejects again
        await asyncio.sleep(int(rejection.headers["retry-after"]))
        if (rejection := await slow_gateway.ask(TEXT)).status_code != 429:
            break

    read_chat_answer(rejection)
    await asyncio.gather(*tasks)
