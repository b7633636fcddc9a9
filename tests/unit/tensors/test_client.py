"""The client against a real sidecar in the same loop: real sockets, real shared memory."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from omnibus.errors import ArenaFull, DeadlineExceeded, ProtocolError, Retryable, StaleHandle, TooLarge
from omnibus.tensors.client import TensorClient
from services.sidecar.server import Sidecar
from tests.unit.sidecar.node import connect, process, running, soon, until

HALF = 600_000


@dataclass
class Pair:
    """A producer and a consumer on one node."""

    sidecar: Sidecar
    producer: TensorClient
    consumer: TensorClient

    async def settle(self) -> dict[str, object]:
        """Counters after everything that both clients have sent."""
        await self.producer.stats()
        return await self.consumer.stats()


@pytest.fixture
async def pair(tmp_path) -> AsyncIterator[Pair]:
    async with (
        running(tmp_path) as sidecar,
        await connect(tmp_path, "producer") as producer,
        await connect(tmp_path, "consumer") as consumer,
    ):
        yield Pair(sidecar, producer, consumer)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32"])
async def test_what_is_put_is_what_is_viewed(pair, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)

    handle = await pair.producer.put(array, invocation="i", deadline=soon())
    view = pair.consumer.view(msgspec.json.decode(msgspec.json.encode(handle), type=type(handle)))

    np.testing.assert_array_equal(view, array)
    assert view.dtype == array.dtype
    assert not view.flags.writeable
    assert view.ctypes.data % 64 == 0


async def test_a_block_is_written_in_place_while_it_is_read(pair):
    block = await pair.producer.allocate((4, 2), "int32", invocation="i", deadline=soon())
    view = pair.consumer.view(block.handle)

    block.array[:] = 5

    assert view.tolist() == [[5, 5]] * 4


async def test_strided_scalar_and_empty_arrays_travel(pair):
    for array in (np.arange(12).reshape(3, 4).T[::2], np.array(2.5), np.zeros((0, 3), "int8")):
        handle = await pair.producer.put(array, invocation="i", deadline=soon())
        np.testing.assert_array_equal(pair.consumer.view(handle), array)
        assert handle.shape == array.shape


async def test_bfloat16_travels_as_declared_words(pair):
    words = np.array([0x3F80, 0x4000], "uint16")

    handle = await pair.producer.put(words, dtype="bfloat16", invocation="i", deadline=soon())

    assert handle.dtype == "bfloat16"
    assert pair.consumer.view(handle).tolist() == words.tolist()


@pytest.mark.parametrize(
    ("array", "dtype"), [(np.zeros(2, "uint16"), None), (np.zeros(2), "bfloat16"), (np.array(["x"]), None)]
)
async def test_an_array_that_may_not_travel_is_refused_and_takes_no_memory(pair, array, dtype):
    with pytest.raises(ProtocolError):
        await pair.producer.put(array, dtype=dtype, invocation="i", deadline=soon())

    assert (await pair.settle())["granted_total"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"readers": -1},
        {"readers": 1 << 16},
        {"deadline": float("inf")},
        {"wait": float("nan")},
        {"invocation": "x" * 65},
    ],
    ids=str,
)
async def test_a_senseless_request_fails_alone(pair, changes):
    with pytest.raises(ProtocolError):
        await pair.producer.allocate(8, **{"invocation": "i", "deadline": soon(), **changes})

    assert pair.producer.connected
    assert (await pair.settle())["blocks"] == 0


async def test_a_tensor_lives_until_its_last_reader_releases_it(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=soon(), readers=2)

    for reader in (pair.consumer, pair.producer):
        assert reader.view(handle).sum() == 36
        reader.release(handle)
        await pair.settle()

    with pytest.raises(StaleHandle):
        pair.consumer.view(handle)
    stats = await pair.settle()
    assert (stats["blocks"], stats["used_bytes"], stats["freed_total"]) == (0, 0, {"released": 1})


async def test_a_handle_of_reused_memory_is_stale(pair):
    first = await pair.producer.put(np.arange(9), invocation="i", deadline=soon())
    pair.producer.release(first)
    second = await pair.producer.put(np.arange(9), invocation="i", deadline=soon())

    assert second.offset == first.offset
    with pytest.raises(StaleHandle):
        pair.consumer.view(first)


async def test_the_end_of_an_invocation_frees_all_of_it_and_nothing_else(pair):
    handles = [await pair.producer.put(np.arange(9), invocation="i", deadline=soon(), readers=5) for _ in range(10)]
    other = await pair.producer.put(np.arange(9), invocation="j", deadline=soon())
    pair.consumer.view(handles[0])
    growing = await pair.producer.allocate(100, invocation="i", deadline=soon())

    pair.producer.end("i")
    assert (await pair.settle())["blocks"] == 2  # the consumer still reads one
    pair.consumer.end("i")
    pair.consumer.end("i")

    assert [row["id"] for row in await pair.consumer.ledger()] == [other.id]
    with pytest.raises(StaleHandle):
        pair.consumer.view(growing.handle)


async def test_memory_of_a_cancelled_producer_is_not_given_to_others_while_it_may_write(pair):
    block = await pair.producer.allocate(100, invocation="i", deadline=soon())
    pair.consumer.end("i")
    await pair.settle()

    other = await pair.consumer.allocate(100, invocation="j", deadline=soon())
    other.array[:] = 1
    block.array[:] = 2

    assert (other.array == 1).all()
    pair.producer.end("i")
    assert (await pair.settle())["blocks"] == 1


async def test_a_tensor_goes_at_its_deadline(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=soon(0.05))

    await until(lambda: pair.sidecar.snapshot()["blocks"] == 0)

    assert pair.sidecar.snapshot()["freed_total"] == {"expired": 1}
    with pytest.raises(StaleHandle):
        pair.consumer.view(handle)


async def test_a_deadline_can_be_moved_both_ways(pair):
    longer = await pair.producer.put(np.arange(9), invocation="i", deadline=soon(0.05))
    shorter = await pair.producer.put(np.arange(9), invocation="i", deadline=soon())
    pair.producer.extend(longer, soon())
    pair.producer.extend(shorter, soon(0.1))

    await until(lambda: pair.sidecar.snapshot()["blocks"] == 1)

    assert pair.consumer.view(longer).sum() == 36


async def test_an_open_block_is_forced_free_after_the_grace(tmp_path):
    async with running(tmp_path, grace=0.05) as sidecar, await connect(tmp_path) as client:
        block = await client.allocate(100, invocation="i", deadline=soon(0.05))
        client.view(block.handle)

        await until(lambda: sidecar.snapshot()["blocks"] == 0)

        assert sidecar.snapshot()["freed_total"] == {"forced": 1}
        block.seal()
        client.release(block.handle)
        assert (await client.stats())["stale_total"] == 2


async def test_a_deadline_in_the_past_is_refused(pair):
    with pytest.raises(DeadlineExceeded):
        await pair.producer.allocate(8, invocation="i", deadline=time.time() - 1)


async def test_a_discarded_tensor_is_gone(pair):
    block = await pair.producer.allocate(100, invocation="i", deadline=soon())
    sealed = await pair.producer.put(np.arange(9), invocation="i", deadline=soon())
    block.discard()
    pair.producer.discard(sealed)

    assert (await pair.settle())["blocks"] == 0


async def test_a_client_that_leaves_drops_what_it_was_writing_and_reading(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=soon())
    await pair.producer.allocate(100, invocation="i", deadline=soon())
    pair.consumer.view(handle)

    await pair.consumer.close()
    await pair.producer.close()

    await until(lambda: pair.sidecar.snapshot()["clients"] == 0)
    assert pair.sidecar.snapshot()["blocks"] == 0


async def test_a_full_arena_lets_wait_and_then_says_so(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=soon())

    with pytest.raises(ArenaFull, match="bytes are free"):
        await pair.consumer.allocate(HALF, invocation="j", deadline=soon(), wait=0.05)
    with pytest.raises(ArenaFull):
        await pair.consumer.allocate(HALF, invocation="j", deadline=soon(), wait=0)

    assert (await pair.settle())["refused_total"] == 2


async def test_those_who_wait_are_served_in_order_and_nobody_overtakes(pair):
    first = await pair.producer.allocate(HALF, invocation="i", deadline=soon())
    served: list[str] = []

    async def want(name: str, nbytes: int) -> None:
        block = await pair.consumer.allocate(nbytes, invocation=name, deadline=soon(), wait=30)
        served.append(name)
        await asyncio.sleep(0)
        block.discard()

    waiting = [asyncio.create_task(want(*each)) for each in [("large", HALF), ("small", 10), ("larger", HALF + 1)]]
    await until(lambda: pair.sidecar.snapshot()["waiting"] == 3)
    assert served == []
    first.discard()
    await asyncio.gather(*waiting)

    assert served == ["large", "small", "larger"]
    assert (await pair.settle())["blocks"] == 0


async def test_memory_of_a_client_that_leaves_goes_to_those_who_wait(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=soon())
    waiting = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=soon(), wait=15))
    await until(lambda: pair.sidecar.snapshot()["waiting"] == 1)

    await pair.producer.close()

    assert (await waiting).array.nbytes == HALF


async def test_a_waiter_that_gives_up_lets_the_next_one_pass(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=soon())

    blocked = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=soon(), wait=0.05))
    small = asyncio.create_task(pair.consumer.allocate(10, invocation="j", deadline=soon(), wait=30))

    assert (await small).array.nbytes == 10
    with pytest.raises(ArenaFull):
        await blocked


async def test_a_cancelled_waiter_leaves_the_queue(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=soon())
    waiting = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=soon(), wait=30))
    await until(lambda: pair.sidecar.snapshot()["waiting"] == 1)

    waiting.cancel()

    await until(lambda: pair.sidecar.snapshot()["waiting"] == 0)
    pair.producer.end("i")
    assert (await pair.settle())["blocks"] == 0


@pytest.mark.parametrize("turns", range(6))
async def test_memory_granted_to_a_cancelled_caller_is_given_back(pair, turns):
    asking = asyncio.create_task(pair.consumer.allocate(100, invocation="i", deadline=soon()))
    for _ in range(turns):
        await asyncio.sleep(0)

    granted = asking.done()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    await until(lambda: pair.sidecar.snapshot()["blocks"] == granted)
    assert (await pair.settle())["blocks"] == granted


async def test_the_end_of_an_invocation_ends_its_waiting(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=soon())
    waiting = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=soon(), wait=30))
    await until(lambda: pair.sidecar.snapshot()["waiting"] == 1)

    pair.producer.end("j")

    with pytest.raises(DeadlineExceeded, match="ended"):
        await waiting


async def test_the_queue_is_bounded(tmp_path):
    async with running(tmp_path, max_waiting=1) as sidecar, await connect(tmp_path) as client:
        await client.allocate(HALF, invocation="i", deadline=soon())
        waiting = asyncio.create_task(client.allocate(HALF, invocation="i", deadline=soon(), wait=30))
        await until(lambda: sidecar.snapshot()["waiting"] == 1)

        with pytest.raises(ArenaFull):
            await client.allocate(10, invocation="i", deadline=soon(), wait=30)
        waiting.cancel()


async def test_what_never_fits_is_refused_at_once(pair):
    with pytest.raises(TooLarge, match="never fits"):
        await pair.producer.allocate(1 << 20, invocation="i", deadline=soon(), wait=30)

    largest = await pair.producer.allocate((1 << 20) - 64, invocation="i", deadline=soon())
    assert largest.array.nbytes == (1 << 20) - 64


async def test_a_tensor_of_another_node_is_named_as_such(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=soon())

    with pytest.raises(Retryable, match="pulls between nodes are not configured"):
        pair.consumer.view(msgspec.structs.replace(handle, node="n2"))
    with pytest.raises(ProtocolError, match="arena"):
        pair.consumer.view(msgspec.structs.replace(handle, arena="other"))


async def test_the_ledger_shows_who_holds_what(pair):
    handle = await pair.producer.put(np.arange(9), invocation="inv-1", deadline=2e9, readers=2)
    pair.consumer.view(handle)
    await pair.settle()

    (row,) = await pair.consumer.ledger()

    assert 0 < row.pop("deadline") < 2e9  # cut to the longest lease
    assert row == {
        "id": handle.id,
        "generation": handle.generation,
        "offset": handle.offset,
        "nbytes": 72,
        "owner": "producer",
        "invocation": "inv-1",
        "readers": 2,
        "held": 1,
        "sealed": True,
        "condemned": "",
    }


async def test_a_ledger_of_many_blocks_arrives_whole(pair):
    blocks = [await pair.producer.allocate(10, invocation="i", deadline=soon()) for _ in range(500)]

    assert [row["id"] for row in await pair.consumer.ledger()] == [block.handle.id for block in blocks]


async def test_thousands_of_transfers_at_once_leave_nothing(pair):
    chance = np.random.default_rng(1)

    async def transfer(number: int) -> None:
        data = chance.integers(0, 255, chance.integers(0, 30_000), "uint8")
        handle = await pair.producer.put(data, invocation=f"i{number % 7}", deadline=soon(), wait=30)
        await asyncio.sleep(0)
        np.testing.assert_array_equal(pair.consumer.view(handle), data)
        pair.consumer.release(handle)

    async def worker(first: int) -> None:
        for number in range(first, 3000, 60):
            await transfer(number)

    await asyncio.gather(*map(worker, range(60)))

    stats = await pair.settle()
    assert (stats["blocks"], stats["used_bytes"], stats["holes"], stats["stale_total"]) == (0, 0, 1, 0)
    assert stats["granted_total"] == 3000


async def test_without_a_sidecar_connecting_fails_typed(tmp_path):
    with pytest.raises(Retryable, match="is it running"):
        await connect(tmp_path)


async def test_a_sidecar_of_another_node_is_refused(tmp_path):
    async with running(tmp_path):
        with pytest.raises(ProtocolError, match="serves node 'n1'"):
            await TensorClient.connect(str(tmp_path / "s"), "client", "n2")


async def test_a_silent_sidecar_cannot_hold_a_client(tmp_path):
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_unix_server(silent, str(tmp_path / "s")):
        with pytest.raises(Retryable):
            await connect(tmp_path, timeout=0.1)
        await asyncio.wait_for(left.wait(), 20)


async def test_a_restarted_sidecar_is_found_again_and_old_handles_are_stale(tmp_path):
    async with running(tmp_path) as sidecar, await connect(tmp_path) as client:
        old = await client.put(np.arange(9), invocation="i", deadline=soon())
        held = client.view(old)
        await client.allocate(HALF, invocation="i", deadline=soon())
        waiting = asyncio.create_task(client.allocate(HALF, invocation="i", deadline=soon(), wait=30))
        await until(lambda: sidecar.snapshot()["waiting"] == 1)

        await sidecar.stop()

        with pytest.raises(Retryable):
            await waiting
        await until(lambda: not client.connected)
        with pytest.raises(Retryable):
            client.view(old)
        with pytest.raises(Retryable):
            await client.ready(0.01)
        with pytest.raises(Retryable):
            await client.stats()
        client.release(old)
        client.end("i")

        async with running(tmp_path):
            await client.ready(20)
            new = await client.put(np.arange(9), invocation="i", deadline=soon())
            assert (new.offset, new.arena) == (old.offset, old.arena)
            assert new.generation > old.generation
            with pytest.raises(StaleHandle):
                client.view(old)
            assert held.sum() == 36
            assert client.view(new).sum() == 36


async def test_closing_stops_the_search_for_a_lost_sidecar(tmp_path):
    async with running(tmp_path) as sidecar:
        client = await connect(tmp_path)
        await sidecar.stop()
        await until(lambda: not client.connected)

    await client.close()

    async with running(tmp_path) as sidecar:
        await asyncio.sleep(0.1)
        assert sidecar.snapshot()["clients"] == 0


async def test_a_sidecar_process_that_is_killed_is_replaced_under_the_same_names(tmp_path):
    async with process("sidecar", tmp_path) as first:
        assert first.stdout is not None
        assert await first.stdout.readline() == b"ready\n"
        client = await connect(tmp_path)
        old = await client.put(np.arange(9), invocation="i", deadline=soon())
        first.kill()
        await first.wait()  # the arena's lock goes with the process, not with its sockets
        await until(lambda: not client.connected)

        async with running(tmp_path), client:
            await client.ready(20)
            await client.put(np.arange(9), invocation="i", deadline=soon())
            with pytest.raises(StaleHandle):
                client.view(old)
