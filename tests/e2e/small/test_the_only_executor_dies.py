"""Without another executor, the answer is an immediate typed error."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.e2e.small.conftest import DEADLINE
from tests.e2e.system import VL, System, command_line, missing_stages
from tests.e2e.watch import Watch, parse_events
from tests.own_time import own_time

pytestmark = pytest.mark.e2e

NOTICED = 2.0  # seconds of own time from the death of an executor to the answer
GRACE = 10.0  # seconds that inputs outlive the deadline of a gateway that is gone
SLOW = {
    "model": VL,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 3900,
    "ignore_eos": True,
    "temperature": 0,
}


@pytest.fixture
async def executor_pid(small: System) -> AsyncIterator[int]:
    """Process id of the only executor, which is back afterwards."""
    (pid,) = (await small.whole()).values()
    yield pid
    await small.whole()
    await small.becomes_ready()


async def test_a_whole_answer_becomes_503_that_names_the_stage(small: System, executor_pid: int):
    async with Watch.on(small) as watch, small.http() as http, own_time() as clock:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=SLOW))
        await watch.first("omnibus.reply.")
        kill_time = clock.seconds
        os.kill(executor_pid, signal.SIGKILL)
        down = asyncio.create_task(missing_stages(small, VL))  # it may be up again soon
        answer = await asking
        took = clock.seconds - kill_time
        end = await watch.end(answer.headers["x-request-id"])
    _, record = await small.record(end.inv)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["stage"]) == (503, "stage_unavailable", "thinker")
    assert took < NOTICED
    assert (await down)["thinker"] == "no executor"
    assert end.status == record["status"] == "failed"
    assert record["problem"]["stage"] == "thinker"
    await small.ledger_is_empty()


async def test_a_stream_ends_with_the_error_as_its_last_event(small: System, executor_pid: int):
    async with Watch.on(small) as watch, small.http() as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json={**SLOW, "stream": True}))
        await watch.first("omnibus.reply.")
        os.kill(executor_pid, signal.SIGKILL)
        answer = await asking

    last = parse_events(answer.content)[-1]
    assert (last["error"]["code"], last["error"]["stage"]) == ("stage_unavailable", "thinker")
    assert last["error"]["request_id"] == answer.headers["x-request-id"]


async def test_a_gateway_that_was_killed_comes_back_on_its_port_and_serves(small: System, executor_pid: int):
    gateway = next(one for one in small.processes() if "omnibus_gateway" in command_line(one))
    async with Watch.on(small) as watch, small.http() as http:
        lost_task = asyncio.create_task(http.post("/v1/chat/completions", json=SLOW))
        await watch.first("omnibus.reply.")
        gateway.kill()
        with pytest.raises(httpx.TransportError):
            await lost_task

    await small.becomes_ready()
    async with small.http() as http:
        answer = await http.post("/v1/chat/completions", json={**SLOW, "max_tokens": 2})
    assert answer.status_code == 200
    await small.ledger_is_empty(DEADLINE + GRACE + 5)
