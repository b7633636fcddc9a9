"""Request bodies: time limits for slow ones, and a memory limit for all."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from omnibus.api_key import KeyRecord
from omnibus.errors import Overloaded
from omnibus.settings import GatewaySettings
from omnibus_gateway.openai.parse import read_body
from omnibus_gateway.tenancy import body_budget
from omnibus_gateway.tenancy.body_budget import LARGE_BYTES, UNCOUNTED_BYTES, BodyBudget, Upload
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.house import TEXT, build_chat_body, read_chat_answer, start_toy_gateway
from tests.unit.gateway.wires import Doorway, HttpConnection, build_post, open_doorway
from tests.unit.sidecar.node import wait_until

CHAT, IMAGES, SPEECH, VIDEOS = "/v1/chat/completions", "/v1/images/generations", "/v1/audio/speech", "/v1/videos"
EMBEDDINGS = "/v1/embeddings"
KIB = 1 << 10


def read_code(body: bytes) -> str:
    return str(msgspec.json.decode(body)["error"]["code"])


# Time


@pytest.mark.parametrize("path", [CHAT, IMAGES, SPEECH, VIDEOS, EMBEDDINGS])
@pytest.mark.parametrize("length", [1 << 20, None], ids=["length", "chunked"])
async def test_a_body_that_stops_coming_is_408(tmp_path: Path, path: str, length: int | None):
    async with start_toy_gateway(tmp_path, body_pause=0.2) as home, open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(build_post(path, length, b"{" if length else b"1\r\n{\r\n"))

        status, body = await wire.answer()

        assert (status, read_code(body)) == (408, "request_timeout")
        assert await wire.rest() == b""


async def test_a_body_that_drips_is_408(tmp_path: Path):
    async with start_toy_gateway(tmp_path, body_pause=0.2) as home, open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(build_post(CHAT, 1 << 20))

        dripping = asyncio.ensure_future(wire.drip(b" ", 0.02))

        status, body = await wire.answer()
        assert (status, read_code(body)) == (408, "request_timeout")
        assert await wire.rest() == b""
        dripping.cancel()


async def test_a_body_has_until_the_deadline_however_steadily_it_comes(tmp_path: Path):
    async with start_toy_gateway(tmp_path, deadline=0.5) as home, open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(build_post(CHAT, 1 << 20))

        dripping = asyncio.ensure_future(wire.drip(b" " * 200, 0.02))

        assert (await wire.answer())[0] == 408
        dripping.cancel()


async def test_a_slow_client_that_goes_on_is_served(tmp_path: Path):
    async with start_toy_gateway(tmp_path, body_pause=0.3, body_rate=100) as home, open_doorway(home) as door:
        await home.all_of(TEXT)
        body = msgspec.json.encode(build_chat_body(TEXT, "x" * 2000))
        wire = await door.wire()
        await wire.send(build_post(CHAT, len(body)))

        for at in range(0, len(body), 40):
            await wire.send(body[at : at + 40])
            await asyncio.sleep(0.02)

        status, answer = await wire.answer()
        assert (status, answer.count(b"x" * 2000)) == (200, 1)


async def test_the_deadline_counts_from_the_first_byte_of_the_body(tmp_path: Path):
    async with start_toy_gateway(tmp_path) as home:
        upload = body_budget.begin_upload(BodyBudget(home.settings))
        assert home.runs.open_request("chat").seconds_left > 29

        upload.seconds = 20.0

        assert 5 < home.runs.open_request("chat").seconds_left < 10.5
        upload.release()
        assert home.runs.open_request("chat").seconds_left > 29


# Memory


async def send_half(door: Doorway, nbytes: int) -> HttpConnection:
    """Return a client that never sends the last byte of its body."""
    wire = await door.wire()
    with suppress(ConnectionError):
        await wire.send(build_post(CHAT, nbytes + 1, b" " * nbytes))
    return wire


async def test_bodies_under_way_are_bounded_and_small_ones_come_in(tmp_path: Path):
    async with start_toy_gateway(tmp_path, bodies=1000 * KIB) as home, open_doorway(home) as door:
        await home.all_of(TEXT)
        wires = [await send_half(door, 400 * KIB) for _ in range(2)]
        third = await send_half(door, 600 * KIB)

        head = await third.head()

        assert head.split()[1] == b"429"
        assert b"\r\nretry-after: 1\r\n" in head.lower()
        assert read_chat_answer(await home.ask(TEXT))
        for wire in wires:
            await wire.send(b" ")
            assert (await wire.answer())[0] == 400  # it is not JSON, but it was accepted


async def test_a_body_without_a_length_is_cut_off_when_there_is_no_more_room(tmp_path: Path):
    async with start_toy_gateway(tmp_path, bodies=500 * KIB) as home, open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(build_post(CHAT, None))

        with suppress(ConnectionError):
            for _ in range(100):
                await wire.send(b"8000\r\n" + b" " * 0x8000 + b"\r\n")

        assert await wire.status() == 429


@pytest.mark.parametrize("leaves", [True, False], ids=["left", "answered"])
async def test_the_room_of_a_body_is_given_back(tmp_path: Path, leaves: bool):
    async with start_toy_gateway(tmp_path, bodies=1000 * KIB) as home, open_doorway(home) as door:
        for _ in range(5):
            wire = await send_half(door, 900 * KIB)
            if leaves:
                wire.close()
                continue
            await wire.send(b" ")
            assert (await wire.answer())[0] == 400

        async def has_room() -> bool:
            wire = await send_half(door, 900 * KIB)
            await wire.send(b" ")
            return (await wire.answer())[0] == 400

        await wait_until(has_room)


async def test_a_body_in_tiny_pieces_takes_no_more_than_its_bytes():
    async def stream_pieces() -> AsyncIterator[bytes]:
        for _ in range(200_000):
            yield bytes(3)

    tracemalloc.start()
    try:
        body = await read_body(stream_pieces(), 1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert body == bytes(600_000)
    assert peak < 3 << 20


def test_one_tenant_leaves_room_for_others():
    budget = BodyBudget(GatewaySettings(bodies=1000 * KIB))
    a, b = (Tenant(name, 1.0, KeyRecord("0" * 64, name)) for name in "ab")
    with acting_as(a):
        first, second = Upload(budget), Upload(budget)
    with acting_as(b):
        other = Upload(budget)
    first.count_bytes(0, 500 * KIB)

    with pytest.raises(Overloaded):
        second.count_bytes(0, 200 * KIB)
    second.count_bytes(0, UNCOUNTED_BYTES)
    other.count_bytes(0, 500 * KIB)
    first.release()
    second.count_bytes(0, 200 * KIB)

    for upload in (first, second, other):
        upload.release()
    assert budget.used == 0


# Turns


async def test_tenants_take_turns_with_large_bodies(tmp_path: Path):
    async with start_toy_gateway(tmp_path) as home:
        budget, order = BodyBudget(home.settings), []

        async def copy_body(name: str, nbytes: int) -> None:
            await budget.take_turn(Tenant(name), nbytes)
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(copy_body("many", 4 * LARGE_BYTES))
            await asyncio.sleep(0)
            group.create_task(copy_body("few", LARGE_BYTES))
            group.create_task(copy_body("small", LARGE_BYTES - 1))

        assert order == ["many", "small", "few", "many", "many", "many"]
