"""A plain NATS client can list, describe, count and query executors."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from omnibus.bus import messages
from omnibus.bus.messages import Chunk, Hop
from tests import models_oracle as oracle
from tests.e2e.questions import make_question
from tests.e2e.system import VL, System
from tests.e2e.vl.test_records import send_question

pytestmark = pytest.mark.e2e

THINK = "omnibus.task.think-qwen2_5-vl-tiny-thinker"


@pytest.fixture
async def nc(vl: System) -> AsyncIterator[Client]:
    connection = await nats.connect(vl.state.nats_url)
    yield connection
    await connection.close()


async def request_all(nc: Client, subject: str, payload: bytes = b"") -> list[dict[str, Any]]:
    """All answers of the first moment, as `nats service` collects them."""
    inbox, answers = nc.new_inbox(), []

    async def collect_answer(message: Any) -> None:
        answers.append(json.loads(message.data))

    await nc.subscribe(inbox, cb=collect_answer)
    await nc.publish(subject, payload, reply=inbox)
    for _ in range(50):
        await asyncio.sleep(0.05)
        if len(answers) >= 3:
            break
    return answers


async def test_every_executor_answers_a_ping(vl: System, nc: Client):
    answers = await request_all(nc, "$SRV.PING")

    assert {one["name"] for one in answers} == {"omnibus-E", "omnibus-L", "omnibus-EL"}
    assert {one["metadata"]["executor"] for one in answers} == {
        f"qwen2_5-vl-tiny-{option}-0" for option in ("E", "L", "EL")
    }


async def test_info_names_the_unit_tasks_of_each_executor(nc: Client):
    answers = {one["name"]: one for one in await request_all(nc, "$SRV.INFO")}

    subjects = {name: {each["subject"] for each in one["endpoints"]} for name, one in answers.items()}
    encode = "omnibus.task.encode-qwen2_5-vl-tiny-vision"
    assert subjects == {"omnibus-E": {encode}, "omnibus-L": {THINK}, "omnibus-EL": {encode, THINK}}
    assert answers["omnibus-L"]["metadata"]["model"] == VL


async def test_stats_count_tokens_and_the_parameters_of_each_component(nc: Client, vl_checkpoint: Path):
    answers = {one["name"]: one for one in await request_all(nc, "$SRV.STATS")}

    parameters = {
        name: {each["name"].split("-")[-1]: each["data"]["parameters"] for each in one["endpoints"]}
        for name, one in answers.items()
    }
    whole = sum(each.numel() for each in oracle._load_vl(vl_checkpoint)[0].parameters())
    encoder, llm = parameters["omnibus-E"]["vision"], parameters["omnibus-L"]["thinker"]
    assert encoder < llm
    assert encoder + llm == whole
    assert parameters["omnibus-E"].keys() == {"vision"}
    assert parameters["omnibus-L"].keys() == {"thinker"}
    assert parameters["omnibus-EL"] == {"vision": encoder, "thinker": llm}


async def test_any_executor_of_a_unit_task_answers_a_recorded_invocation(vl: System, nc: Client):
    id, text = await send_question(vl, make_question("one two three"), temperature=0)
    body, _ = await vl.record(id)

    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(THINK, body, reply=inbox)
    replies = []
    while frame := (await subscription.next_msg(timeout=20)).data:
        replies += messages.decode_replies(frame)

    assert "".join(one.data.get("text", "") for one in replies if isinstance(one, Chunk)) == text
    assert sum(isinstance(one, Hop) for one in replies) == 1
    await vl.ledger_is_empty()


async def test_a_body_that_is_no_invocation_gets_a_reason_by_hand_too(vl: System, nc: Client):
    before = await vl.whole()

    answer = await nc.request(THINK, b"hello", timeout=10)

    assert json.loads(answer.data)["code"] == "protocol_error"
    assert await vl.whole() == before
