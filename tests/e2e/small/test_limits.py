"""The gateway enforces deadlines, body sizes, credits and record limits.

Each has its own error.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from omnibus.bus import subjects
from tests.e2e.questions import make_image, make_question
from tests.e2e.small.conftest import CREDITS, DEADLINE, MAX_BODY
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch, parse_events
from tests.own_time import own_time

pytestmark = pytest.mark.e2e

FOREVER = 3900  # tokens; more than the deadline allows on any machine of today
RUNNING = 1.0  # seconds of an answer: longer than a refusal takes, and less than the deadline
SLOW = {"max_tokens": FOREVER, "ignore_eos": True}


def make_body(content: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": VL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 4, **more}


def count_late_tokens(watch: Watch, id: str) -> int:
    """Tokens that arrived after the end was published."""
    rest = Watch()
    rest.seen = watch.seen[[delivery.subject for delivery in watch.seen].index(subjects.end_subject(id)) :]
    return len(rest.ids(id))


async def test_a_deadline_that_passes_is_504_and_everything_stops(small: System):
    # Best of several, as in ``test_client_gone``: a step is shorter than a busy machine takes to deliver.
    for _ in range(4):
        if await tokens_after_the_deadline(small) <= 1:
            return
    pytest.fail("each time more than one token came after the end was announced")


async def tokens_after_the_deadline(small: System) -> int:
    """Let requests exceed their deadline; return the fewest tokens after an end."""
    content = make_question(make_image(1), "describe").messages[0]["content"]
    async with Watch.on(small) as watch, small.http() as http:
        answers = await asyncio.gather(
            *(http.post("/v1/chat/completions", json=make_body(content, **SLOW)) for _ in range(CREDITS))
        )
        ends = [await watch.end(answer.headers["x-request-id"]) for answer in answers]
        await small.ledger_is_empty()
        await asyncio.sleep(0.3)  # tokens in transit

    for answer, end in zip(answers, ends, strict=True):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (504, "deadline_exceeded")
        assert answer.headers["x-request-id"] == error["request_id"]
        assert 0 < len(watch.ids(end.inv)) < FOREVER
        assert count_late_tokens(watch, end.inv) < FOREVER / 10
    return min(count_late_tokens(watch, end.inv) for end in ends)


async def test_a_deadline_that_passes_in_a_stream_is_its_last_event(small: System):
    async with Watch.on(small) as watch, small.http() as http:
        answer = await http.post("/v1/chat/completions", json=make_body(stream=True, **SLOW))
        end = await watch.end(answer.headers["x-request-id"])

    assert end.status in ("expired", "failed")
    last = parse_events(answer.content)[-1]
    assert last["error"]["code"] == "deadline_exceeded"
    assert b"[DONE]" not in answer.content
    await small.ledger_is_empty()


async def test_a_deadline_is_not_kept_longer_than_it_says(small: System):
    loop = asyncio.get_running_loop()
    async with small.http() as http, own_time() as clock:
        began = loop.time()
        await http.post("/v1/chat/completions", json=make_body(**SLOW))

    assert loop.time() - began > DEADLINE * 0.9
    assert clock.seconds < DEADLINE + 2


async def test_a_body_over_the_limit_is_413(small: System):
    too_much = json.dumps(make_body("x" * MAX_BODY)).encode()

    async def stream_body() -> AsyncIterator[bytes]:
        for start in range(0, len(too_much), 1 << 16):
            yield too_much[start : start + (1 << 16)]

    async with small.http() as http:
        announced_response = await http.post("/v1/chat/completions", content=too_much)
        chunked_response = await http.post("/v1/chat/completions", content=stream_body())
        fine = await http.post("/v1/chat/completions", json=make_body())

    for answer in (announced_response, chunked_response):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert str(MAX_BODY) in answer.json()["error"]["message"]
    assert fine.status_code == 200


async def tokens_of(seconds: float, http: httpx.AsyncClient) -> int:
    """Tokens for which ``CREDITS`` concurrent answers take ``seconds`` on this machine."""
    count, began = 20, time.monotonic()
    request_body = make_body(max_tokens=count, ignore_eos=True)
    await asyncio.gather(*(http.post("/v1/chat/completions", json=request_body) for _ in range(CREDITS)))
    return min(400, max(8, int(count * seconds / (time.monotonic() - began))))


async def test_more_than_the_executor_takes_is_429_and_what_runs_is_not_disturbed(small: System):
    async with Watch.on(small) as watch, small.http() as http:
        tokens = await tokens_of(RUNNING, http)
        before = {reply.inv for reply in watch.replies()}
        running = [
            asyncio.create_task(http.post("/v1/chat/completions", json=make_body(max_tokens=tokens, ignore_eos=True)))
            for _ in range(CREDITS)
        ]
        await watch.until(lambda: len({reply.inv for reply in watch.replies()} - before) == CREDITS)
        more = await asyncio.gather(*(http.post("/v1/chat/completions", json=make_body()) for _ in range(4)))
        answers = await asyncio.gather(*running)

    assert [answer.status_code for answer in answers] == [200] * CREDITS, [answer.text for answer in answers]
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [tokens] * CREDITS
    refusals = [answer for answer in more if answer.status_code != 200]
    assert Counter(answer.status_code for answer in refusals) == {429: len(refusals)}
    assert refusals
    for answer in refusals:
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
    await small.ledger_is_empty()


async def test_a_digest_record_holds_no_content_and_says_why_it_cannot_be_replayed(small: System):
    secret = "the brown dog plays in the park"
    async with Watch.on(small) as watch, small.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json=make_body(make_question(make_image(1), secret).messages[0]["content"])
        )
        id = answer.headers["x-request-id"]
        await watch.end(id)
    begin, end = await small.record(id)
    async with small.bus() as bus:
        replies = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, begin, 10)]

    text = answer.json()["choices"][0]["message"]["content"]
    assert secret.encode() not in begin
    assert text not in json.dumps(end, ensure_ascii=False)
    assert end["answer"]["text_sha256"]
    assert replies[-1]["status"] == "failed"
    assert "OMNIBUS_GATEWAY_RECORD=full" in replies[-1]["problem"]["message"]
    await small.ledger_is_empty()
