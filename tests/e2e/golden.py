"""Golden invocations on a running system, replayed or sent again."""

import base64
import json
from pathlib import Path
from typing import Any

from omnibus import graph
from omnibus.bus import subjects
from omnibus.graph import HANDLE
from omnibus_models import tiny
from tests.e2e.questions import data_url
from tests.e2e.system import System
from tests.e2e.watch import Watch
from tests.golden import corpus
from tests.golden.corpus import Golden

#: Whether the checkpoints of today are the ones that gave the recorded answers.
SAME_MODELS = tiny.RECIPE == corpus.RECIPE


async def store_golden(system: System, golden: Golden) -> None:
    """Store a golden invocation, its end and its media as ``system`` would."""
    corpus.fill_store(Path(system.state.directory) / "media")
    subject = subjects.record_subject(golden.document["app"], golden.id)
    async with system.bus() as bus:
        bus.publish_record(subject, golden.body, f"{golden.id}.{golden.document['attempt']}")
        bus.publish_record(subject, golden.end_body, f"{golden.id}.end")
    await system.record(golden.id)


async def replay_golden(system: System, golden: Golden) -> list[dict[str, Any]]:
    """Result of ``omnibus.replay`` for the body of a record in ``system``."""
    await store_golden(system, golden)
    return await publish_replay(system, golden)


async def publish_replay(system: System, golden: Golden) -> list[dict[str, Any]]:
    """All that ``omnibus.replay`` answers to a recorded body."""
    async with system.bus() as bus:
        return [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, golden.body, 60)]


async def runs_as_it_ran(system: System, golden: Golden) -> None:
    """Check that ``golden`` replays on its path with its answer.

    A replay may also report that its answer has changed.
    """
    first, last = await replay_golden(system, golden)

    assert (first["status"], first["replay_of"], first["path"]) == ("running", golden.id, golden.document["path"])
    assert (last["status"], last["id"]) == ("done", first["id"]), last
    if golden.drawn_by_rank or golden.is_corrected:
        assert (last["identical"], last["why"] != "") == (False, True)
    if SAME_MODELS and not golden.drawn_by_rank:
        assert last["answer"]["text"] == golden.right_answer["text"]
        assert last["answer"]["usage"] == golden.right_answer["usage"]
        assert last["identical"] is not golden.is_corrected, last["why"]
    await system.ledger_is_empty()


async def is_recorded_as_it_was(system: System, golden: Golden) -> None:
    """Check that the request of ``golden`` causes the same calls and answer."""
    headers = {"x-omnibus-path": golden.document["path"]}
    async with Watch.on(system) as watch, system.http() as http:
        answer = await http.post("/v1/chat/completions", json=build_request(golden), headers=headers)
        assert answer.status_code == 200, answer.text
        id = answer.headers["x-request-id"]
        await watch.end(id)
    begin, end = await system.record(id)

    then, now = graph.decode_invocation(golden.body), graph.decode_invocation(begin)
    assert [node.task for node in now.nodes] == [node.task for node in then.nodes]
    assert [node.digest for node in now.nodes] == [node.digest for node in then.nodes]
    assert (now.type, now.path, now.outputs, now.seed) == (then.type, then.path, then.outputs, then.seed)
    if SAME_MODELS and not golden.drawn_by_rank:
        assert end["answer"]["text"] == golden.right_answer["text"]
    await system.ledger_is_empty()


def build_request(golden: Golden) -> dict[str, Any]:
    """Body of the chat request that caused ``golden``, with its seed."""
    inputs = {node["component"]: node["inputs"] for node in golden.document["nodes"]}
    thinker = inputs["thinker"]
    media = [node["inputs"]["media"] for node in golden.document["nodes"] if "media" in node["inputs"]]
    body = {
        "model": golden.document["model"],
        "messages": _with_media(_read_messages(thinker["messages"]), media),
        "seed": golden.document["seed"],
        **{name: value for name, value in thinker["params"].items() if value is not None},
    }
    if "talker" in inputs:
        codes = inputs["talker"]["params"]["max_codes"]
        body["modalities"] = ["text", "audio"]
        body["audio"] = {"voice": thinker["voice"], "format": "wav", "max_tokens": codes}
    return body


def _read_content(literal: dict[str, Any]) -> bytes:
    return (corpus.MEDIA / literal["sha256"]).read_bytes()


def _read_messages(value: Any) -> Any:
    return json.loads(_read_content(value)) if HANDLE in value else value


def _with_media(messages: list[dict[str, Any]], media: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` with the bytes of the media that they mention, in order."""
    left = iter(media)
    return [
        {**message, "content": [_build_part(part, left) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def _build_part(part: dict[str, Any], media: Any) -> dict[str, Any]:
    if part["type"] == "text":
        return part
    literal = next(media)
    if part["type"] == "audio":
        data = base64.b64encode(_read_content(literal)).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    kind = f"{part['type']}_url"
    return {"type": kind, kind: {"url": data_url(literal["mime"], _read_content(literal))}}
