"""Two encoders split a request's images, and never encode an image twice."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from omnibus import graph
from omnibus.graph import Invocation
from tests import models_oracle as oracle
from tests.e2e.questions import Question, make_image, make_question
from tests.e2e.system import NODES, VL, System

pytestmark = pytest.mark.e2e

TOKENS = 12
E0, E1 = f"{VL}-E-0".replace(".", "_"), f"{VL}-E-1".replace(".", "_")


def make_comparison(*seeds: int) -> Question:
    return make_question(*(make_image(seed, 60 + 10 * seed % 90, 90) for seed in seeds), "compare")


async def send_question(system: System, question: Question, gateway: int = 0) -> tuple[str, str]:
    """Answer and invocation id."""
    body = {"model": VL, "messages": question.messages, "max_tokens": TOKENS, "temperature": 0}
    async with system.http(gateway) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"], answer.headers["x-request-id"]


async def read_invocation(system: System, id: str) -> Invocation:
    return graph.decode_invocation((await system.record(id))[0])


async def read_cache_stats(system: System) -> Counter[str]:
    """Sum of the encoders' cache statistics from ``nats service stats``."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    total: Counter[str] = Counter()
    async with asyncio.timeout(10), system.bus() as bus:
        stop = await bus.subscribe("omnibus.test.stats", lambda delivery: queue.put_nowait(delivery.data))
        bus.publish("$SRV.STATS.omnibus-E", b"", reply="omnibus.test.stats")
        for _ in (E0, E1):
            statistics: dict[str, Any] = json.loads(await queue.get())
            total.update(statistics["endpoints"][0]["data"]["cache"])
        await stop()
    return total


@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens", shape="E>L")
async def test_a_requests_images_are_encoded_by_both(encoders: System, vl_checkpoint: Path):
    question = make_comparison(1, 2, 3, 4)
    _, expected_text = oracle.vl_answer(vl_checkpoint, question.plain, question.media, TOKENS)

    text, id = await send_question(encoders, question)

    assert text == expected_text
    sent_invocation = await read_invocation(encoders, id)
    assert Counter(sent_invocation.route[:4]) == {E0: 2, E1: 2}
    assert sent_invocation.options == ("E", "E", "E", "E", "L")
    await encoders.ledger_is_empty()


@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens", shape="E>L")
async def test_images_stay_in_their_order_whoever_encodes_them(encoders: System, vl_checkpoint: Path):
    questions = [make_comparison(5, 6, 7), make_comparison(7, 5, 6), make_comparison(6, 6, 5)]
    expected_texts = [oracle.vl_answer(vl_checkpoint, one.plain, one.media, TOKENS)[1] for one in questions]

    assert [(await send_question(encoders, one))[0] for one in questions] == expected_texts


async def test_an_equal_request_is_answered_from_what_is_kept(encoders: System):
    question = make_comparison(11, 12)
    first, one = await send_question(encoders, question)
    before = await read_cache_stats(encoders)

    second, other = await send_question(encoders, question)

    after = await read_cache_stats(encoders)
    assert second == first
    assert (after["misses"] - before["misses"], after["hits"] - before["hits"]) == (0, 2)
    assert (await read_invocation(encoders, one)).route == (await read_invocation(encoders, other)).route


@pytest.mark.one_node  # a gateway on another node prefers its local encoder
async def test_another_gateway_finds_it_as_well(encoders: System):
    question = make_comparison(21)
    first, _ = await send_question(encoders, question)
    before = await read_cache_stats(encoders)

    second, _ = await send_question(encoders, question, gateway=1)

    after = await read_cache_stats(encoders)
    assert second == first
    assert (after["misses"] - before["misses"], after["hits"] - before["hits"]) == (0, 1)


async def test_equal_images_that_come_together_are_encoded_once(encoders: System):
    before = await read_cache_stats(encoders)

    answers = await asyncio.gather(*(send_question(encoders, make_comparison(31)) for _ in range(16)))

    after = await read_cache_stats(encoders)
    assert len({text for text, _ in answers}) == 1
    assert after["misses"] - before["misses"] == 1
    assert after["hits"] + after["coalesced"] - before["hits"] - before["coalesced"] == 15
    await encoders.ledger_is_empty()


async def test_another_image_is_a_miss(encoders: System):
    await send_question(encoders, make_comparison(41))
    before = await read_cache_stats(encoders)

    await send_question(encoders, make_comparison(42))

    assert (await read_cache_stats(encoders))["misses"] - before["misses"] == 1


async def test_a_replay_is_answered_from_what_is_kept_and_is_identical(encoders: System):
    _, id = await send_question(encoders, make_comparison(51, 52))
    body, _ = await encoders.record(id)
    before = await read_cache_stats(encoders)

    async with encoders.bus() as bus:
        replies = [json.loads(part) async for part in bus.request_stream("omnibus.replay", body, 20.0)]

    assert replies[-1]["identical"] is True
    if NODES == 1:  # any gateway may answer, and one on another node prefers its local encoder
        assert (await read_cache_stats(encoders))["misses"] == before["misses"]


async def test_records_say_nothing_of_what_was_kept(encoders: System):
    question = make_comparison(61)
    one, other = [(await send_question(encoders, question))[1] for _ in range(2)]

    first, second = await read_invocation(encoders, one), await read_invocation(encoders, other)

    assert [node.digest for node in first.nodes] == [node.digest for node in second.nodes]
    assert first.outputs == second.outputs
