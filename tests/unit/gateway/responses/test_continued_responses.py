"""Responses over two gateways with one store and one bus: continued, made in the background, cancelled."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus_gateway.responses import service
from omnibus_gateway.responses.log import ResponseLog
from tests.unit.gateway.house import TEXT, ToyGateway
from tests.unit.gateway.responses_house import (
    PATH,
    ResponseReader,
    ResponsesPair,
    SlowResponseThinker,
    events_of,
    post_response,
    read_response_body,
    text_of,
)
from tests.unit.sidecar.node import wait_until


async def test_a_stream_goes_on_at_another_gateway_byte_by_byte(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two ", "three ", "four")
    await pair.serve(TEXT, thinker=slow)
    reading = ResponseReader(pair.first, "POST", PATH, json={"model": TEXT, "input": "hi", "stream": True})
    await reading.until("one ")
    had = reading.events
    id = had[0]["response"]["id"]

    reading.client.leave()
    await asyncio.wait_for(reading.task, 10)
    slow.go.set()
    slow.after = 3  # its words are grouped differently this time
    last = had[-1]["sequence_number"]
    rest = await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true", "starting_after": last})
    every = await pair.first.http.get(f"{PATH}/{id}", params={"stream": "true"})

    assert had + events_of(rest.text) == events_of(every.text)
    assert text_of(events_of(every.text)[-1]["response"]) == "one two three four"
    assert slow.known == [[], [0]]
    await pair.second.emptied()


async def test_a_response_in_the_background_is_made_while_nobody_waits(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two")
    await pair.serve(TEXT, thinker=slow)

    response = read_response_body(await post_response(pair.first, background=True))
    assert response["status"] == "queued"
    id = response["id"]

    async def is_in_progress() -> bool:
        return bool(read_response_body(await pair.second.http.get(f"{PATH}/{id}"))["status"] == "in_progress")

    await wait_until(is_in_progress)
    slow.go.set()

    async def is_completed() -> bool:
        return bool(read_response_body(await pair.second.http.get(f"{PATH}/{id}"))["status"] == "completed")

    await wait_until(is_completed)
    assert text_of(read_response_body(await pair.second.http.get(f"{PATH}/{id}"))) == "one two"
    events = events_of((await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true"})).text)
    assert [event["type"] for event in events][:3] == ["response.created", "response.queued", "response.in_progress"]
    await pair.first.emptied()


async def test_events_of_a_background_response_without_followers_are_stored_together(
    pair: ResponsesPair, monkeypatch: pytest.MonkeyPatch
):
    async def count_words(job: Job) -> None:
        for number in range(50):
            await job.send("text", {"text": f"{number} ", "ids": [number]})
            await asyncio.sleep(0.002)

    async def record_append(log: ResponseLog, events: list[Any], *more: Any) -> None:
        sizes.append(len(events))
        await store(log, events, *more)

    sizes: list[int] = []
    store = ResponseLog.append
    monkeypatch.setattr(ResponseLog, "append", record_append)
    await pair.serve(TEXT, thinker=count_words)
    id = read_response_body(await post_response(pair.first, background=True))["id"]

    async def is_completed() -> bool:
        return bool(read_response_body(await pair.first.http.get(f"{PATH}/{id}"))["status"] == "completed")

    await wait_until(is_completed)
    assert text_of(read_response_body(await pair.first.http.get(f"{PATH}/{id}"))) == "".join(
        f"{number} " for number in range(50)
    )
    assert len(sizes) <= 10 < max(sizes)
    await pair.first.emptied()


@pytest.mark.parametrize("where", ["first", "second"])
async def test_a_response_in_the_background_is_cancelled_anywhere(pair: ResponsesPair, where: str):
    slow = SlowResponseThinker("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    id = read_response_body(await post_response(pair.first, background=True))["id"]
    await wait_until(lambda: bool(slow.known))

    response = read_response_body(await getattr(pair, where).http.post(f"{PATH}/{id}/cancel"))

    assert response["status"] == "cancelled"
    assert read_response_body(await pair.second.http.get(f"{PATH}/{id}")) == response
    events = events_of((await pair.second.http.get(f"{PATH}/{id}", params={"stream": "true"})).text)
    assert events[-1]["response"]["status"] == "cancelled"
    slow.go.set()
    await pair.first.emptied()


async def abandon_response(pair: ResponsesPair) -> str:
    """Return the id of a background response that no gateway runs."""
    slow = SlowResponseThinker("one ", "two")
    await pair.serve(TEXT, thinker=slow)
    id = str(read_response_body(await post_response(pair.first, background=True))["id"])
    await wait_until(lambda: bool(slow.known))
    for home in (pair.second, pair.first):
        await home.responses.leave_background()
    return id


async def is_ended_as_cancelled(pair: ResponsesPair, id: str, response: dict[str, Any]) -> None:
    assert response["status"] == "cancelled"
    assert read_response_body(await pair.first.http.get(f"{PATH}/{id}")) == response
    events = events_of((await pair.first.http.get(f"{PATH}/{id}", params={"stream": "true"})).text)
    assert events[-1]["response"]["status"] == "cancelled"
    await pair.first.emptied()


async def test_one_that_nobody_makes_is_cancelled_by_any_gateway(pair: ResponsesPair):
    id = await abandon_response(pair)

    response = read_response_body(await pair.second.http.post(f"{PATH}/{id}/cancel"))

    await is_ended_as_cancelled(pair, id, response)


async def test_one_that_nobody_makes_when_its_deadline_has_passed_is_ended_by_its_reader(
    pair: ResponsesPair, monkeypatch: pytest.MonkeyPatch
):
    id = await abandon_response(pair)
    assert read_response_body(await pair.second.http.get(f"{PATH}/{id}"))["status"] == "in_progress"
    later = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
    monkeypatch.setattr(service, "time", later)

    response = read_response_body(await pair.second.http.get(f"{PATH}/{id}"))

    await is_ended_as_cancelled(pair, id, response)


async def test_one_that_is_not_in_the_background_is_not_cancelled(home: ToyGateway):
    id = read_response_body(await post_response(home))["id"]

    response = await home.http.post(f"{PATH}/{id}/cancel")

    assert response.status_code == 400


async def test_what_another_gateway_left_in_the_background_is_made_on(pair: ResponsesPair):
    slow = SlowResponseThinker("one ", "two ", "three")
    await pair.serve(TEXT, thinker=slow)
    id = read_response_body(await post_response(pair.first, background=True))["id"]
    await wait_until(lambda: bool(slow.known))
    reading = ResponseReader(pair.second, "GET", f"{PATH}/{id}", query=b"stream=true")
    await reading.until("one ")

    await pair.first.responses.leave_background()
    slow.go.set()

    await asyncio.wait_for(reading.task, 20)
    assert reading.events[-1]["type"] == "response.completed"
    assert text_of(reading.events[-1]["response"]) == "one two three"
    assert slow.known == [[], [0]]


async def test_a_failure_after_the_first_event_ends_the_response(pair: ResponsesPair):
    async def fail_after_word(job: Job) -> None:
        await job.send("text", {"text": "one ", "ids": [0]})
        await asyncio.sleep(0.05)
        raise ValueError("broken")

    await pair.serve(TEXT, thinker=fail_after_word)
    events = events_of((await post_response(pair.first, stream=True)).text)

    last = events[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    stored_response = read_response_body(await pair.second.http.get(f"{PATH}/{last['response']['id']}"))
    assert stored_response["status"] == "failed"
