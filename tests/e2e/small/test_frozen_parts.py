"""Every route answers by the deadline while another service is frozen.

That is NATS, the store or the sidecar. The answer may be an error with the reason.
"""

import asyncio
import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from omnibus.bus.nats.bus import APPEND_TIMEOUT_SECONDS
from tests.e2e.questions import make_audio, make_image, make_question
from tests.e2e.small import media
from tests.e2e.small.streams import MODEL, SPOKEN, question_body
from tests.e2e.system import System, start_system
from tests.own_time import OwnTime, own_time

pytestmark = pytest.mark.e2e

DEADLINE = 3.0  # seconds
#: Seconds of own time beyond the deadline: 2 are promised, the rest is for a busy machine.
LATE = 5.0
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
CONTINUED = {"x-omnibus-continue": "true"}
LINE = json.dumps({"custom_id": "1", "method": "POST", "url": CHAT, "body": question_body(1)}).encode()


IMAGE = {"model": media.PAINTER, "prompt": "a cat", "size": "64x64", "steps": 4}
VIDEO = {"model": media.DIRECTOR, "prompt": "a cat", "size": "64x32", "steps": 4, "seconds": "0.375"}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A running system, in which ``omnibus up`` does not restart frozen processes."""
    directory = tmp_path_factory.mktemp("frozen")
    with start_system(
        directory,
        media.declare_models(directory),
        *media.app_flags(directory),
        OMNIBUS_EXECUTOR_ENGINE="omnibus_engines:sim",
        OMNIBUS_GATEWAY_DEADLINE=str(DEADLINE),
        OMNIBUS_UP_SILENT="120",
        OMNIBUS_UP_FROZEN="120",
    ) as system:
        yield system


async def make_calls(http: httpx.AsyncClient) -> dict[str, httpx.Request]:
    """A request to every route, with existing ids."""
    file = (await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", LINE)})).json()["id"]
    batch = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    batch_id = (await http.post("/v1/batches", json=batch)).json()["id"]
    stored_response = await http.post(RESPONSES, json={"model": MODEL, "input": "hello", "max_output_tokens": 4})
    response = stored_response.json()["id"]
    talk = (await http.post("/v1/conversations", json={})).json()["id"]
    completion = (await http.post(CHAT, json=question_body(2, max_tokens=4, **SPOKEN))).json()
    invocation = completion["id"].removeprefix("chatcmpl-")
    image_messages = make_question(make_image(1), "describe").messages
    again = [{"role": "assistant", "audio": {"id": completion["choices"][0]["message"]["audio"]["id"]}}]
    again = [*question_body(3)["messages"], *again, *question_body(3)["messages"]]
    response_body: dict[str, Any] = {"model": MODEL, "input": "hello"}
    posts: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        (CHAT, question_body(4), {}),
        (CHAT, question_body(5, stream=True), {}),
        (CHAT, question_body(6, stream=True), CONTINUED),
        (CHAT, question_body(7, **SPOKEN), {}),
        (CHAT, question_body(8, stream=True, **SPOKEN), CONTINUED),
        (CHAT, question_body(9, messages=image_messages), {}),
        (CHAT, question_body(10, messages=again), {}),
        ("/v1/completions", {"model": MODEL, "prompt": "hello"}, {}),
        ("/v1/audio/speech", {"model": MODEL, "input": "hello", "voice": "Chelsie", "stream_format": "sse"}, {}),
        (RESPONSES, response_body, {}),
        (RESPONSES, {**response_body, "stream": True}, {}),
        (RESPONSES, {**response_body, "background": True}, {}),
        (RESPONSES, {**response_body, "conversation": talk}, {}),
        (RESPONSES, {**response_body, "previous_response_id": response}, {}),
        ("/v1/conversations", {}, {}),
        ("/v1/batches", batch, {}),
        ("/v1/images/generations", IMAGE, {}),
        ("/v1/images/generations", {**IMAGE, "stream": True, "partial_images": 1}, {}),
        ("/v1/embeddings", {"model": media.EMBEDDER, "input": "hello"}, {}),
        ("/v1/videos", VIDEO, {}),
        (f"/v1/apps/{media.APP}/invoke", {"messages": question_body(13)["messages"]}, {}),
        (CHAT, question_body(14, model=media.APP, stream=True), {}),
        ("/v1/realtime/client_secrets", {"session": {"type": "realtime", "model": MODEL}}, {}),
    ]
    requests = {f"{n} {path}": http.build_request("POST", path, json=body, headers=headers)
            for n, (path, body, headers) in enumerate(posts)}  # fmt: skip
    for path in (
        "/v1/models", "/v1/files", f"/v1/files/{file}", f"/v1/files/{file}/content", "/v1/batches",
        f"/v1/batches/{batch_id}", f"{RESPONSES}/{response}", f"{RESPONSES}/{response}/input_items",
        f"/v1/conversations/{talk}", f"/v1/conversations/{talk}/items", "/v1/videos", "/v1/videos/video_" + "0" * 48,
        "/v1/apps", f"/v1/invocations/{invocation}", "/v1/deadletters", "/readyz", "/metrics", "/health",
    ):  # fmt: skip
        requests[path] = http.build_request("GET", path)
    for name, fields in {"transcription": {}, "streamed transcription": {"stream": "true"}}.items():
        sound = {"data": {"model": MODEL, **fields}, "files": {"file": ("a.wav", make_audio(1.0)[1])}}
        requests[name] = http.build_request("POST", "/v1/audio/transcriptions", **sound)  # type: ignore[arg-type]
    upload = {"data": {"purpose": "batch"}, "files": {"file": ("b.jsonl", LINE)}}
    requests["upload"] = http.build_request("POST", "/v1/files", **upload)  # type: ignore[arg-type]
    requests["cancel"] = http.build_request("POST", f"/v1/batches/{batch_id}/cancel")
    return requests


def make_streams(http: httpx.AsyncClient) -> dict[str, httpx.Request]:
    """Streams that have begun before a part freezes."""
    fields = {"model": MODEL, "input": "hello", "stream": True}
    app_body = {"messages": question_body(15)["messages"]}
    return {
        "begun app": http.build_request("POST", f"/v1/apps/{media.APP}/invoke", json=app_body),
        "begun chat": http.build_request("POST", CHAT, json=question_body(11, stream=True)),
        "begun chat, continued": http.build_request(
            "POST", CHAT, json=question_body(12, stream=True), headers=CONTINUED
        ),
        "begun response": http.build_request("POST", RESPONSES, json=fields),
        "begun response, not stored": http.build_request("POST", RESPONSES, json={**fields, "store": False}),
    }


async def time_request(
    clock: OwnTime, http: httpx.AsyncClient, request: httpx.Request, start_event: asyncio.Event | None = None
) -> tuple[float, httpx.Response]:
    """Seconds until the complete answer, and the answer; its first bytes set ``start_event``."""
    began, body = clock.seconds, b""
    response = await http.send(request, stream=True)
    async for data in response.aiter_bytes():
        body += data
        if start_event is not None:
            start_event.set()
    response._content = body
    return clock.seconds - began, response


async def time_answer(clock: OwnTime, connection: ClientConnection) -> tuple[float, dict[str, Any]]:
    """Seconds from a question until its answer's last event, and that event."""
    began = clock.seconds
    content = [{"type": "input_text", "text": "hello"}]
    response = {"input": [{"type": "message", "role": "user", "content": content}]}
    await connection.send(json.dumps({"type": "response.create", "response": response}))
    async for message in connection:
        event = json.loads(message)
        if event["type"] in ("response.done", "error"):
            return clock.seconds - began, event
    raise AssertionError(f"closed without an answer: {connection.close_code} {connection.close_reason}")


def ended_well(event: dict[str, Any]) -> bool:
    """Return True for a session's complete answer, or a typed error."""
    if event["type"] == "error":
        return bool(event["error"]["code"])
    response = event["response"]
    return response["status"] == "completed" or bool(response["status_details"]["error"]["code"])


def is_typed(response: httpx.Response) -> bool:
    """Return True for a success, or an error in OpenAI's shape.

    The last event of a stream decides.
    """
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        last = [line for line in response.text.splitlines() if line.startswith("data: ")][-1]
        if last == "data: [DONE]":
            return True
        event = json.loads(last[6:])
        return "error" in event or event["type"].endswith((".completed", ".done"))
    if response.request.url.path == "/readyz":  # names the stages that cannot make progress
        return response.status_code in (200, 503)
    return response.status_code < 400 or bool(response.json()["error"]["code"])


def part_process(system: System, part: str) -> psutil.Process:
    return system.sidecar() if part == "sidecar" else system.server(part)


@pytest.mark.parametrize("part", ["nats", "valkey", "sidecar"])
async def test_every_route_answers_by_the_deadline(system: System, part: str):
    await system.becomes_ready()
    limits = httpx.Limits(max_connections=200)
    async with own_time() as clock, httpx.AsyncClient(base_url=system.url, timeout=None, limits=limits) as http:
        requests, stream_events = (
            await make_calls(http),
            [(each, asyncio.Event()) for each in make_streams(http).values()],
        )
        realtime = f"{system.url.replace('http', 'ws', 1)}/v1/realtime?model={MODEL}"
        sessions = [await websockets.connect(f"{realtime}{more}", max_size=None) for more in ("", "&resumable=true")]
        tasks = [asyncio.create_task(time_request(clock, http, each, event)) for each, event in stream_events]
        await asyncio.gather(*(event.wait() for _, event in stream_events))
        frozen = await asyncio.to_thread(part_process, system, part)
        frozen.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                talks = [asyncio.create_task(time_answer(clock, each)) for each in sessions]
                answers = await asyncio.gather(*tasks, *(time_request(clock, http, each) for each in requests.values()))
                replies = await asyncio.gather(*talks)
        finally:
            frozen.send_signal(signal.SIGCONT)
        requests = {**make_streams(http), **requests}
        results = dict(zip(requests, answers, strict=True))
        late = {name: seconds for name, (seconds, _) in results.items() if seconds > DEADLINE + LATE}
        assert late == {}
        plain, resumable = (seconds for seconds, _ in replies)
        assert plain < DEADLINE + LATE
        assert resumable < DEADLINE + LATE + APPEND_TIMEOUT_SECONDS, "its events wait for the stream"
        assert [event for _, event in replies if not ended_well(event)] == []
        await asyncio.gather(*(each.close() for each in sessions))
        assert [name for name, (_, response) in results.items() if not is_typed(response)] == []
        await system.becomes_ready()

        async def serves_again() -> bool:
            return (await http.post(CHAT, json=question_body(4))).status_code == 200

        async with asyncio.timeout(30):
            while not await serves_again():
                await asyncio.sleep(0.2)
