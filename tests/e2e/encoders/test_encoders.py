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
from tests.e2e.questions import Question, ask, image
from tests.e2e.system import NODES, VL, System

pytestmark = pytest.mark.e2e

TOKENS = 12
E0, E1 = f"{VL}-E-0".replace(".", "_"), f"{VL}-E-1".replace(".", "_")


def pictures(*seeds: int) -> Question:
    return ask(*(image(seed, 60 + 10 * seed % 90, 90) for seed in seeds), "compare")


async def answered(system: System, question: Question, gateway: int = 0) -> tuple[str, str]:
    """Answer and invocation id."""
    body = {"model": VL, "messages": question.messages, "max_tokens": TOKENS, "temperature": 0}
    async with system.http(gateway) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"], answer.headers["x-request-id"]


async def invocation(system: System, id: str) -> Invocation:
    return graph.decode_invocation((await system.record(id))[0])


async def kept(system: System) -> Counter[str]:
    """Sum of the encoders' cache statistics from ``nats service stats``."""
    found: asyncio.Queue[bytes] = asyncio.Queue()
    total: Counter[str] = Counter()
    async with asyncio.timeout(10), system.bus() as bus:
        stop = await bus.subscribe("omnibus.test.stats", lambda delivery: found.put_nowait(delivery.data))
        bus.publish("$SRV.STATS.omnibus-E", b"", reply="omnibus.test.stats")
        for _ in (E0, E1):
            said: dict[str, Any] = json.loads(await found.get())
            total.update(said["endpoints"][0]["data"]["cache"])
        await stop()
    return total


@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens", shape="E>L")
async def test_a_requests_images_are_encoded_by_both(encoders: System, vl_checkpoint: Path):
    question = pictures(1, 2, 3, 4)
    _, expected = oracle.vl_answer(vl_checkpoint, question.plain, question.media, TOKENS)

    said, id = await answered(encoders, question)

    assert said == expected
    sent = await invocation(encoders, id)
    assert Counter(sent.route[:4]) == {E0: 2, E1: 2}
    assert sent.options == ("E", "E", "E", "E", "L")
    await encoders.ledger_is_empty()


@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens", shape="E>L")
async def test_images_stay_in_their_order_whoever_encodes_them(encoders: System, vl_checkpoint: Path):
    questions = [pictures(5, 6, 7), pictures(7, 5, 6), pictures(6, 6, 5)]
    expected = [oracle.vl_answer(vl_checkpoint, one.plain, one.media, TOKENS)[1] for one in questions]

    assert [(await answered(encoders, one))[0] for one in questions] == expected


async def test_an_equal_request_is_answered_from_what_is_kept(encoders: System):
    question = pictures(11, 12)
    first, one = await answered(encoders, question)
    before = await kept(encoders)

    second, other = await answered(encoders, question)

    after = await kept(encoders)
    assert second == first
    assert (after["misses"] - before["misses"], after["hits"] - before["hits"]) == (0, 2)
    assert (await invocation(encoders, one)).route == (await invocation(encoders, other)).route


@pytest.mark.one_node  # a gateway on another node prefers its local encoder
async def test_another_gateway_finds_it_as_well(encoders: System):
    question = pictures(21)
    first, _ = await answered(encoders, question)
    before = await kept(encoders)

    second, _ = await answered(encoders, question, gateway=1)

    after = await kept(encoders)
    assert second == first
    assert (after["misses"] - before["misses"], after["hits"] - before["hits"]) == (0, 1)


async def test_equal_images_that_come_together_are_encoded_once(encoders: System):
    before = await kept(encoders)

    answers = await asyncio.gather(*(answered(encoders, pictures(31)) for _ in range(16)))

    after = await kept(encoders)
    assert len({said for said, _ in answers}) == 1
    assert after["misses"] - before["misses"] == 1
    assert after["hits"] + after["coalesced"] - before["hits"] - before["coalesced"] == 15
    await encoders.ledger_is_empty()


async def test_another_image_is_a_miss(encoders: System):
    await answered(encoders, pictures(41))
    before = await kept(encoders)

    await answered(encoders, pictures(42))

    assert (await kept(encoders))["misses"] - before["misses"] == 1


async def test_a_replay_is_answered_from_what_is_kept_and_is_identical(encoders: System):
    _, id = await answered(encoders, pictures(51, 52))
    recorded, _ = await encoders.record(id)
    before = await kept(encoders)

    async with encoders.bus() as bus:
        replies = [json.loads(part) async for part in bus.request_stream("omnibus.replay", recorded, 20.0)]

    assert replies[-1]["identical"] is True
    if NODES == 1:  # any gateway may answer, and one on another node prefers its local encoder
        assert (await kept(encoders))["misses"] == before["misses"]


async def test_records_say_nothing_of_what_was_kept(encoders: System):
    question = pictures(61)
    one, other = [(await answered(encoders, question))[1] for _ in range(2)]

    first, second = await invocation(encoders, one), await invocation(encoders, other)

    assert [node.digest for node in first.nodes] == [node.digest for node in second.nodes]
    assert first.outputs == second.outputs
