"""Every request is recorded, and its replay gives the same answer."""

import asyncio
import json
import re
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from omnibus.bus import subjects
from omnibus.recording.records import split_records
from tests.e2e.questions import VL_QUESTIONS, Question, make_image, make_question
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

TOKENS = 12
LONG_TEXT = make_question("the small white cat sleeps on the warm red mat. " * 345)  # travels by handle
QUESTIONS = {**{name: VL_QUESTIONS[name] for name in ("text", "image", "video")}, "long text": LONG_TEXT}


async def send_question(system: System, question: Question, **more: Any) -> tuple[str, str]:
    """Send a request and wait for its recorded end; return its id and text."""
    async with Watch.on(system) as watch, system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=VL, messages=question.messages, max_tokens=TOKENS, **more
        )
        id = raw.headers["x-request-id"]
        await watch.end(id)
    return id, raw.parse().choices[0].message.content or ""


async def request_replies(nc: Client, subject: str, payload: bytes) -> list[dict[str, Any]]:
    """Imitate `nats req --replies=0`.

    It sends a plain payload with an inbox, and reads replies up to the empty message.
    """
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)
    await nc.publish(subject, payload, reply=inbox)
    replies = []
    while (message := await subscription.next_msg(timeout=30)).data:
        replies.append(json.loads(message.data))
    return replies


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_recorded_body_published_again_gives_the_same_answer_and_says_so(vl: System, name: str):
    id, text = await send_question(vl, QUESTIONS[name], temperature=0.9, seed=5)
    nc = await nats.connect(vl.state.nats_url)
    try:
        first, last = await request_replies(nc, "omnibus.replay", (await vl.record(id))[0])
    finally:
        await nc.close()

    assert first["status"] == "running"
    assert first["replay_of"] == id
    assert last["id"] == first["id"] != id
    assert (last["status"], last["identical"], last["answer"]["text"]) == ("done", True, text)
    await vl.ledger_is_empty()


@pytest.mark.parametrize("path", ["E>L", "EL"])
async def test_a_replay_takes_the_recorded_path(vl: System, path: str):
    id, _ = await send_question(vl, make_question(make_image(1), "describe"), extra_headers={"x-omnibus-path": path})
    async with vl.bus() as bus:
        parts = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, (await vl.record(id))[0], 30)]

    assert parts[0]["path"] == path
    assert parts[-1]["identical"] is True


async def test_a_record_published_with_headers_and_no_reply_runs_again_by_itself(vl: System):
    id, text = await send_question(vl, make_question(make_image(2), "describe"), temperature=0)
    body = (await vl.record(id))[0]

    async with Watch.on(vl) as watch:
        nc = await nats.connect(vl.state.nats_url)
        await nc.publish("omnibus.replay", body, headers={"Nats-Msg-Id": f"{id}.0", "X-By": "hand"})
        await nc.flush()
        await nc.close()
        again = json.loads(split_records((await watch.first("omnibus.inv.")).data)[0])
        await watch.end(again["id"])
    _, end = await vl.record(again["id"])

    assert again["replay_of"] == id
    assert again["id"] != id
    assert (end["status"], end["answer"]["text"]) == ("done", text)


@pytest.mark.parametrize(
    "body", [b"hello", b"{}", b'{"v":99}', b""], ids=["no JSON", "empty", "of version 99", "nothing"]
)
async def test_what_is_no_record_is_refused_with_a_reason(vl: System, body: bytes):
    async with vl.bus() as bus:
        (only,) = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 10)]

    assert only["status"] == "failed"
    assert only["problem"]["code"] == "protocol_error"
    assert only["problem"]["message"]


async def run_command(system: System, *arguments: str) -> tuple[int | None, str]:
    process = system.command(*arguments)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    return process.returncode, output


async def test_show_prints_graph_route_waterfall_and_answer(vl: System):
    id, text = await send_question(
        vl, make_question(make_image(1), "describe"), temperature=0, extra_headers={"x-omnibus-path": "E>L"}
    )

    code, output = await run_command(vl, "show", id)

    assert code == 0
    assert f"{id}  {VL}" in output
    assert "path E>L" in output
    assert re.search(r"\[0\] vision +on qwen2_5-vl-tiny-E-0", output)
    assert re.search(r"\[1\] thinker +on qwen2_5-vl-tiny-L-0 +← 0\.embedding", output)
    assert re.search(r"\[0\] vision +\|.*▒.*\|( +[-\d.]+){6}$", output, re.MULTILINE)
    assert re.search(r"\[1\] thinker +\|.*█ *\|( +[-\d.]+){6}$", output, re.MULTILINE)
    assert "status  done" in output
    assert repr(text[:20])[1:-1] in output


async def test_replay_prints_that_the_answer_is_identical(vl: System):
    id, text = await send_question(vl, make_question(make_image(1), "describe"), temperature=0.8, seed=3)

    code, output = await run_command(vl, "replay", id)

    assert code == 0
    assert f"replaying {id} as " in output
    assert "identical to the recorded answer" in output
    assert repr(text[:20])[1:-1] in output


async def test_tail_prints_requests_as_they_begin_and_end(vl: System):
    process = vl.command("tail")
    assert process.stdout is not None
    try:
        assert "watching" in await asyncio.to_thread(process.stdout.readline)
        id, _ = await send_question(vl, make_question("hello"))
        lines = [await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 20) for _ in range(2)]
    finally:
        process.terminate()
        process.communicate(timeout=20)

    assert f"begin {id}  {VL}  thinker  via " in lines[0]
    assert re.search(rf"end +{id}  done after \d+ ms", lines[1])


async def test_a_request_that_nobody_recorded_is_named(vl: System):
    code, output = await run_command(vl, "show", "no-such-id")

    assert code == 1
    assert "no record of invocation no-such-id" in output
