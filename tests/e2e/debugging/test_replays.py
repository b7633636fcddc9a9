"""Replays of requests that other routes than chat started: lines of batches, responses in the background, nested tasks."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.e2e.system import VL, System

pytestmark = pytest.mark.e2e

_WITHIN = 60.0
_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def run_replay(system: System, id: str) -> tuple[int | None, str]:
    process = system.command("replay", id)
    output, _ = process.communicate(timeout=_WITHIN)
    return process.returncode, output


async def replay(system: System, id: str) -> tuple[int | None, str]:
    """Return the exit code of ``omnibus replay ID`` and what it printed, once the record is complete."""
    await system.record(id)
    return await asyncio.to_thread(run_replay, system, id)


async def poll_ended(read: Callable[[], Awaitable[httpx.Response]]) -> dict[str, Any]:
    """Return the document once its status is no longer that of running work."""
    async with asyncio.timeout(_WITHIN):
        while True:
            document: dict[str, Any] = (await read()).json()
            if document["status"] not in ("validating", "queued", "in_progress", "finalizing"):
                return document
            await asyncio.sleep(0.1)


async def test_each_line_of_a_batch_is_replayed_by_the_id_in_its_output(traced_system: System):
    body = {"model": VL, "max_tokens": 6, "temperature": 1.0, "seed": 5}
    lines = [
        json.dumps({
            "custom_id": text, "method": "POST", "url": "/v1/chat/completions",
            "body": {**body, "messages": [{"role": "user", "content": text}]},
        })
        for text in ("one", "two")
    ]  # fmt: skip
    async with traced_system.http() as http:
        upload = {"files": {"file": ("b.jsonl", "\n".join(lines))}, "data": {"purpose": "batch"}}
        file = (await http.post("/v1/files", **upload)).json()["id"]
        request = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = (await http.post("/v1/batches", json=request)).json()
        ended = await poll_ended(lambda: http.get(f"/v1/batches/{batch['id']}"))
        output = (await http.get(f"/v1/files/{ended['output_file_id']}/content")).text

    answers = {row["custom_id"]: row["response"] for row in map(json.loads, output.splitlines())}
    assert set(answers) == {"one", "two"}
    for answer in answers.values():
        code, text = await replay(traced_system, answer["request_id"])
        assert code == 0, text
        assert "identical to the recorded answer" in text
        assert repr(answer["body"]["choices"][0]["message"]["content"]) in text


async def test_a_response_of_the_background_with_a_tool_result_is_replayed(traced_system: System):
    operator = {"authorization": f"Bearer {traced_system.state.admin_token}"}
    async with traced_system.http() as http:
        first = await http.post("/v1/responses", json={"model": VL, "input": "hello", "max_output_tokens": 4})
        items = [
            {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "red"},
        ]
        body = {"model": VL, "input": items, "tools": [_TOOL], "tool_choice": "none", "max_output_tokens": 6}
        body |= {"background": True, "previous_response_id": first.json()["id"]}
        begun = await http.post("/v1/responses", json=body)
        ended = await poll_ended(lambda: http.get(f"/v1/responses/{begun.json()['id']}"))
        newest = (await http.get("/v1/invocations", params={"model": VL, "limit": 1}, headers=operator)).json()

    for id, document in ((first.headers["x-request-id"], first.json()), (newest["data"][0]["id"], ended)):
        code, text = await replay(traced_system, id)
        assert code == 0, text
        assert "identical to the recorded answer" in text
        [message] = [item for item in document["output"] if item["type"] == "message"]
        assert repr(message["content"][0]["text"]) in text
    code, text = await asyncio.to_thread(run_replay, traced_system, begun.json()["id"])
    assert code != 0
    assert "GET /v1/invocations" in text


async def test_a_nested_task_that_grows_is_replayed_with_all_its_segments(traced_system: System):
    async with traced_system.http() as http:
        answer = await http.post("/v1/apps/brittle/invoke", json={"text": "echo"})
    assert answer.json() == {"text": "echo echo"}
    id = answer.headers["x-request-id"]
    await traced_system.record(f"{id}_1")

    code, text = await replay(traced_system, id)

    assert code == 0, text
    assert [f"replaying {each} as" in text for each in (id, f"{id}_1")] == [True, True]
    assert f"segment {id}: again.text" in text
    assert f"segment {id}_1: again.text" in text
    assert "identical to the recorded answer" in text
