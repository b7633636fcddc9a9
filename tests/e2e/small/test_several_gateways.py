"""Several gateways give equal answers and follow the plan together.

Any of them can die.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from omnibus.bus import subjects
from tests.e2e.questions import VL_QUESTIONS
from tests.e2e.small.load import keep_busy, list_sent_tasks, make_body, send_chat
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

#: Seconds in which a gateway is back.
PATIENCE = 60.0
# The sequence that chooses paths deviates by less than one request after a Fibonacci number of requests.
REQUESTS = 377  # at each gateway


@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_the_same_request_has_the_same_answer_at_every_gateway(pair: System, name: str):
    request_body = make_body(
        VL_QUESTIONS[name].messages[0]["content"], temperature=1, seed=7, max_tokens=20, ignore_eos=True
    )

    async with pair.http(0) as one, pair.http(1) as other:
        answers = [await send_chat(http, request_body) for http in (one, other, one)]

    assert len(set(answers)) == 1
    assert answers[0]


@pytest.mark.parametrize("at_once", [1, 4])
async def test_together_they_keep_to_the_planned_shares_and_use_all_replicas(pair: System, at_once: int):
    counts: dict[int, Counter[str]] = {0: Counter(), 1: Counter()}

    async def send_requests(gateway: int, http: httpx.AsyncClient, work: Iterator[int]) -> None:
        for _ in work:
            answer = await http.post("/v1/chat/completions", json=make_body(max_tokens=1))
            assert answer.status_code == 200, answer.text
            counts[gateway][answer.headers["x-omnibus-path"]] += 1

    async with Watch.on(pair) as watch, pair.http(0) as one, pair.http(1) as other:
        works = [iter(range(REQUESTS)), iter(range(REQUESTS))]
        await asyncio.gather(
            *(
                send_requests(gateway, (one, other)[gateway], works[gateway])
                for gateway in (0, 1)
                for _ in range(at_once)
            )
        )
        await watch.until(lambda: len(list_sent_tasks(watch)) == 2 * REQUESTS)

    for shares in counts.values():
        assert shares.total() == REQUESTS
        assert abs(shares["L"] - 0.7 * REQUESTS) <= 1
    replicas = Counter(each.to for each in list_sent_tasks(watch))
    apart = [replicas[subjects.subject_token(f"{VL}-L-{replica}")] for replica in (0, 1)]
    assert min(apart) > sum(apart) / 3, replicas  # each gateway knows of the other's work by heartbeats alone


async def first_answer(url: str) -> httpx.Response:
    """First answer of a gateway that starts."""
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(timeout=PATIENCE) as http:
        while True:
            try:
                return await http.get(url)
            except httpx.TransportError:
                await asyncio.sleep(0.005)


async def test_one_may_die_and_comes_back_while_the_other_serves(pair: System):
    first = pair.gateway(1)

    async with keep_busy(pair, [0]) as answers:
        before = answers.total()
        first.kill()
        response = await first_answer(f"{pair.urls[1]}/v1/models")
        await pair.becomes_ready()
        second = pair.gateway(1)
        async with pair.http(1) as http:
            again = await send_chat(http, make_body())

    async with pair.http(0) as http:
        assert await send_chat(http, make_body()) == again
    assert second.pid != first.pid
    assert VL in {model["id"] for model in response.json()["data"]}  # it opens its port when it can answer
    assert answers.total() > before
    assert len(answers) == 1
