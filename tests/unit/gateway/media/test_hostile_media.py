"""Media servers that cost too much loop time or too many slots."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import h11
import pytest

from omnibus.errors import BadMedia
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from omnibus_gateway.tenancy.body_budget import TenantSlots
from omnibus_gateway.tenancy.tenant import Tenant, acting_as

PATIENCE = 20.0
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
#: Parts of an answer that may be parsed in one turn of the loop, by all fetches of the test together.
IN_ONE_TURN = 8 * 2 * 64

ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "chunks of a byte": (CHUNKED, b"1\r\nx\r\n"),
    "chunks of a byte with extensions": (CHUNKED, b"1;ab=cd\r\nx\r\n"),
    "chunks with more around than in them": (CHUNKED, b"0000000000000000001\r\nx\r\n"),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "103 Early Hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"),
    "102 Processing": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
}


@asynccontextmanager
async def run_site(serve: Callable[[asyncio.StreamWriter], AsyncIterator[None]]) -> AsyncIterator[int]:
    """Yield the port of a server that answers with the output of ``serve``."""

    async def answer_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            async for _ in serve(writer):
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_request, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def make_fetcher(**rules: float) -> Fetcher:
    return Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None, **{"timeout": 600.0, **rules}))  # type: ignore[arg-type]


def make_endless_server(start: bytes, more: bytes) -> Callable[[asyncio.StreamWriter], AsyncIterator[None]]:
    async def write_response(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        writer.write(start)
        while True:
            writer.write(more * 1000)
            yield

    return write_response


class Turns:
    """Counts the response parts parsed in one turn of the event loop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most = self._now = 0
        parse = h11.Connection.next_event

        def count_parse(connection: h11.Connection) -> object:
            self._now += 1
            self.most = max(self.most, self._now)
            return parse(connection)

        patch.setattr(h11.Connection, "next_event", count_parse)
        self._task = asyncio.ensure_future(self._reset_each_turn())

    async def _reset_each_turn(self) -> None:
        while True:
            self._now = 0
            await asyncio.sleep(0)

    def stop_counting(self) -> None:
        self._task.cancel()


@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS.keys())
async def test_a_server_that_never_comes_to_the_point_is_cut_off_and_delays_nobody(
    start: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch
):
    turns = Turns(monkeypatch)
    async with run_site(make_endless_server(start, more)) as port:
        many = [make_fetcher().fetch(f"http://127.0.0.1:{port}/{number}", 1 << 26) for number in range(8)]
        outcomes = await asyncio.wait_for(asyncio.gather(*many, return_exceptions=True), PATIENCE)
    turns.stop_counting()

    assert {type(each) for each in outcomes} == {BadMedia}
    assert turns.most <= IN_ONE_TURN


@pytest.mark.parametrize("chunk", [300, 4096, 100_000])
async def test_a_file_in_reasonable_pieces_arrives_whole(chunk: int):
    async def send_chunks(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        writer.write(CHUNKED)
        for _ in range(600_000 // chunk):
            writer.write(b"%x\r\n%b\r\n" % (chunk, bytes(chunk)))
            yield
        writer.write(b"0\r\n\r\n")
        yield

    async with run_site(send_chunks) as port:
        got = await make_fetcher().fetch(f"http://127.0.0.1:{port}/", 1 << 20)

    assert got.data == bytes(600_000 // chunk * chunk)


async def test_a_large_file_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch):
    async def send_large_file(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 << 20))
        writer.write(bytes(8 << 20))
        yield

    turns = Turns(monkeypatch)
    async with run_site(send_large_file) as port:
        got = await make_fetcher().fetch(f"http://127.0.0.1:{port}/", 8 << 20)
    turns.stop_counting()

    assert len(got.data) == 8 << 20
    assert turns.most <= 8


@pytest.mark.parametrize("count", [1, 5])
async def test_a_few_informational_responses_are_passed_over(count: int):
    async def send_hints(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * count)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        yield

    async with run_site(send_hints) as port:
        assert (await make_fetcher().fetch(f"http://127.0.0.1:{port}/", 100)).data == b"ok"


# Slots


async def test_slow_servers_of_one_tenant_hold_up_no_other(monkeypatch: pytest.MonkeyPatch):
    stuck = asyncio.Event()
    silent: list[asyncio.StreamWriter] = []

    async def stall_first_requests(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        if len(silent) < 2:
            silent.append(writer)
            stuck.set()
            await asyncio.Event().wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        yield

    one = make_fetcher(concurrency=8)
    async with run_site(stall_first_requests) as port:
        url = f"http://127.0.0.1:{port}/"
        with acting_as(Tenant("a")):
            slow = [asyncio.ensure_future(one.fetch(url, 100)) for _ in range(50)]
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        with acting_as(Tenant("b")):
            got = await asyncio.wait_for(one.fetch(url, 100), PATIENCE)
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        for writer in silent:
            writer.transport.abort()

    assert got.data == b"ok"


async def test_who_holds_fewest_slots_is_next():
    slots, order = TenantSlots(8), []
    release = asyncio.Event()

    async def hold_slot(tenant: str) -> None:
        async with slots.hold(tenant):
            order.append(tenant)
            await release.wait()

    tasks = [asyncio.ensure_future(hold_slot(tenant)) for tenant in "aaaabbbbccccddddeeee"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert sorted(order) == ["a", "a", "b", "b", "c", "c", "d", "d"]
    release.set()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    assert sorted(order) == sorted("aaaabbbbccccddddeeee")


@pytest.mark.parametrize("tenant", ["", "a"])
async def test_who_gives_up_leaves_its_slot(tenant: str):
    slots = TenantSlots(4)

    async def hold_slot() -> None:
        async with slots.hold(tenant):
            await asyncio.Event().wait()

    for _ in range(3):
        tasks = [asyncio.ensure_future(hold_slot()) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async with asyncio.timeout(PATIENCE), slots.hold(tenant):
        pass


async def test_without_tenants_all_slots_are_everybodys():
    slots = TenantSlots(4)

    async with asyncio.timeout(PATIENCE), slots.hold(""), slots.hold(""), slots.hold(""), slots.hold(""):
        pass
