"""Time travel: a recorded invocation edge by edge, forks with one input changed, and both side by side."""

import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnibus.bus import subjects
from omnibus.cli.compare import compare_steps
from omnibus.cli.steps import step_lines
from omnibus.errors import BadRequest
from omnibus.graph import encode_invocation
from omnibus.recording import records
from omnibus.recording.records import Record
from omnibus.recording.steps import build_steps, can_begin_at, find_node, fork_invocation, parse_change
from omnibus_gateway.dispatch.retention import RecordedChunk
from omnibus_gateway.rerun.contents import render_chunks
from tests.unit.gateway.house import (
    PNG,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    read_error_body,
    start_toy_gateway,
)
from tests.unit.gateway.replay.test_replay_from import PATIENCE, start_counting

ASKED: dict[str, Any] = {"content": [make_text_part("look"), make_image_part()], "path": "E>L", "seed": 5}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, record="stages") as gateway:
        gateway.ran = Counter()
        yield gateway


async def record_request(home: ToyGateway) -> Record:
    home.serve(VL)
    await start_counting(home, VL, E=("vision",), L=("thinker",))
    response = await home.ask(**ASKED)
    read_chat_answer(response)
    await home.ended(response.headers["x-request-id"])
    home.ran.clear()
    return await records.find_record(home.bus, response.headers["x-request-id"])


async def fork_record(home: ToyGateway, record: Record, stage: str, *changes: str) -> tuple[Record, dict[str, Any]]:
    """Return the record of a fork and its last reply."""
    node = find_node(record.invocation, stage)
    body = encode_invocation(fork_invocation(record.invocation, node, dict(map(parse_change, changes)), None))
    start = {"Omnibus-From": str(node)} if can_begin_at(*record, node) else None
    replies = [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, body, PATIENCE, start)]
    await home.ended(replies[-1]["id"])
    return await records.find_record(home.bus, replies[-1]["id"]), replies[-1]


async def test_each_edge_of_an_invocation_can_be_looked_at(home: ToyGateway):
    record = await record_request(home)
    id = record.invocation.id

    steps = (await home.http.get(f"/v1/invocations/{id}/steps")).json()
    media_response = await home.http.get(f"/v1/invocations/{id}/steps/0/inputs/media")
    embedding_response = await home.http.get(f"/v1/invocations/{id}/steps/0/outputs/embedding")
    text_response = await home.http.get(f"/v1/invocations/{id}/steps/1/outputs/text")

    assert [(step["component"], step["forkable"]) for step in steps] == [("vision", True), ("thinker", True)]
    assert (media_response.headers["content-type"], media_response.content) == ("image/png", PNG)
    assert media_response.headers["content-security-policy"] == "sandbox"
    assert embedding_response.json()["shapes"] == [[1, 4]]
    assert text_response.text.startswith("You said look")
    assert any(line.startswith("  → text: You said look") for line in step_lines(build_steps(*record)[1], "an-id"))


async def test_a_fork_runs_from_the_changed_stage_and_names_its_parent(home: ToyGateway):
    record = await record_request(home)

    after, reply = await fork_record(home, record, "thinker", "messages.0.content.0.text=listen")

    assert home.ran == {"thinker": 1}, "what comes before is played"
    assert after.invocation.replay_of == record.invocation.id
    assert after.ended is not None
    assert after.ended.answer.text.startswith("You said listen")
    assert reply["identical"] is False
    rows = {(row[0], row[1]): row[4] for row in compare_steps(record, after)}
    assert not rows["[1] thinker", "← messages"]
    assert not rows["[1] thinker", "→ text"]
    assert rows["[0] vision", "→ embedding"]


@pytest.mark.parametrize("change", ["messages.0.content=listen", 'messages.0.content="listen"'])
async def test_a_text_replaces_that_of_a_message_with_media(home: ToyGateway, change: str):
    record = await record_request(home)

    after, _ = await fork_record(home, record, "thinker", change)

    assert after.ended is not None
    assert after.ended.answer.text.startswith("You said listen")
    before, changed = (each.invocation.nodes[1].inputs["messages"][0]["content"] for each in (record, after))
    assert [part["type"] for part in changed] == [part["type"] for part in before] == ["text", "image"]


async def test_a_step_offers_forks_of_inputs_that_can_be_changed(home: ToyGateway):
    record = await record_request(home)

    vision, thinker = build_steps(*record)

    assert (vision.changeable, thinker.changeable) == ((), ("messages", "params"))
    assert not any("fork" in line for line in step_lines(vision, "an-id"))
    assert list(step_lines(thinker, "an-id"))[-2:] == [
        "  a fork can change messages, params:",
        "    omnibus fork an-id 1 INPUT=VALUE",
    ]


async def test_a_parameter_of_a_fork_counts(home: ToyGateway):
    record = await record_request(home)

    after, _ = await fork_record(home, record, "1", "params.max_tokens=2")

    assert after.ended is not None
    assert after.ended.answer.text == "You said "


@pytest.mark.parametrize(
    ("stage", "changes", "why"),
    [
        ("2", ["x=1"], "unknown stage '2'; there is 0 (vision), 1 (thinker)"),
        ("thinker", ["nothing=1"], "thinker has no input 'nothing'"),
        ("thinker", ["items=1"], "an output of another node"),
        ("vision", ["media=1"], "media cannot be changed"),
        ("thinker", ["messages.7.content=x"], "has no key '7'"),
        ("thinker", ["params"], "a change is INPUT=VALUE"),
        ("thinker", [], "a fork changes something"),
    ],
)
async def test_what_cannot_be_changed_says_why(home: ToyGateway, stage: str, changes: list[str], why: str):
    record = await record_request(home)

    with pytest.raises(BadRequest) as caught:
        node = find_node(record.invocation, stage)
        fork_invocation(record.invocation, node, dict(map(parse_change, changes)), None)

    assert why in caught.value.message


async def test_what_was_not_kept_says_what_keeps_it(tmp_path: Path):
    async with start_toy_gateway(tmp_path) as plain:
        plain.ran = Counter()
        record = await record_request(plain)
        response = await plain.http.get(f"/v1/invocations/{record.invocation.id}/steps/0/outputs/embedding")
        missing = await plain.http.get(f"/v1/invocations/{record.invocation.id}/steps/0/outputs/nothing")

    assert response.status_code == missing.status_code == 404
    assert "OMNIBUS_GATEWAY_RECORD=stages" in read_error_body(response)["message"]
    assert not can_begin_at(*record, 1)


def test_outputs_are_shown_as_what_they_are():
    pixels = np.zeros((2, 3, 3), np.uint8)
    sound = [RecordedChunk({"rate": 8000}, np.zeros(80, np.float32)), RecordedChunk({}, None, True)]

    picture = render_chunks([RecordedChunk({}, pixels, True)])
    audio = render_chunks(sound)
    codes = render_chunks([RecordedChunk({"codes": [1, 2]}), RecordedChunk({"codes": [3]}, None, True)])

    assert picture.mime == "image/png"
    assert Image.open(io.BytesIO(picture.body)).size == (3, 2)
    assert (audio.mime, audio.body[:4]) == ("audio/wav", b"RIFF")
    assert json.loads(codes.body)["data"] == {"codes": [1, 2, 3]}
