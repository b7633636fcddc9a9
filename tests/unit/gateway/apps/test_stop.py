"""A gateway that stops while it answers, over a real server. Each kind of answer ends with a typed error."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from omnibus.executor.runner import Job
from omnibus.families import catalog
from omnibus_gateway.http.server import create_server
from tests.unit.gateway.apps.estate import LOUD, AppCluster, AppGateway
from tests.unit.gateway.house import OMNI, PAINTER, RATE, VL, build_chat_body, write_chat_words
from tests.unit.gateway.samples import make_sample_sound
from tests.unit.sidecar.node import wait_until

EMBEDDER = "toy-embedder"
CHAT = "/v1/chat/completions"
SPEECH: dict[str, Any] = {"model": OMNI, "input": "one two", "voice": "Chelsie", "response_format": "pcm"}
PICTURE: dict[str, Any] = {"model": PAINTER, "prompt": "a boat", "size": "64x48", "steps": 8}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "pcm16"}}
FORM = {"data": {"model": OMNI}, "files": {"file": ("a.wav", make_sample_sound("wav", "pcm_s16le", 0.5, 16000))}}

#: Answers that never end: the path and the request. Event streams send something first.
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"json": build_chat_body(VL, "hi")}),
    "spoken chat": (CHAT, {"json": build_chat_body(OMNI, "hi", **SPOKEN)}),
    "drawn chat": (CHAT, {"json": build_chat_body(PAINTER, "a boat", modalities=["image"])}),
    "image": ("/v1/images/generations", {"json": PICTURE}),
    "embedding": ("/v1/embeddings", {"json": {"model": EMBEDDER, "input": "one"}}),
    "transcription": ("/v1/audio/transcriptions", FORM),
    "app": ("/v1/apps/waits/invoke", {"json": "x"}),
}
EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"json": build_chat_body(VL, "hi", stream=True)}),
    "spoken chat": (CHAT, {"json": build_chat_body(OMNI, "hi", stream=True, **SPOKEN)}),
    "chat of an app": (CHAT, {"json": build_chat_body("loud", "hi", stream=True)}),
    "speech": ("/v1/audio/speech", {"json": {**SPEECH, "stream_format": "sse"}}),
    "transcription": ("/v1/audio/transcriptions", {**FORM, "data": {"model": OMNI, "stream": "true"}}),
    "image": ("/v1/images/generations", {"json": {**PICTURE, "stream": True, "partial_images": 2}}),
    "app": ("/v1/apps/counts/invoke", {"json": "x"}),
}

WAITS = """
    import asyncio


    async def serve(request: str) -> str:
        await asyncio.sleep(1000)
"""
COUNTS = """
    import asyncio
    from collections.abc import AsyncIterator


    async def serve(request: str) -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(1000)
"""


async def wait_forever(job: Job) -> None:
    await asyncio.Event().wait()


async def write_a_word(job: Job) -> None:
    """Write one word and never end; a speaking model writes all words."""
    if job.has_consumer("rows"):
        await write_chat_words(job)
        return
    await job.send("text", {"text": "first "})
    await wait_forever(job)


async def hum_once(job: Job) -> None:
    await job.send("audio", {"rate": RATE}, np.ones(2400, np.float32))
    await wait_forever(job)


async def show_once(job: Job) -> None:
    if job.has_consumer("preview"):
        await job.send("preview", {"step": 2, "steps": 8}, np.zeros((6, 8, 3), np.uint8))
    await wait_forever(job)


@pytest.fixture
async def gate(cluster: AppCluster) -> AppGateway:
    """A gateway whose executors and apps begin every answer and end none."""
    home = cluster.home
    home.serve(VL, OMNI, PAINTER, **{EMBEDDER: catalog.embedding_declaration("qwen2", "")})
    await home.executor(VL, "EL", "vision", "thinker", thinker=write_a_word)
    await home.executor(PAINTER, "T", "text_encoder")
    await home.executor(PAINTER, "D", "dit", dit=show_once)
    await home.executor(PAINTER, "V", "vae")
    assert home.router.plan is not None
    for option, spec in home.router.plan.models[OMNI].options.items():
        await home.executor(OMNI, option, *spec.components, thinker=write_a_word, vocoder=hum_once)
    await home.executor(EMBEDDER, "B", "embedder", embedder=wait_forever)
    app_gateway = cluster.gateway()
    for name, text in {"waits": WAITS, "counts": COUNTS, "loud": LOUD.replace("{model}", "loud")}.items():
        cluster.write(name, text)
        await app_gateway.register(name)
    return app_gateway


@asynccontextmanager
async def serve_gateway(gate: AppGateway) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """Yield a client of ``gate`` over a real server, and the server."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = create_server(gate.app)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await wait_until(lambda: server.started)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=address, timeout=30) as http:
        yield http, server
    server.should_exit = True
    await asyncio.wait_for(serving, 10)


async def stop_gateway(gate: AppGateway, cluster: AppCluster) -> None:
    """Stop as the service does after its drain."""
    gate.frontend.requests.begin_stop()
    await gate.frontend.requests.wait_finished(0.1)
    await gate.frontend.requests.end_all(cluster.home.dispatcher.fail_all)


def any_done(pending: dict[str, asyncio.Task[Any]]) -> bool:
    return any(each.done() for each in pending.values())


def wait_for_requests(gate: AppGateway, count: int) -> Any:
    return wait_until(lambda: len(gate.frontend.requests._open) == count)


def check_error(details: dict[str, Any]) -> None:
    assert (details["code"], details["type"]) == ("gateway_stopping", "server_error")
    assert "send the request again" in details["message"]
    assert details["request_id"]


async def test_whole_answers_end_with_a_typed_503(cluster: AppCluster, gate: AppGateway):
    async with serve_gateway(gate) as (http, _):
        pending = {name: asyncio.create_task(http.post(path, **options)) for name, (path, options) in WHOLE.items()}
        dispatched_count = len(pending) - 1  # the app sends nothing
        await wait_until(lambda: cluster.home.dispatcher.inflight_count == dispatched_count or any_done(pending))

        await stop_gateway(gate, cluster)

        for name, answer in {name: await asyncio.wait_for(each, 10) for name, each in pending.items()}.items():
            assert answer.status_code == 503, (name, answer.text)
            assert answer.headers["content-type"] == "application/json", name
            assert answer.headers["retry-after"] == "1", name
            check_error(answer.json()["error"])
    await cluster.home.emptied()


async def test_streams_end_with_a_typed_event(cluster: AppCluster, gate: AppGateway):
    async def read_stream(path: str, options: dict[str, Any]) -> str:
        async with http.stream("POST", path, **options) as answer:
            assert answer.status_code == 200, await answer.aread()
            received_text = ""
            async for text in answer.aiter_text():
                received_text += text
                first.add(asyncio.current_task())
            return received_text

    async with serve_gateway(gate) as (http, _):
        first: set[Any] = set()
        pending = {name: asyncio.create_task(read_stream(path, options)) for name, (path, options) in EVENTS.items()}
        await wait_until(lambda: len(first) == len(pending) or any_done(pending))

        await stop_gateway(gate, cluster)

        for name, text in {name: await asyncio.wait_for(each, 10) for name, each in pending.items()}.items():
            assert text.endswith("\n\n"), name
            before, _, last = text[:-2].rpartition("\n\n")
            assert before, name  # it had begun
            check_error(json.loads(last.removeprefix("data: "))["error"])
    await cluster.home.emptied()


async def test_a_stream_of_bytes_is_cut_and_not_taken_for_whole(cluster: AppCluster, gate: AppGateway):
    async with serve_gateway(gate) as (http, _), http.stream("POST", "/v1/audio/speech", json=SPEECH) as answer:
        body = answer.aiter_raw()
        await anext(body)

        await stop_gateway(gate, cluster)

        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in body:
                pass
    await cluster.home.emptied()


async def test_a_request_whose_body_is_still_on_its_way_ends_as_others_do(cluster: AppCluster, gate: AppGateway):
    async def send_slowly() -> AsyncIterator[bytes]:
        yield b'{"model":'
        await asyncio.Event().wait()

    async with serve_gateway(gate) as (http, _):
        port = http.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n{")
        await wait_for_requests(gate, 1)

        await stop_gateway(gate, cluster)

        answer = await asyncio.wait_for(reader.read(65536), 10)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"gateway_stopping" in answer
        writer.close()


async def test_a_new_request_is_refused_on_a_connection_that_then_closes(cluster: AppCluster, gate: AppGateway):
    async with serve_gateway(gate) as (http, _):
        assert (await http.get("/v1/models")).status_code == 200
        gate.frontend.requests.begin_stop()

        answer = await http.post(CHAT, json=build_chat_body(VL, "hi"))

        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["connection"] == "close"
        check_error(answer.json()["error"])
        assert (await http.get("/health")).status_code == 200
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["stopping"]) == (503, True)


async def test_an_answer_that_ends_within_the_drain_is_whole(cluster: AppCluster, gate: AppGateway):
    go = asyncio.Event()

    async def write_two(job: Job) -> None:
        await job.send("text", {"text": "one "})
        await go.wait()
        await job.send("text", {"text": "two"})
        job.close("text", {"finish_reason": "stop", "usage": {}})

    home = cluster.home
    home.serve("toy-text")
    await home.executor("toy-text", "L", "thinker", thinker=write_two)
    requests = gate.frontend.requests
    async with serve_gateway(gate) as (http, _):
        pending = asyncio.create_task(http.post(CHAT, json=build_chat_body("toy-text", "hi", stream=True)))
        await wait_for_requests(gate, 1)
        requests.begin_stop()
        stopping = asyncio.create_task(requests.wait_finished(30))
        await asyncio.sleep(0)
        assert not stopping.done()

        go.set()

        await asyncio.wait_for(stopping, 10)
        assert (await pending).text.endswith("data: [DONE]\n\n")
