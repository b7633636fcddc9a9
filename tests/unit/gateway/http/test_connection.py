"""Heads of requests on real sockets: limits on length, lines and time, and headers that identify the client."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.unit.gateway.house import VL, ToyGateway, build_chat_body, start_toy_gateway
from tests.unit.gateway.wires import Doorway, build_post, open_doorway

LIMIT = 64 << 10
MIB = 1 << 20


@pytest.fixture
async def door(home: ToyGateway) -> AsyncIterator[Doorway]:
    async with open_doorway(home) as open_door:
        yield open_door


@pytest.fixture
async def impatient_door(tmp_path: Path) -> AsyncIterator[Doorway]:
    """A gateway with short timeouts for heads and for late data."""
    async with start_toy_gateway(tmp_path, head_seconds=0.3, body_pause=0.3) as home, open_doorway(home) as open_door:
        yield open_door


def build_head(nbytes: int) -> bytes:
    """Return a request head of ``nbytes`` bytes."""
    start, end = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n\r\n"
    return start + b"a" * (nbytes - len(start) - len(end)) + end


def build_headers(count: int) -> bytes:
    """Return a request head with ``count`` headers."""
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a:b\r\n" * (count - 1) + b"\r\n"


# Size


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX: ", b""], ids=repr)
@pytest.mark.parametrize("more", [b"a" * 997, b"a: b\r\n" * 97, b"\r\n" * 97], ids=["letters", "lines", "line ends"])
async def test_a_head_without_end_is_cut_off_in_little_memory_while_others_are_answered(
    door: Doorway, start: bytes, more: bytes
):
    wire = await door.wire()
    sent = 0

    async def pour_bytes() -> None:
        nonlocal sent
        with suppress(ConnectionError):
            await wire.send(start)
            while sent < 32 * MIB:
                await wire.send(more * 64)
                sent += len(more) * 64

    tracemalloc.start()
    pouring = asyncio.ensure_future(pour_bytes())
    try:
        statuses = [await door.get() for _ in range(3)]
        rest = await wire.rest()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pouring.cancel()

    assert statuses == [200, 200, 200]
    assert sent < 32 * MIB
    assert not rest or rest.split(b" ", 2)[1] in (b"431", b"400")  # too much of it, or no HTTP at all
    assert peak < 8 * MIB


@pytest.mark.parametrize("piece", [61, 4096, LIMIT, 8 * LIMIT])
@pytest.mark.parametrize(("nbytes", "status"), [(LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 431), (3 * LIMIT, 431)])
async def test_the_limit_of_a_head_is_exact_however_it_comes(door: Doorway, nbytes: int, status: int, piece: int):
    wire, whole = await door.wire(), build_head(nbytes)

    with suppress(ConnectionError):
        for at in range(0, nbytes, piece):
            await wire.send(whole[at : at + piece])

    assert await wire.status() == status


@pytest.mark.parametrize(("count", "status"), [(100, 200), (101, 431), (10_000, 431), (200_000, 431)])
async def test_the_lines_of_a_head_are_limited(door: Doorway, count: int, status: int):
    wire = await door.wire()

    with suppress(ConnectionError):
        await wire.send(build_headers(count))

    assert await wire.status() == status


async def test_the_refusal_is_in_the_usual_shape(door: Doorway):
    wire = await door.wire()
    await wire.send(build_head(LIMIT + 1))

    status, body = await wire.answer()

    assert status == 431
    assert msgspec.json.decode(body)["error"]["code"] == "head_too_large"
    assert await wire.rest() == b""


async def test_large_bodies_are_no_heads(door: Doorway):
    wire = await door.wire()
    body = b" " * (3 * MIB)

    for _ in range(2):
        await wire.send(build_post("/v1/chat/completions", len(body), body))
        assert (await wire.answer())[0] == 400


async def test_what_follows_a_chunked_body_is_limited_too(door: Doorway):
    wire = await door.wire()
    await wire.send(build_post("/v1/chat/completions", None, b"2\r\n{}\r\n0\r\n"))

    with suppress(ConnectionError):
        for _ in range(64):
            await wire.send(b"a" * LIMIT)

    assert b"200 OK" not in await wire.rest()


async def test_requests_that_come_together_are_answered_in_order(door: Doorway):
    wire = await door.wire()
    await wire.send(build_head(500) + build_post("/v1/chat/completions", 2, b"{}") + build_head(LIMIT))

    assert [(await wire.answer())[0] for _ in range(3)] == [200, 400, 200]


async def test_no_more_requests_than_a_few_wait_on_one_connection(door: Doorway):
    wire = await door.wire()

    with suppress(ConnectionError):
        await wire.send(build_head(60) * 10_000)

    assert (await wire.rest()).count(b"200 OK") <= 40


# Time


@pytest.mark.parametrize(
    "beginning",
    [b"", b"G", b"GET / HTTP/1.1\r\nHost: loc", build_headers(3)[:-2], b"\r\n"],
    ids=["nothing", "a letter", "half a line", "all but the last line", "an empty line"],
)
async def test_a_head_that_does_not_become_whole_is_closed(impatient_door: Doorway, beginning: bytes):
    wire = await impatient_door.wire()
    await wire.send(beginning)

    rest = await wire.rest()

    assert rest == b"" or rest.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(("start", "drop"), [(b"GET / HTTP/1.1\r\nX: ", b"a"), (b"", b"\r\n")])
@pytest.mark.parametrize("before", [b"", build_head(100)], ids=["first", "second"])
async def test_dripping_does_not_keep_a_connection(impatient_door: Doorway, start: bytes, drop: bytes, before: bytes):
    wire = await impatient_door.wire()
    if before:
        await wire.send(before)
        assert (await wire.answer())[0] == 200
    await wire.send(start)

    dripping = asyncio.ensure_future(wire.drip(drop, 0.02))

    rest = await wire.rest()
    assert rest == b"" or rest.startswith(b"HTTP/1.1 408 ")
    dripping.cancel()


async def test_the_rest_of_a_body_that_is_not_read_any_more_does_not_keep_a_connection(impatient_door: Doorway):
    wire = await impatient_door.wire()
    await wire.send(build_post("/v1/images/generations", 1 << 40))
    assert (await wire.answer())[0] == 413

    dripping = asyncio.ensure_future(wire.drip(b"a", 0.02))

    assert await wire.rest() == b""
    dripping.cancel()


@pytest.mark.parametrize("length", [8 * MIB, None], ids=["a length", "chunks"])
async def test_an_answer_before_the_end_of_a_body_survives_the_close_that_its_client_wants(
    door: Doorway, length: int | None
):
    wire = await door.wire()
    whole = b"a" * 8 * MIB if length else b"%x\r\n%b\r\n0\r\n\r\n" % (8 * MIB, b"a" * 8 * MIB)
    beginning = build_post("/nowhere", length).replace(b"Host:", b"Connection: close\r\nHost:")

    await wire.send(beginning + whole[:MIB])
    await asyncio.sleep(0.2)  # the answer is complete, and the client continues
    await wire.send(whole[MIB:])

    assert (await wire.answer())[0] == 404
    assert await wire.rest() == b""


async def test_a_stop_waits_for_bodies_whose_answers_are_complete(home: ToyGateway):
    async with open_doorway(home) as door:
        wire = await door.wire()
        await wire.send(build_post("/nowhere", 8 * MIB, b"a" * MIB))
        await asyncio.sleep(0.2)

        door.stop()
        await asyncio.sleep(0.2)
        await wire.send(b"a" * 7 * MIB)

        assert (await wire.answer())[0] == 404
        assert await wire.rest() == b""


async def test_a_slow_head_within_its_time_is_answered(door: Doorway):
    wire = await door.wire()

    for letter in build_head(60):
        await wire.send(bytes([letter]))
        await asyncio.sleep(0.005)

    assert (await wire.answer())[0] == 200


# Paths and identifying headers


@pytest.mark.parametrize("name", ["Host", "Authorization"])
async def test_a_header_that_decides_who_asks_comes_once(door: Doorway, name: str):
    wire = await door.wire()
    first = b"" if name == "Host" else b"Host: localhost\r\n"

    await wire.send(b"GET /health HTTP/1.1\r\n" + first + f"{name}: localhost\r\n{name.lower()}: b\r\n\r\n".encode())

    status, body = await wire.answer()
    assert (status, msgspec.json.decode(body)["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize("end", ["%0A", "%0D%0A", "%00", "%0a%0a"])
@pytest.mark.parametrize("path", [f"/v1/models/{VL}", "/health", "/metrics", "/v1/models"])
async def test_a_path_with_a_lines_end_names_nothing(home: ToyGateway, door: Doorway, path: str, end: str):
    home.serve(VL)

    assert await door.get(path) == 200
    assert await door.get(path + end) == 404


async def test_what_is_no_http_is_refused_in_the_usual_shape(door: Doorway):
    wire = await door.wire()
    await wire.send(b"\x16\x03\x01\x02\x00\r\n\r\n")

    status, body = await wire.answer()

    assert (status, msgspec.json.decode(body)["error"]["code"]) == (400, "bad_request")


async def test_a_head_behind_a_large_body_is_limited_as_every_head(door: Doorway):
    wire = await door.wire()
    await wire.send(build_post("/v1/chat/completions", MIB, b"x" * MIB))

    assert (await wire.answer())[0] == 400
    await wire.send(build_head(LIMIT + 2 * 1024))
    assert await wire.status() == 431


@pytest.mark.parametrize("size", [1, 100, 5000, 300_000], ids=str)
async def test_a_body_is_what_was_sent_in_whatever_pieces(door: Doorway, home: ToyGateway, size: int):
    await home.all_of(VL)
    body = msgspec.json.encode({**build_chat_body(VL, "x"), "metadata": {"y": "y" * 10 * size}})
    wire = await door.wire()
    await wire.send(build_post("/v1/chat/completions", len(body)))
    for at in range(0, len(body), size):
        await wire.send(body[at : at + size])

    assert (await wire.answer())[0] == 200
