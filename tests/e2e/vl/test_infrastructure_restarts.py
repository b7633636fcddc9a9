"""The system recovers automatically after the bus and the store are killed."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from omnibus.plan import Plan
from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests import models_oracle as oracle
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System
from tests.e2e.vl.test_records import send_question
from tests.e2e.watch import Watch, parse_events

pytestmark = pytest.mark.e2e

TOKENS = 400
QUESTION = make_question(make_image(1), "describe the image")
BACK = 20.0  # seconds until everything serves again
TYPED = {"stage_unavailable", "bus_unavailable", "deadline_exceeded", "overloaded", "stage_failed"}


def make_body(**more):
    return {"model": VL, "messages": QUESTION.messages, "max_tokens": TOKENS, "temperature": 0, **more}


async def serves_again(vl: System, **headers: str) -> None:
    """Wait at most ``BACK`` seconds for a success; earlier errors must be typed."""
    end = time.monotonic() + BACK
    async with vl.http() as http:
        while True:
            answer = await http.post("/v1/chat/completions", json=make_body(max_tokens=2), headers=headers)
            if answer.status_code == 200:
                return
            assert answer.json()["error"]["code"] in TYPED, answer.text
            assert time.monotonic() < end, answer.text
            await asyncio.sleep(0.1)


async def test_requests_in_flight_survive_a_restart_of_the_bus(vl: System, vl_checkpoint: Path):
    text = oracle.vl_answer(vl_checkpoint, QUESTION.plain, QUESTION.media, TOKENS)[1]
    async with Watch.on(vl) as watch, vl.http() as http:
        whole = [asyncio.create_task(http.post("/v1/chat/completions", json=make_body())) for _ in range(6)]
        stream_task = asyncio.create_task(http.post("/v1/chat/completions", json=make_body(stream=True)))
        await watch.first("omnibus.reply.")
        vl.server("nats-server").kill()
        answers = await asyncio.gather(*whole)
        stream = parse_events((await stream_task).content)

    for answer in answers:
        assert answer.status_code == 200 or answer.json()["error"]["code"] in TYPED, answer.text
    good = [answer.json()["choices"][0]["message"]["content"] for answer in answers if answer.status_code == 200]
    assert good == [text] * len(good)
    assert good
    if "error" in stream[-1]:
        assert stream[-1]["error"]["code"] in TYPED
    else:
        assert "".join(event["choices"][0]["delta"].get("content") or "" for event in stream) == text
    await serves_again(vl)
    await vl.ledger_is_empty()


async def test_everything_serves_after_the_bus_was_away(vl: System):
    id, _ = await send_question(vl, QUESTION, temperature=0)
    vl.server("nats-server").kill()

    await serves_again(vl)
    await serves_again(vl, **{"x-omnibus-path": "E>L"})
    begin, end = await vl.record(id)
    async with vl.bus() as bus:
        replies = [json.loads(part) async for part in bus.request_stream("omnibus.replay", begin, 30)]

    assert json.loads(begin)["id"] == end["inv"] == id
    assert (replies[-1]["status"], replies[-1]["identical"]) == ("done", True)


async def wait_for_plan(store: Store, within: float) -> Plan:
    async with asyncio.timeout(within):
        while True:
            if await store.ping() and (plan := await store.plan()) is not None:
                return plan
            await asyncio.sleep(0.1)


async def test_the_gateway_serves_while_the_store_hangs_and_the_plan_comes_back(vl: System):
    store = Store(StoreSettings(url=vl.state.store_url))
    before = await wait_for_plan(store, 5)
    valkey = vl.server("valkey-server")
    valkey.suspend()
    async with vl.http() as http:
        hanging = [await http.post("/v1/chat/completions", json=make_body(max_tokens=2)) for _ in range(5)]
        valkey.kill()
        away = [await http.post("/v1/chat/completions", json=make_body(max_tokens=2)) for _ in range(5)]

    after = await wait_for_plan(store, BACK)
    await store.close()
    assert [answer.status_code for answer in (*hanging, *away)] == [200] * 10
    assert after.epoch >= before.epoch
    assert after.models == before.models
