"""Rejected requests leave no large garbage. A gateway rarely runs its garbage collector."""

import asyncio
import contextlib
import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from omnibus.errors import BadMedia, BadRequest, TooLarge
from omnibus.executor.runner import Job
from omnibus_gateway.http.exchange import ConnectedClient, PostRequest
from omnibus_gateway.http.server import ON_LEFT
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from omnibus_gateway.media.inspect import DEFAULT_LIMITS, InspectedMedia, load_media
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.messages import MediaRef
from tests.unit.gateway.house import OMNI, PAINTER, VL, ToyGateway, make_image_part, make_text_part

MIB = 1 << 20
NOISE = bytes(range(256)) * 256


class WatchedBody:
    """The body of a request."""


@pytest.fixture(autouse=True)
def disable_collector() -> Iterator[None]:
    """Disable the garbage collector during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def stay_connected() -> dict[str, Any]:
    """Return the events of a client that stays connected."""
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("scope", [{}, {ON_LEFT: None}], ids=["any server", "our server"])
async def test_the_body_of_a_refused_request_goes_with_its_error(scope: dict[str, Any]):
    async def refuse_body(body: WatchedBody) -> None:
        await asyncio.sleep(0)
        raise BadRequest("no")

    body = WatchedBody()
    body_ref = weakref.ref(body)
    with contextlib.suppress(BadRequest):
        async with ConnectedClient(scope, stay_connected):
            await refuse_body(body)
    del body
    for _ in range(3):  # loop turns in which the watch for the client ends
        await asyncio.sleep(0)

    assert body_ref() is None


async def test_a_file_that_is_too_large_goes_with_its_error():
    async def serve_noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(NOISE)
                await writer.drain()

    fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))
    server = await asyncio.start_server(serve_noise, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    refs = [MediaRef("image", url=f"http://127.0.0.1:{port}/{name}.png") for name in "ab"]
    tracemalloc.start()
    try:
        with contextlib.suppress(TooLarge):
            await load_media(refs, fetcher, replace(DEFAULT_LIMITS, item_bytes=8 * MIB))
        await asyncio.sleep(0.1)
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        server.close()

    assert most > 8 * MIB
    assert left < 2 * MIB


@pytest.mark.parametrize(
    ("path", "status", "request_fields"),
    [
        ("audio/transcriptions", 400, {"data": {"model": OMNI}, "files": {"file": ("a.flac", NOISE)}}),
        ("images/edits", 400, {"data": {"model": PAINTER, "prompt": "a"}, "files": {"image": ("a.png", NOISE)}}),
        ("images/generations", 400, {"json": {"model": PAINTER, "prompt": "a", "size": "72x64"}}),
        ("embeddings", 400, {"json": {"model": OMNI, "input": "hello"}}),
        ("audio/speech", 400, {"json": {"model": OMNI, "input": 5}}),
    ],
)
async def test_a_route_lets_go_of_a_body_that_it_refuses(
    home: ToyGateway, path: str, status: int, request_fields: dict[str, Any]
):
    for model in (OMNI, PAINTER):
        await home.all_of(model)
    home.serve(OMNI, PAINTER)

    response = await home.http.post(f"/v1/{path}", **request_fields)
    await home.emptied()

    assert response.status_code == status, response.text
    assert [each for each in gc.get_objects() if isinstance(each, PostRequest)] == []


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_chat_that_an_executor_refuses_leaves_nothing(home: ToyGateway, streamed: bool):
    async def refuse_media(job: Job) -> None:
        await job.value("media")
        raise BadMedia("it cannot be decoded")

    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", vision=refuse_media)

    response = await home.ask(VL, [make_text_part("what is this?"), make_image_part()], path="EL", stream=streamed)
    await home.emptied()

    assert response.status_code == 400, response.text
    assert [each for each in gc.get_objects() if isinstance(each, ChatRequest | InspectedMedia)] == []
