"""Replay on ``omnibus.replay``: the same graph, seed and path again, and the comparison of the answers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.executor.runner import Job
from omnibus.graph import HANDLE, Invocation
from tests.unit.gateway.house import (
    OMNI,
    PNG,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    start_toy_gateway,
    write_chat_words,
)

PATIENCE = 20.0  # seconds
SPEECH = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}


async def record_request(home: ToyGateway, **asked: Any) -> bytes:
    """Send a request and return its recorded invocation's bytes."""
    response = await home.ask(**asked)
    read_chat_answer(response)
    id = response.headers["x-request-id"]
    await home.ended(id)
    return (await home.bus.read_records(f"{subjects.ROOT}.inv.*.{id}"))[0].data


async def replay_invocation(home: ToyGateway, body: bytes) -> list[dict[str, Any]]:
    """Return all parts of the reply, which ends with an empty message."""
    return [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, body, PATIENCE)]


async def test_a_recorded_request_runs_again_as_it_was(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()], path="E>L")
    invocation = graph.decode_invocation(body)

    running, reply = await replay_invocation(home, body)

    assert running["status"] == "running"
    assert (running["replay_of"], running["path"]) == (invocation.id, "E>L")
    assert running["id"] != invocation.id
    assert (reply["status"], reply["id"], reply["identical"]) == ("done", running["id"], True)
    await home.emptied()


async def test_a_replay_is_recorded_itself_and_can_be_replayed(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content=[make_text_part("look"), make_image_part()])

    running, _ = await replay_invocation(home, body)

    again, end_record = await home.records.find(running["id"])
    first = graph.decode_invocation(body)
    assert (again.replay_of, again.seed, again.attempt, again.app) == (first.id, first.seed, 0, "chat")
    assert [node.digest for node in again.nodes] == [node.digest for node in first.nodes]
    assert end_record is not None
    assert end_record.status == "done"
    [_, reply] = await replay_invocation(home, graph.encode_invocation(again))
    assert reply["identical"] is True


async def test_long_messages_come_back_from_their_hash(home: ToyGateway):
    await home.all_of(VL)
    body = await record_request(home, content=" ".join(f"w{number}" for number in range(5000)))

    _, reply = await replay_invocation(home, body)

    assert reply["identical"] is True
    assert len(reply["answer"]["text"]) <= 16_000
    await home.emptied()


async def test_speech_is_compared_sample_by_sample(home: ToyGateway):
    await home.all_of(OMNI)
    body = await record_request(home, model=OMNI, content="hi", path="Th>Ta>V", **SPEECH)

    _, reply = await replay_invocation(home, body)

    assert reply["identical"] is True
    assert reply["answer"]["audio_seconds"] == 4 * 240 / 24000
    await home.emptied()


@pytest.mark.parametrize(("louder", "same"), [(1.0 / 32767, True), (9.0 / 32767, False)])
async def test_sound_may_differ_by_one_step_and_no_more(home: ToyGateway, louder: float, same: bool):
    shift = 0.0

    async def play_hum(job: Job) -> None:
        async for _ in job.stream("codes"):
            pass
        await job.send("audio", {"rate": 24000}, np.full(240, 0.5 + shift, np.float32))

    home.serve(OMNI)
    await home.executor(OMNI, "M", "vision", "audio", "thinker", "talker", "vocoder", vocoder=play_hum)
    body = await record_request(home, model=OMNI, content="hi", **SPEECH)
    shift = louder

    _, reply = await replay_invocation(home, body)

    assert reply["identical"] is same
    assert same or reply["why"] == "vocoder.audio differs: from sample 0 on"


async def test_another_text_is_said(home: ToyGateway):
    await home.all_of(VL)
    invocation = graph.decode_invocation(await record_request(home, content="hi", seed=1))

    _, reply = await replay_invocation(home, graph.encode_invocation(msgspec.structs.replace(invocation, seed=2)))

    assert (reply["identical"], reply["why"]) == (False, "thinker.text differs: text from character 13 on")


async def test_what_never_ended_cannot_be_compared(home: ToyGateway):
    await home.all_of(VL)
    invocation = graph.decode_invocation(await record_request(home, content="hi"))

    unknown = msgspec.structs.replace(invocation, id="gw-7-7")
    home.bus.publish_record(subjects.record_subject("chat", unknown.id), graph.encode_invocation(unknown), unknown.id)
    _, reply = await replay_invocation(home, graph.encode_invocation(unknown))

    assert reply["identical"] is None
    assert "no finished answer" in reply["why"]


# Failed replays


async def read_problem(home: ToyGateway, body: bytes) -> dict[str, Any]:
    *_, last = await replay_invocation(home, body)
    assert last["status"] == "failed"
    await home.emptied()
    return dict(last["problem"])


async def test_a_digest_record_says_what_to_set(tmp_path: Path):
    async with start_toy_gateway(tmp_path, record="digest") as home:
        await home.all_of(VL)
        body = await record_request(home, content="hi")

        problem = await read_problem(home, body)

        assert problem["code"] == "bad_request"
        assert "OMNIBUS_GATEWAY_RECORD=full" in problem["message"]


async def test_media_of_a_digest_record_say_so_too(tmp_path: Path):
    async with start_toy_gateway(tmp_path, record="digest") as home:
        await home.all_of(VL)
        invocation = graph.decode_invocation(
            await record_request(home, content=[make_image_part(), make_text_part("look")])
        )

        problem = await read_problem(home, graph.encode_invocation(invocation))

        assert (problem["code"], "'media'" in problem["message"]) == ("bad_request", True)


async def test_a_clients_own_json_is_not_taken_for_kept_media(home: ToyGateway):
    home.serve(VL)
    notes: list[Any] = []

    async def record_note(job: Job) -> None:
        notes.append(job.inputs["params"].get("note"))
        await write_chat_words(job)

    await home.executor(VL, "EL", "vision", "thinker", thinker=record_note)
    invocation = graph.decode_invocation(
        await record_request(home, content=[make_image_part(), make_text_part("look")])
    )
    first, thinker = invocation.nodes
    digest = first.inputs["media"]["sha256"]
    note = {"sha256": digest, "more": [{"sha256": digest, "dtype": "uint8", "shape": [1]}, {"sha256": "/etc/hostname"}]}
    noted_node = graph.with_inputs(thinker, {**thinker.inputs, "params": {**thinker.inputs["params"], "note": note}})

    await replay_invocation(
        home, graph.encode_invocation(msgspec.structs.replace(invocation, nodes=(first, noted_node)))
    )

    assert notes == [None, note]
    await home.emptied()


async def test_media_that_are_not_kept_any_more_are_said(home: ToyGateway, tmp_path: Path):
    await home.all_of(VL)
    body = await record_request(home, content=[make_image_part(), make_text_part("look")])
    digest = graph.decode_invocation(body).nodes[0].inputs["media"]["sha256"]
    assert await home.keep.get(digest) == PNG
    (tmp_path / "kept" / digest[:2] / digest).unlink()

    problem = await read_problem(home, body)

    assert problem["code"] == "not_found"
    assert "media directory" in problem["message"]


def with_media(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Invocation], Invocation]:
    def change_media(invocation: Invocation) -> Invocation:
        first, *rest = invocation.nodes
        media = change(dict(first.inputs["media"]))
        return msgspec.structs.replace(invocation, nodes=(graph.with_inputs(first, {"media": media}), *rest))

    return change_media


CHANGES: dict[str, tuple[Callable[[Invocation], Invocation], str]] = {
    "model": (lambda recorded: msgspec.structs.replace(recorded, model="gone"), "not_found"),
    "option": (lambda recorded: msgspec.structs.replace(recorded, options=("X", "X")), "stage_unavailable"),
    "path to a file": (with_media(lambda media: {**media, "sha256": "../secret"}), "not_found"),
    "file of the system": (with_media(lambda media: {**media, "sha256": "/etc/hostname"}), "not_found"),
    "no hash": (with_media(lambda media: {HANDLE: media[HANDLE]}), "not_found"),
}


@pytest.mark.parametrize(("change", "code"), CHANGES.values(), ids=CHANGES.keys())
async def test_what_was_changed_by_hand_can_do_no_harm(
    home: ToyGateway, tmp_path: Path, change: Callable[[Invocation], Invocation], code: str
):
    await home.all_of(VL)
    (tmp_path / "secret").write_bytes(PNG)
    invocation = graph.decode_invocation(
        await record_request(home, content=[make_image_part(), make_text_part("look")])
    )

    assert (await read_problem(home, graph.encode_invocation(change(invocation))))["code"] == code


@pytest.mark.parametrize("body", [b"", b"x", b"{}", b'{"v":9}', b"[1]"])
async def test_what_is_no_invocation_is_answered_with_a_problem(home: ToyGateway, body: bytes):
    await home.all_of(VL)

    assert (await read_problem(home, body))["code"] == "protocol_error"


async def test_a_stage_that_breaks_now_is_named(home: ToyGateway):
    home.serve(VL)
    works = True

    async def fail_when_broken(job: Job) -> None:
        assert works, "out of order"
        await job.send("text", {"text": "fine"})

    await home.executor(VL, "EL", "vision", "thinker", thinker=fail_when_broken)
    body = await record_request(home, content="hi")
    works = False

    problem = await read_problem(home, body)

    assert (problem["code"], problem["stage"]) == ("stage_failed", "thinker")


async def test_a_replay_takes_no_longer_than_the_request_might_have(tmp_path: Path):
    hangs = False

    async def hang_or_answer(job: Job) -> None:
        if hangs:
            await asyncio.Event().wait()
        await job.send("text", {"text": "fine"})

    async with start_toy_gateway(tmp_path, deadline=0.5) as home:
        home.serve(VL)
        executor = await home.executor(VL, "EL", "vision", "thinker", thinker=hang_or_answer)
        body = await record_request(home, content="hi")
        hangs = True
        home.place.executors[executor]._end_expired = lambda: None  # type: ignore[method-assign] # it has stopped, alive

        problem = await failure_within(home, body)

        assert problem["code"] == "deadline_exceeded"
        assert home.dispatcher.inflight_count == 0


async def failure_within(home: ToyGateway, body: bytes) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        *_, last = await replay_invocation(home, body)
    return dict(last["problem"])
