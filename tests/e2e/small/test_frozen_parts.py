"""NATS, the store or the sidecar stands still: every route answers by the deadline, or says in time what is wrong."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.questions import ask, image
from tests.e2e.small.streams import MODEL, SPOKEN, model, question
from tests.e2e.system import System, running

pytestmark = pytest.mark.e2e

DEADLINE = 3.0  # seconds
#: Seconds beyond the deadline: 2 are promised, the rest is for a busy machine.
LATE = 5.0
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
CONTINUED = {"x-omnibus-continue": "true"}
LINE = json.dumps({"custom_id": "1", "method": "POST", "url": CHAT, "body": question(1)}).encode()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """``omnibus up`` restarts nothing that only stands still."""
    directory = tmp_path_factory.mktemp("frozen")
    with running(
        directory,
        {MODEL: model(directory)},
        OMNIBUS_EXECUTOR_ENGINE="services.engines:sim",
        OMNIBUS_GATEWAY_DEADLINE=str(DEADLINE),
        OMNIBUS_UP_SILENT="120",
        OMNIBUS_UP_FROZEN="120",
    ) as system:
        yield system


async def calls(http: httpx.AsyncClient) -> dict[str, httpx.Request]:
    """A request to every route, with ids of what there is."""
    file = (await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", LINE)})).json()["id"]
    batch = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    batch_id = (await http.post("/v1/batches", json=batch)).json()["id"]
    stored = await http.post(RESPONSES, json={"model": MODEL, "input": "hello", "max_output_tokens": 4})
    response = stored.json()["id"]
    talk = (await http.post("/v1/conversations", json={})).json()["id"]
    spoken = (await http.post(CHAT, json=question(2, max_tokens=4, **SPOKEN))).json()
    invocation = spoken["id"].removeprefix("chatcmpl-")
    pictured = ask(image(1), "describe").messages
    again = [{"role": "assistant", "audio": {"id": spoken["choices"][0]["message"]["audio"]["id"]}}]
    again = [*question(3)["messages"], *again, *question(3)["messages"]]
    asked: dict[str, Any] = {"model": MODEL, "input": "hello"}
    posts: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        (CHAT, question(4), {}),
        (CHAT, question(5, stream=True), {}),
        (CHAT, question(6, stream=True), CONTINUED),
        (CHAT, question(7, **SPOKEN), {}),
        (CHAT, question(8, stream=True, **SPOKEN), CONTINUED),
        (CHAT, question(9, messages=pictured), {}),
        (CHAT, question(10, messages=again), {}),
        ("/v1/completions", {"model": MODEL, "prompt": "hello"}, {}),
        ("/v1/audio/speech", {"model": MODEL, "input": "hello", "voice": "Chelsie", "stream_format": "sse"}, {}),
        (RESPONSES, asked, {}),
        (RESPONSES, {**asked, "stream": True}, {}),
        (RESPONSES, {**asked, "background": True}, {}),
        (RESPONSES, {**asked, "conversation": talk}, {}),
        (RESPONSES, {**asked, "previous_response_id": response}, {}),
        ("/v1/conversations", {}, {}),
        ("/v1/batches", batch, {}),
        ("/v1/realtime/client_secrets", {"session": {"type": "realtime", "model": MODEL}}, {}),
    ]
    made = {f"{n} {path}": http.build_request("POST", path, json=body, headers=headers)
            for n, (path, body, headers) in enumerate(posts)}  # fmt: skip
    for path in (
        "/v1/models", "/v1/files", f"/v1/files/{file}", f"/v1/files/{file}/content", "/v1/batches",
        f"/v1/batches/{batch_id}", f"{RESPONSES}/{response}", f"{RESPONSES}/{response}/input_items",
        f"/v1/conversations/{talk}", f"/v1/conversations/{talk}/items", "/v1/videos", "/v1/videos/video_" + "0" * 48,
        "/v1/apps", f"/v1/invocations/{invocation}", "/v1/deadletters", "/readyz", "/metrics", "/health",
    ):  # fmt: skip
        made[path] = http.build_request("GET", path)
    upload = {"data": {"purpose": "batch"}, "files": {"file": ("b.jsonl", LINE)}}
    made["upload"] = http.build_request("POST", "/v1/files", **upload)  # type: ignore[arg-type]
    made["cancel"] = http.build_request("POST", f"/v1/batches/{batch_id}/cancel")
    return made


def streams(http: httpx.AsyncClient) -> dict[str, httpx.Request]:
    """Streams whose first events come before something freezes."""
    asked = {"model": MODEL, "input": "hello", "stream": True}
    return {
        "begun chat": http.build_request("POST", CHAT, json=question(11, stream=True)),
        "begun chat, continued": http.build_request("POST", CHAT, json=question(12, stream=True), headers=CONTINUED),
        "begun response": http.build_request("POST", RESPONSES, json=asked),
        "begun response, not stored": http.build_request("POST", RESPONSES, json={**asked, "store": False}),
    }


async def timed(
    http: httpx.AsyncClient, request: httpx.Request, begun: asyncio.Event | None = None
) -> tuple[float, httpx.Response]:
    """Seconds until the answer was whole, and the answer; ``begun`` is set with its first bytes."""
    began, body = time.monotonic(), b""
    response = await http.send(request, stream=True)
    async for data in response.aiter_bytes():
        body += data
        if begun is not None:
            begun.set()
    response._content = body
    return time.monotonic() - began, response


def is_typed(response: httpx.Response) -> bool:
    """Return whether an error is in OpenAI's shape, or the last event of its stream, or the answer is none."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        last = [line for line in response.text.splitlines() if line.startswith("data: ")][-1]
        return last == "data: [DONE]" or "error" in json.loads(last[6:])
    if response.request.url.path == "/readyz":  # names the stages that cannot make progress
        return response.status_code in (200, 503)
    return response.status_code < 400 or bool(response.json()["error"]["code"])


def part_process(system: System, part: str) -> psutil.Process:
    if part == "sidecar":
        return next(one for one in system.processes() if "services.sidecar" in one.cmdline())
    return system.server(part)


@pytest.mark.parametrize("part", ["nats", "valkey", "sidecar"])
async def test_every_route_answers_by_the_deadline(system: System, part: str):
    await system.becomes_ready()
    async with httpx.AsyncClient(base_url=system.url, timeout=None, limits=httpx.Limits(max_connections=200)) as http:
        requests, begun = await calls(http), [(each, asyncio.Event()) for each in streams(http).values()]
        tasks = [asyncio.create_task(timed(http, each, event)) for each, event in begun]
        await asyncio.gather(*(event.wait() for _, event in begun))
        frozen = await asyncio.to_thread(part_process, system, part)
        frozen.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*tasks, *(timed(http, each) for each in requests.values()))
        finally:
            frozen.send_signal(signal.SIGCONT)
        requests = {**streams(http), **requests}
        found = dict(zip(requests, answers, strict=True))
        late = {name: seconds for name, (seconds, _) in found.items() if seconds > DEADLINE + LATE}
        assert late == {}
        assert [name for name, (_, response) in found.items() if not is_typed(response)] == []
        await system.becomes_ready()

        async def serves_again() -> bool:
            return (await http.post(CHAT, json=question(4))).status_code == 200

        async with asyncio.timeout(30):
            while not await serves_again():
                await asyncio.sleep(0.2)
