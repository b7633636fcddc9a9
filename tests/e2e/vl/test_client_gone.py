"""All work of a client stops when it disconnects."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from omnibus.bus import subjects
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

LONG = 3000  # tokens; several seconds of work
TRIES = 12
QUESTION = make_question(make_image(1), "describe")


def make_body(**more: Any) -> dict[str, Any]:
    fields = {"max_tokens": LONG, "ignore_eos": True, "temperature": 0}
    return {"model": VL, "messages": QUESTION.messages, **fields, **more}


@pytest.mark.parametrize("path", ["E>L", "EL"])
async def test_a_client_that_leaves_a_stream_cancels_it_everywhere(vl: System, path: str):
    late: list[int] = []
    # A step of this model is shorter than a busy machine takes to deliver a message, hence the best of a few.
    while not late or (min(late) > 1 and len(late) < TRIES):
        late.append(await tokens_after_leaving(vl, path))

    assert min(late) <= 1
    assert max(late) < LONG / 10


async def tokens_after_leaving(vl: System, path: str) -> int:
    """Disconnect after five deltas; return the number of tokens after the end."""
    async with Watch.on(vl) as watch:
        async with (
            vl.http() as http,
            http.stream(
                "POST", "/v1/chat/completions", json=make_body(stream=True), headers={"x-omnibus-path": path}
            ) as answer,
        ):
            id = answer.headers["x-request-id"]
            await read_deltas(answer, 5)
        end = await watch.end(id)
        await vl.ledger_is_empty()
        await asyncio.sleep(0.3)  # tokens in transit

    assert end.status == "cancelled"
    assert 5 <= len(watch.ids(id)) < LONG / 2
    return after_the_end(watch, id)


async def read_deltas(answer: httpx.Response, deltas: int) -> list[str]:
    lines: list[str] = []
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            lines.append(line)
        if len(lines) == deltas:
            return lines
    raise AssertionError("the stream ended early")


def after_the_end(watch: Watch, id: str) -> int:
    """Tokens of ``id`` that arrived after its end was published."""
    subject = [delivery.subject for delivery in watch.seen].index(subjects.end_subject(id))
    late = Watch()
    late.seen = watch.seen[subject:]
    return len(late.ids(id))


async def test_a_client_that_leaves_before_the_whole_answer_cancels_it(vl: System):
    async with Watch.on(vl) as watch:
        async with vl.http() as http:
            asking = asyncio.create_task(http.post("/v1/chat/completions", json=make_body()))
            first_reply = await watch.first("omnibus.reply.")
            asking.cancel()
        end = await watch.first("omnibus.end.")
        await vl.ledger_is_empty()

    assert first_reply
    assert json.loads(end.data)["status"] == "cancelled"


async def test_the_record_of_a_client_that_left_says_so(vl: System):
    async with Watch.on(vl) as watch:
        async with (
            vl.http() as http,
            http.stream("POST", "/v1/chat/completions", json=make_body(stream=True)) as answer,
        ):
            id = answer.headers["x-request-id"]
            await read_deltas(answer, 1)
        await watch.end(id)
    begin, end = await vl.record(id)

    assert json.loads(begin)["id"] == id
    assert (end["kind"], end["status"]) == ("end", "cancelled")


async def test_many_clients_that_leave_at_once_leave_nothing_behind(vl: System):
    async with Watch.on(vl) as watch:
        async with vl.http() as http:
            asking = [asyncio.create_task(http.post("/v1/chat/completions", json=make_body())) for _ in range(12)]
            starts = InvocationStarts(watch)
            await watch.until(lambda: starts.count() == 12 or any(one.done() for one in asking))
            assert [one.result().text for one in asking if one.done()] == []
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.sleep(0.2)
        await vl.ledger_is_empty()

    ends = [d for d in watch.seen if d.subject.startswith("omnibus.end.")]
    assert len(ends) == 12
    assert {json.loads(one.data)["status"] for one in ends} == {"cancelled"}


class InvocationStarts:
    """Invocations whose start was recorded; those of an earlier test may still end.

    Each message is read once: tokens of many requests are thousands of messages.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._subjects: set[str] = set()
        self._read = 0

    def count(self) -> int:
        for delivery in self._watch.seen[self._read :]:
            is_record = delivery.subject.startswith("omnibus.inv.")
            if is_record and json.loads(delivery.data).get("kind") != "end":
                self._subjects.add(delivery.subject)
        self._read = len(self._watch.seen)
        return len(self._subjects)
