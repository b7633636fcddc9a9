"""Paths get their planned shares for all kinds of requests."""

import asyncio
from collections import Counter

import httpx
import pytest

from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System

pytestmark = pytest.mark.e2e

# The sequence that chooses paths deviates by less than one request after a Fibonacci number of requests.
REQUESTS = 377
AT_ONCE = 8


async def test_of_a_few_hundred_requests_70_in_100_go_one_way_to_within_one_request(vl: System):
    counts: Counter[str] = Counter()
    work = iter(range(REQUESTS))
    body = {"model": VL, "messages": make_question("yes or no").messages, "max_tokens": 1, "temperature": 0}

    async def send_requests(http: httpx.AsyncClient) -> None:
        for _ in work:
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            counts[answer.headers["x-omnibus-path"]] += 1

    async with vl.http() as http:
        await asyncio.gather(*(send_requests(http) for _ in range(AT_ONCE)))

    assert counts.total() == REQUESTS
    assert abs(counts["L"] - 0.7 * REQUESTS) <= 1
    assert abs(counts["EL"] - 0.3 * REQUESTS) <= 1


async def test_requests_with_media_are_split_like_those_without(vl: System):
    requests = 55
    body = {
        "model": VL,
        "messages": make_question(make_image(1), "yes or no").messages,
        "max_tokens": 1,
        "temperature": 0,
    }

    async with vl.http() as http:
        answers = [await http.post("/v1/chat/completions", json=body) for _ in range(requests)]

    counts = Counter(answer.headers["x-omnibus-path"] for answer in answers)
    assert abs(counts["E>L"] - 0.7 * requests) <= 1
    assert abs(counts["EL"] - 0.3 * requests) <= 1


async def test_a_path_that_the_plan_does_not_have_is_refused_by_name(vl: System):
    body = {"model": VL, "messages": make_question("hello").messages}

    async with vl.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": "M"})

    assert answer.status_code == 400
    assert "choose one of L, EL" in answer.json()["error"]["message"]
