"""Pulls over UCX: the same guarantees as TCP, which is also the fallback."""

import asyncio
import os

import numpy as np
import pytest

from omnibus.errors import Fatal
from omnibus_sidecar.peers import lanes
from omnibus_sidecar.peers.ucx import PIECE_BYTES, UcxLane, UcxTransport
from tests.unit.sidecar.node import make_deadline, wait_until
from tests.unit.sidecar.peers.pair import introduce_nodes, peer_config, start_node, two_nodes

pytestmark = pytest.mark.ucx

SIZE = 24 << 20
ARENA = 1 << 26


@pytest.fixture(autouse=True)
def _networks_only(monkeypatch):
    """Exclude shared memory, which UCX uses between processes of one machine."""
    monkeypatch.setenv("UCX_TLS", "tcp")


def random_bytes(nbytes: int = SIZE) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 255, nbytes, np.uint8)


def over_ucx(node) -> tuple[dict[str, int], dict[str, int]]:
    """Return bytes pulled over UCX, and failed transfers, by node."""
    return node.counters["ucx_bytes_by_node"], node.counters["ucx_failures_by_node"]


async def pull_array(producer, consumer, array: np.ndarray, invocation: str = "i") -> np.ndarray:
    handle = await producer.put(array, invocation=invocation, deadline=make_deadline())
    got = (await consumer.open_tensor(handle, invocation=invocation, deadline=make_deadline())).copy()
    consumer.release(handle)
    return got


async def frees_all(a, b, invocation: str = "i") -> None:
    """Check that nothing of ``invocation`` is left once it has ended."""
    for node in (a, b):
        node.sidecar.end_invocation(invocation)
    await wait_until(lambda: a.blocks == b.blocks == 0)


async def test_tensors_have_the_same_bytes_over_one_lane_and_are_freed_on_both_nodes(tmp_path):
    async with (
        two_nodes(tmp_path, ARENA, transport="ucx") as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        for number, nbytes in enumerate((SIZE, 3 * PIECE_BYTES + 1, 1000)):
            array = random_bytes(nbytes)
            assert np.array_equal(await pull_array(producer, consumer, array, f"i{number}"), array)
            await wait_until(lambda: a.blocks == 0)  # all expected reads are over as soon as the bytes are there
            await frees_all(a, b, f"i{number}")

        # The last one is small, and went over TCP.
        assert over_ucx(b) == ({"a": SIZE + 3 * PIECE_BYTES + 1}, {})


async def test_many_readers_cause_one_transfer(tmp_path):
    async with two_nodes(tmp_path, ARENA, transport="ucx") as (a, b), await a.client() as producer:
        handle = await producer.put(np.ones(SIZE, np.uint8), invocation="i", deadline=make_deadline(), readers=3)
        readers = [await b.client(f"reader-{number}") for number in range(3)]

        arrays = await asyncio.gather(
            *(reader.open_tensor(handle, invocation="i", deadline=make_deadline()) for reader in readers)
        )

        assert [int(array.sum()) for array in arrays] == [SIZE] * 3
        assert over_ucx(b) == ({"a": SIZE}, {})
        for reader in readers:
            await reader.close()
        await frees_all(a, b)


async def test_rows_are_pulled_while_their_producer_still_writes(tmp_path):
    async with (
        two_nodes(tmp_path, ARENA, transport="ucx") as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        block = await producer.allocate((100, 1 << 18), invocation="i", deadline=make_deadline())
        block.array[:40] = 1
        rows = await consumer.open_tensor(block.handle, (0, 40), invocation="i", deadline=make_deadline())
        assert int(rows[:40].sum()) == 40 << 18

        block.array[40:100] = 2
        block.seal()
        await consumer.extend_read(block.handle, (40, 100), invocation="i", deadline=make_deadline())

        assert int(rows[40:].sum()) == 2 * 60 << 18
        assert over_ucx(b) == ({"a": 100 << 18}, {})
        consumer.release(block.handle)
        await wait_until(lambda: a.blocks == 0)


@pytest.mark.parametrize("transports", [("tcp", "ucx"), ("ucx", "tcp")])
async def test_a_node_without_ucx_and_one_with_it_use_tcp(tmp_path, transports):
    nodes = [
        await start_node(name, tmp_path, peer_config(transport=transport), ARENA)
        for name, transport in zip("ab", transports, strict=True)
    ]
    a, b = nodes
    introduce_nodes(a, b)
    array = random_bytes()
    async with await a.client() as producer, await b.client() as consumer:
        for number in range(2):
            assert np.array_equal(await pull_array(producer, consumer, array, f"i{number}"), array)
            await frees_all(a, b, f"i{number}")
            if b.plane._ucx is not None:  # it offers UCX once
                assert not b.plane._ucx.is_usable(("a", a.plane.boot))

    assert over_ucx(b) == ({}, {})
    for node in nodes:
        await node.sidecar.stop()


async def break_off(lane, source, tag, progress) -> None:
    """Send a piece, then lose the network that UCX uses."""

    def lose_network() -> None:
        progress()
        lane.abort()

    await SEND(lane, source, tag, lose_network)


async def fall_silent(lane, source, tag, progress) -> None:
    """Send a piece, then nothing more."""
    await SEND(lane, source[:PIECE_BYTES], tag, progress)
    await asyncio.sleep(60.0)


SEND = UcxLane.send_range


@pytest.mark.parametrize("misfortune", [break_off, fall_silent])
async def test_what_ucx_does_not_bring_to_its_end_tcp_does(tmp_path, monkeypatch, misfortune):
    async with (
        two_nodes(tmp_path, ARENA, transport="ucx", stall_seconds=0.5) as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        monkeypatch.setattr(UcxLane, "send_range", misfortune)
        array = random_bytes()
        assert np.array_equal(await pull_array(producer, consumer, array), array)
        await frees_all(a, b)
        assert over_ucx(b) == ({}, {"a": 1})

        monkeypatch.undo()
        assert np.array_equal(await pull_array(producer, consumer, array), array)
        await frees_all(a, b)
        assert over_ucx(b) == ({}, {"a": 1})  # not tried again yet

        monkeypatch.setattr(b.plane._ucx, "_paused", {})  # a minute later
        assert np.array_equal(await pull_array(producer, consumer, array), array)
        await frees_all(a, b)
        assert over_ucx(b) == ({"a": SIZE}, {"a": 1})


@pytest.mark.parametrize("at", ["reader", "producer"])
async def test_an_invocation_that_ends_in_the_middle_leaves_nothing_and_no_open_file(tmp_path, monkeypatch, at):
    began = asyncio.Event()

    async def send_slowly(lane, source, tag, progress) -> None:
        await SEND(lane, source[:PIECE_BYTES], tag, progress)
        loop.call_soon_threadsafe(began.set)
        await asyncio.sleep(60.0)

    async with (
        two_nodes(tmp_path, ARENA, transport="ucx") as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        array, loop = random_bytes(), asyncio.get_running_loop()
        await pull_array(producer, consumer, array)
        await frees_all(a, b)
        files = _count_files()
        monkeypatch.setattr(UcxLane, "send_range", send_slowly)
        for number in range(5):
            opening = asyncio.create_task(pull_array(producer, consumer, array, f"i{number}"))
            await began.wait()
            began.clear()
            (b if at == "reader" else a).sidecar.end_invocation(f"i{number}")
            assert isinstance((await asyncio.gather(opening, return_exceptions=True))[0], Exception)
            await frees_all(a, b, f"i{number}")
        monkeypatch.undo()

        assert over_ucx(b) == ({"a": SIZE}, {})  # not counted as a UCX failure
        assert np.array_equal(await pull_array(producer, consumer, array), array)
        await frees_all(a, b)
        await wait_until(lambda: _count_files() <= files)


def _count_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def connected_lanes() -> tuple[UcxLane, UcxLane]:
    transport = UcxTransport()
    first, second = transport.open_lane(), transport.open_lane()
    first.connect(second.address)
    second.connect(first.address)
    return first, second


@pytest.mark.parametrize("closes", [True, False])
async def test_nothing_is_written_to_memory_whose_lane_is_closed(closes):
    """Without the close, the other side continues to write. The test must detect that bug."""
    source, target = np.full(SIZE, 7, np.uint8), np.zeros(SIZE, np.uint8)
    sender, reader = await connected_lanes()
    some = asyncio.Event()
    sending = asyncio.create_task(sender.send_range(memoryview(source), 5, lambda: None))
    reading = asyncio.create_task(reader.read_into(memoryview(target), 5, some.set))
    await some.wait()

    reading.cancel()
    if closes:
        await lanes.close_lane(reader)
    target[:] = 9  # the memory is in use again
    await asyncio.sleep(0.3)

    assert (7 in target) != closes
    sending.cancel()
    for lane in (sender, reader):
        await lanes.close_lane(lane)
    await asyncio.gather(sending, reading, return_exceptions=True)


async def test_a_close_in_a_task_that_is_cancelled_waits_all_the_same(monkeypatch):
    close_event = asyncio.Event()

    async def close_late(lane) -> None:
        await asyncio.sleep(0.05)
        await close(lane)
        close_event.set()

    close = UcxLane.close
    monkeypatch.setattr(UcxLane, "close", close_late)
    sender, reader = await connected_lanes()
    closing = asyncio.create_task(lanes.close_lane(reader))
    await asyncio.sleep(0)
    closing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await closing
    assert close_event.is_set()
    await lanes.close_lane(sender)


async def test_strangers_at_the_address_of_a_lane_cannot_write_without_the_tag():
    source, target = np.full(SIZE, 7, np.uint8), np.zeros(SIZE, np.uint8)
    sender, reader = await connected_lanes()
    stranger = UcxTransport().open_lane()
    stranger.connect(reader.address)

    guesses = [asyncio.create_task(stranger.send_range(memoryview(target), tag, lambda: None)) for tag in (0, 1, 6)]
    await asyncio.sleep(0.1)
    await asyncio.gather(
        sender.send_range(memoryview(source), 1 << 63, lambda: None),
        reader.read_into(memoryview(target), 1 << 63, lambda: None),
    )

    assert bool((target == 7).all())
    for guess in guesses:
        guess.cancel()
    for lane in (stranger, sender, reader):
        await lanes.close_lane(lane)
    await asyncio.gather(*guesses, return_exceptions=True)


async def test_a_sidecar_does_not_start_where_ucx_finds_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("UCX_NET_DEVICES", "nowhere0")
    with pytest.raises(Fatal, match="UCX_NET_DEVICES"):
        await start_node("a", tmp_path, peer_config(transport="ucx"))
