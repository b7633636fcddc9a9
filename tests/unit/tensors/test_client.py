"""The client and a real sidecar in the same loop: real sockets, real shared memory."""

import asyncio
import time

import msgspec
import numpy as np
import pytest

from omnibus.errors import DeadlineExceeded, ProtocolError, Retryable, StaleHandle, TooLarge
from omnibus.tensors import link
from tests.unit.sidecar.node import connect_client, make_deadline, run_sidecar, wait_until


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32"])
async def test_what_is_put_is_what_is_viewed(pair, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)

    handle = await pair.producer.put(array, invocation="i", deadline=make_deadline())
    view = pair.consumer.view(msgspec.json.decode(msgspec.json.encode(handle), type=type(handle)))

    np.testing.assert_array_equal(view, array)
    assert view.dtype == array.dtype
    assert not view.flags.writeable
    assert view.ctypes.data % 64 == 0


async def test_a_block_is_written_in_place_while_it_is_read(pair):
    block = await pair.producer.allocate((4, 2), "int32", invocation="i", deadline=make_deadline())
    view = pair.consumer.view(block.handle)

    block.array[:] = 5

    assert view.tolist() == [[5, 5]] * 4


async def test_strided_scalar_and_empty_arrays_travel(pair):
    for array in (np.arange(12).reshape(3, 4).T[::2], np.array(2.5), np.zeros((0, 3), "int8")):
        handle = await pair.producer.put(array, invocation="i", deadline=make_deadline())
        np.testing.assert_array_equal(pair.consumer.view(handle), array)
        assert handle.shape == array.shape


async def test_bfloat16_travels_as_declared_words(pair):
    words = np.array([0x3F80, 0x4000], "uint16")

    handle = await pair.producer.put(words, dtype="bfloat16", invocation="i", deadline=make_deadline())

    assert handle.dtype == "bfloat16"
    assert pair.consumer.view(handle).tolist() == words.tolist()


@pytest.mark.parametrize(
    ("array", "dtype"), [(np.zeros(2, "uint16"), None), (np.zeros(2), "bfloat16"), (np.array(["x"]), None)]
)
async def test_an_array_that_may_not_travel_is_refused_and_takes_no_memory(pair, array, dtype):
    with pytest.raises(ProtocolError):
        await pair.producer.put(array, dtype=dtype, invocation="i", deadline=make_deadline())

    assert (await pair.wait_settled())["granted_total"] == 0


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
        await pair.producer.allocate(8, **{"invocation": "i", "deadline": make_deadline(), **changes})

    assert pair.producer.connected
    assert (await pair.wait_settled())["blocks"] == 0


async def test_a_tensor_lives_until_its_last_reader_releases_it(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline(), readers=2)

    for reader in (pair.consumer, pair.producer):
        assert reader.view(handle).sum() == 36
        reader.release(handle)
        await pair.wait_settled()

    with pytest.raises(StaleHandle):
        pair.consumer.view(handle)
    stats = await pair.wait_settled()
    assert (stats["blocks"], stats["used_bytes"], stats["freed_total"]) == (0, 0, {"released": 1})


async def test_what_frees_memory_reaches_the_sidecar_without_a_further_message(pair):
    read = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())
    over = await pair.producer.put(np.arange(9), invocation="j", deadline=make_deadline())

    pair.consumer.release(read)
    await wait_until(lambda: pair.sidecar.snapshot()["blocks"] == 1)
    pair.producer.end_invocation("j")
    await wait_until(lambda: pair.sidecar.snapshot()["blocks"] == 0)

    for handle in (read, over):
        with pytest.raises(StaleHandle):
            pair.consumer.view(handle)


async def test_what_frees_memory_goes_with_the_next_message(pair, monkeypatch):
    monkeypatch.setattr(link, "LAZY_SECONDS", 600.0)
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())
    await pair.wait_settled()

    pair.consumer.release(handle)
    assert pair.sidecar.snapshot()["blocks"] == 1
    stats = await pair.consumer.stats()

    assert stats["freed_total"] == {"released": 1}


async def test_a_handle_of_reused_memory_is_stale(pair):
    first = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())
    pair.producer.release(first)
    second = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())

    assert second.offset == first.offset
    with pytest.raises(StaleHandle):
        pair.consumer.view(first)


async def test_the_end_of_an_invocation_frees_all_of_it_and_nothing_else(pair):
    handles = [
        await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline(), readers=5) for _ in range(10)
    ]
    other = await pair.producer.put(np.arange(9), invocation="j", deadline=make_deadline())
    pair.consumer.view(handles[0])
    growing = await pair.producer.allocate(100, invocation="i", deadline=make_deadline())
    await pair.wait_settled()

    pair.producer.end_invocation("i")
    assert (await pair.wait_settled())["blocks"] == 2  # the consumer still reads one
    pair.consumer.end_invocation("i")
    pair.consumer.end_invocation("i")

    assert [row["id"] for row in await pair.consumer.ledger()] == [other.id]
    with pytest.raises(StaleHandle):
        pair.consumer.view(growing.handle)


async def test_memory_of_a_cancelled_producer_is_not_given_to_others_while_it_may_write(pair):
    block = await pair.producer.allocate(100, invocation="i", deadline=make_deadline())
    pair.consumer.end_invocation("i")
    await pair.wait_settled()

    other = await pair.consumer.allocate(100, invocation="j", deadline=make_deadline())
    other.array[:] = 1
    block.array[:] = 2

    assert (other.array == 1).all()
    pair.producer.end_invocation("i")
    assert (await pair.wait_settled())["blocks"] == 1


async def test_a_tensor_goes_at_its_deadline(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline(0.05))

    await wait_until(lambda: pair.sidecar.snapshot()["blocks"] == 0)

    assert pair.sidecar.snapshot()["freed_total"] == {"expired": 1}
    with pytest.raises(StaleHandle):
        pair.consumer.view(handle)


async def test_a_deadline_can_be_moved_both_ways(pair):
    longer = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline(0.05))
    shorter = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())
    pair.producer.extend(longer, make_deadline())
    pair.producer.extend(shorter, make_deadline(0.1))

    await wait_until(lambda: pair.sidecar.snapshot()["blocks"] == 1)

    assert pair.consumer.view(longer).sum() == 36


async def test_an_open_block_is_forced_free_after_the_grace(tmp_path):
    async with run_sidecar(tmp_path, grace=0.05) as sidecar, await connect_client(tmp_path) as client:
        block = await client.allocate(100, invocation="i", deadline=make_deadline(0.05))
        client.view(block.handle)

        await wait_until(lambda: sidecar.snapshot()["blocks"] == 0)

        assert sidecar.snapshot()["freed_total"] == {"forced": 1}
        block.seal()
        client.release(block.handle)
        assert (await client.stats())["stale_total"] == 2


async def test_a_deadline_in_the_past_is_refused(pair):
    with pytest.raises(DeadlineExceeded):
        await pair.producer.allocate(8, invocation="i", deadline=time.time() - 1)


async def test_a_discarded_tensor_is_gone(pair):
    block = await pair.producer.allocate(100, invocation="i", deadline=make_deadline())
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())
    block.discard()
    pair.producer.discard(handle)

    assert (await pair.wait_settled())["blocks"] == 0


async def test_a_client_that_leaves_drops_what_it_was_writing_and_reading(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())
    await pair.producer.allocate(100, invocation="i", deadline=make_deadline())
    pair.consumer.view(handle)

    await pair.consumer.close()
    await pair.producer.close()

    await wait_until(lambda: pair.sidecar.snapshot()["clients"] == 0)
    assert pair.sidecar.snapshot()["blocks"] == 0


async def test_what_never_fits_is_refused_at_once(pair):
    with pytest.raises(TooLarge, match="never fits"):
        await pair.producer.allocate(1 << 20, invocation="i", deadline=make_deadline(), wait=30)

    largest = await pair.producer.allocate((1 << 20) - 64, invocation="i", deadline=make_deadline())
    assert largest.array.nbytes == (1 << 20) - 64


async def test_a_tensor_of_another_node_is_named_as_such(pair):
    handle = await pair.producer.put(np.arange(9), invocation="i", deadline=make_deadline())

    with pytest.raises(Retryable, match="must be pulled first"):
        pair.consumer.view(msgspec.structs.replace(handle, node="n2"))
    with pytest.raises(ProtocolError, match="arena"):
        pair.consumer.view(msgspec.structs.replace(handle, arena="other"))


async def test_the_ledger_shows_who_holds_what(pair):
    handle = await pair.producer.put(np.arange(9), invocation="inv-1", deadline=2e9, readers=2)
    pair.consumer.view(handle)
    await pair.wait_settled()

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
        "retained": False,
        "condemned": "",
    }


async def test_a_ledger_of_many_blocks_arrives_whole(pair):
    blocks = [await pair.producer.allocate(10, invocation="i", deadline=make_deadline()) for _ in range(500)]
    await pair.wait_settled()

    assert [row["id"] for row in await pair.consumer.ledger()] == [block.handle.id for block in blocks]


async def test_thousands_of_transfers_at_once_leave_nothing(pair):
    chance = np.random.default_rng(1)

    async def transfer_array(number: int) -> None:
        data = chance.integers(0, 255, chance.integers(0, 30_000), "uint8")
        handle = await pair.producer.put(data, invocation=f"i{number % 7}", deadline=make_deadline(), wait=30)
        await asyncio.sleep(0)
        np.testing.assert_array_equal(pair.consumer.view(handle), data)
        pair.consumer.release(handle)

    async def run_transfers(first: int) -> None:
        for number in range(first, 3000, 60):
            await transfer_array(number)

    await asyncio.gather(*map(run_transfers, range(60)))

    stats = await pair.wait_settled()
    assert (stats["blocks"], stats["used_bytes"], stats["stale_total"]) == (0, 0, 0)
    assert stats["holes"] <= stats["spare_blocks"] + 1  # blocks that the producer may use again lie between them
    assert stats["granted_total"] == 3000
