"""Blocks that producers hold ahead of need, without round trips or leaks."""

import asyncio
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import ArenaFull, DeadlineExceeded, StaleHandle
from omnibus.tensors import protocol
from omnibus.tensors.handle import Handle
from omnibus.tensors.protocol import FRAME_BYTES, FrameReader, SidecarFrame, Verb, class_bytes, encode_frame, size_class
from tests.unit.sidecar.node import connect_client, make_deadline, read_line, run_sidecar, start_process, wait_until
from tests.unit.tensors.pairs import ClientPair

DATA = np.arange(1000, dtype=np.int32)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of ``work``, which must not wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    finally:
        work.close()
    raise AssertionError("it waits")


def put_tensor(pair: ClientPair, invocation: str = "i", data: np.ndarray = DATA) -> Coroutine[Any, Any, Handle]:
    return pair.producer.put(data, invocation=invocation, deadline=make_deadline())


async def warm_producer(pair: ClientPair, data: np.ndarray = DATA) -> None:
    """Give the producer a spare for ``data``, and nothing else."""
    for _ in range(2):
        pair.producer.release(await put_tensor(pair, data=data))
    await wait_until(lambda: pair.sidecar.snapshot()["spare_blocks"] > 0)
    await pair.wait_settled()


@given(st.integers(0, 1 << 40))
def test_a_size_class_is_the_smallest_that_fits(nbytes):
    number = size_class(nbytes)

    assert class_bytes(number) >= nbytes
    assert number == 1 or class_bytes(number - 1) < nbytes
    assert class_bytes(number) <= max(256, nbytes * 5 // 4 + 64)


async def test_what_takes_longer_to_write_than_to_wait_for_has_no_spares():
    messages: list[bytes] = []
    pool = protocol.SparePool(messages.append, asyncio.get_running_loop())
    for nbytes in (protocol.MAX_SPARE_BYTES, protocol.MAX_SPARE_BYTES + 1):
        for _ in range(3):
            assert pool.take(nbytes) is None
    await asyncio.sleep(0)
    pool.close()

    (frame,) = FrameReader().feed(b"".join(messages))
    assert (frame.verb, frame.nbytes) == (Verb.REQUEST_SPARES, protocol.MAX_SPARE_BYTES)


async def test_a_second_tensor_of_a_size_has_the_third_one_written_without_waiting(pair):
    first = await put_tensor(pair)
    assert pair.sidecar.snapshot()["spare_blocks"] == 0
    await warm_producer(pair)

    third = at_once(put_tensor(pair))

    assert pair.consumer.view(third).tolist() == DATA.tolist()
    pair.consumer.release(third)
    pair.consumer.release(first)
    stats = await pair.wait_settled()
    assert (stats["blocks"], stats["used_bytes"], stats["spares_used_total"]) == (0, 0, 1)
    assert stats["freed_total"] == {"released": 4}
    assert stats["used_bytes"] + stats["spare_bytes"] + stats["free_bytes"] == stats["arena_bytes"]


async def test_a_block_that_grows_in_a_spare_is_a_lease_until_it_is_sealed(pair):
    await warm_producer(pair)

    block = at_once(pair.producer.allocate((990,), "int32", invocation="i", deadline=make_deadline()))
    await pair.wait_settled()
    (row,) = await pair.producer.ledger()
    block.array[:] = 7

    assert (row["sealed"], row["nbytes"], row["invocation"], row["readers"]) == (False, 3960, "i", 1)
    handle = block.seal()
    assert pair.consumer.view(handle).sum() == 6930
    pair.consumer.release(handle)
    assert (await pair.wait_settled())["blocks"] == 0


async def test_what_a_tensor_does_not_need_of_its_spare_is_free(pair):
    large, small = np.zeros(40_000, np.uint8), np.zeros(33_000, np.uint8)
    assert size_class(large.nbytes) == size_class(small.nbytes)
    await warm_producer(pair, large)

    at_once(put_tensor(pair, data=small))
    stats = await pair.wait_settled()

    assert stats["used_bytes"] == -(-(small.nbytes + 64) // 64) * 64


async def test_a_client_that_may_have_one_spare_of_a_size_has_one_for_each_tensor(pair):
    large = np.zeros(100_000, np.uint8)
    await warm_producer(pair, large)

    for count in (1, 2, 3):
        pair.producer.release(at_once(put_tensor(pair, data=large)))
        await pair.wait_settled()
        await wait_until(lambda: pair.sidecar.snapshot()["spare_blocks"] == 1)
        assert pair.sidecar.snapshot()["spares_used_total"] == count


async def test_a_deadline_that_has_passed_takes_no_spare(pair):
    await warm_producer(pair)

    with pytest.raises(DeadlineExceeded):
        await pair.producer.put(DATA, invocation="i", deadline=make_deadline(-1))

    assert (await pair.wait_settled())["spares_used_total"] == 0


async def test_spares_give_way_to_a_tensor_that_finds_no_room_otherwise(pair):
    await warm_producer(pair, np.zeros(100_000, np.uint8))
    room = pair.sidecar.snapshot()["arena_bytes"] - 100

    block = await pair.consumer.allocate(room, invocation="j", deadline=make_deadline(), wait=0)

    stats = await pair.wait_settled()
    assert (stats["spare_blocks"], stats["spares_recalled_total"], stats["refused_total"]) == (0, 1, 0)
    with pytest.raises(ArenaFull):
        await pair.producer.allocate(100_000, invocation="i", deadline=make_deadline(), wait=0)
    block.discard()
    await put_tensor(pair)


async def test_spares_that_are_not_used_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "IDLE_SECONDS", 0.3)
    async with run_sidecar(tmp_path) as sidecar, await connect_client(tmp_path) as client:
        for _ in range(2):
            client.release(await client.put(DATA, invocation="i", deadline=make_deadline()))
        await wait_until(lambda: sidecar.snapshot()["spare_blocks"] > 0)

        await wait_until(lambda: sidecar.snapshot()["spare_blocks"] == 0)

        assert sidecar.snapshot()["spare_bytes"] == sidecar.snapshot()["used_bytes"] == 0
        assert sidecar.snapshot()["freed_total"] == {"released": 2}
        assert sidecar.snapshot()["holes"] == 1


async def test_spares_of_a_killed_producer_are_free(tmp_path: Path):
    async with run_sidecar(tmp_path) as sidecar, start_process("repeater", tmp_path) as producer:
        assert await read_line(producer) == b"ready"
        await wait_until(lambda: sidecar.snapshot()["spare_blocks"] > 0)

        producer.kill()

        await wait_until(lambda: sidecar.snapshot()["clients"] == 0)
        snapshot = sidecar.snapshot()
        assert (snapshot["spare_blocks"], snapshot["spare_bytes"], snapshot["blocks"]) == (0, 0, 0)
        assert snapshot["free_bytes"] == snapshot["arena_bytes"]
        assert snapshot["freed_total"] == {"released": 2}


async def test_a_tensor_of_an_invocation_that_somebody_ended_before_is_freed(pair):
    await warm_producer(pair)
    pair.consumer.end_invocation("over")
    await pair.wait_settled()

    late = at_once(put_tensor(pair, "over"))
    stats = await pair.wait_settled()

    assert (stats["blocks"], stats["freed_total"]["ended"]) == (0, 1)
    with pytest.raises(StaleHandle):
        pair.consumer.view(late)


async def test_a_producer_may_use_the_name_of_an_invocation_again_that_it_ended(pair):
    await warm_producer(pair)
    pair.producer.end_invocation("again")

    handle = at_once(put_tensor(pair, "again"))

    assert (await pair.wait_settled())["blocks"] == 1
    assert pair.consumer.view(handle).sum() == DATA.sum()


async def test_a_burst_has_more_spares_afterwards(pair):
    await warm_producer(pair)
    spares_before = pair.sidecar.snapshot()["spare_blocks"]
    handles = await asyncio.gather(*(put_tensor(pair) for _ in range(8)))
    for handle in handles:
        pair.producer.release(handle)
    await put_tensor(pair)
    await pair.wait_settled()

    assert pair.sidecar.snapshot()["spare_blocks"] > spares_before


class RawClient:
    """A client that sends raw frames and answers nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader()

    @classmethod
    async def open_client(cls, directory: Path) -> "RawClient":
        client = cls(*await asyncio.open_unix_connection(str(directory / "s")))
        client.send(SidecarFrame(Verb.HELLO, 1, text=b"raw"))
        while (await client.read_frames(1))[0].nbytes:
            pass
        return client

    def send(self, frame: SidecarFrame) -> None:
        self.writer.write(encode_frame(frame))

    async def read_frames(self, count: int) -> list[SidecarFrame]:
        data = await asyncio.wait_for(self._reader.readexactly(count * FRAME_BYTES), 20)
        return list(self._frames.feed(data))


async def request_spares(client: RawClient, count: int, nbytes: int) -> list[int]:
    client.send(SidecarFrame(Verb.REQUEST_SPARES, 5, count, nbytes=nbytes))
    return [frame.verb for frame in await client.read_frames(count)]


async def test_spares_of_one_client_and_of_all_take_a_share_of_the_arena_at_most(tmp_path: Path):
    async with run_sidecar(tmp_path, size=64 << 10) as sidecar:
        clients = [await RawClient.open_client(tmp_path) for _ in range(3)]

        verbs = [await request_spares(client, 16, 1024 - 64) for client in clients]

        grant_counts = [client_verbs.count(Verb.SPARE) for client_verbs in verbs]
        assert [sum(grant_counts), *grant_counts[:2]] == [16, 8, 8]
        assert all(found.count(Verb.SPARE) + found.count(Verb.NO_SPARE) == 16 for found in verbs)
        assert sidecar.snapshot()["spare_bytes"] == 16 << 10


async def test_a_client_that_gives_nothing_back_holds_others_up_for_a_moment_and_loses_it_after_the_grace(
    tmp_path: Path,
):
    async with run_sidecar(tmp_path, size=64 << 10, grace=0.6) as sidecar, await connect_client(tmp_path) as client:
        frozen = await RawClient.open_client(tmp_path)
        assert await request_spares(frozen, 1, 4096) == [Verb.SPARE]

        with pytest.raises(ArenaFull):
            await client.allocate(62_000, invocation="i", deadline=make_deadline(), wait=0)
        assert [frame.verb for frame in await frozen.read_frames(1)] == [Verb.RECALL_SPARES]
        block = await client.allocate(62_000, invocation="i", deadline=make_deadline(), wait=15)

        assert sidecar.snapshot()["spare_blocks"] == 0
        assert sidecar.snapshot()["freed_total"] == {"forced": 1}
        block.discard()


@pytest.mark.parametrize(
    "frame",
    [
        SidecarFrame(Verb.REQUEST_SPARES, 5, 65, nbytes=64),
        SidecarFrame(Verb.USE_SPARE, nbytes=4097, deadline=9e9, text=b"i"),
        SidecarFrame(Verb.USE_SPARE, nbytes=10, deadline=9e9),
    ],
    ids=["too-many", "too-large", "nameless"],
)
async def test_what_no_spare_allows_costs_the_connection(tmp_path: Path, frame: SidecarFrame):
    async with run_sidecar(tmp_path) as sidecar:
        client = await RawClient.open_client(tmp_path)
        client.send(SidecarFrame(Verb.REQUEST_SPARES, 5, 1, nbytes=4096))
        (spare,) = await client.read_frames(1)

        client.send(frame._replace(block=spare.block, generation=spare.generation))

        await wait_until(lambda: sidecar.snapshot()["clients"] == 0)
        assert sidecar.snapshot()["dropped_clients_total"] == 1
        assert (sidecar.snapshot()["spare_blocks"], sidecar.snapshot()["blocks"]) == (0, 0)


async def test_a_spare_of_another_client_is_nobody_elses(tmp_path: Path):
    async with run_sidecar(tmp_path) as sidecar:
        owner, thief = [await RawClient.open_client(tmp_path) for _ in range(2)]
        owner.send(SidecarFrame(Verb.REQUEST_SPARES, 5, 1, nbytes=4096))
        (spare,) = await owner.read_frames(1)

        thief.send(SidecarFrame(Verb.USE_SPARE, 0, 1, spare.block, spare.generation, 10, 1, make_deadline(), text=b"i"))
        thief.send(SidecarFrame(Verb.DISCARD, 0, 0, spare.block, spare.generation))
        thief.send(SidecarFrame(Verb.STATS, 9))
        await thief.read_frames(1)

        assert (sidecar.snapshot()["spare_blocks"], sidecar.snapshot()["blocks"]) == (1, 0)


async def test_spares_are_cleared_when_isolation_is_on(tmp_path: Path):
    async with run_sidecar(tmp_path, clear_on_free=True) as sidecar, await connect_client(tmp_path) as client:
        raw = await RawClient.open_client(tmp_path)
        raw.send(SidecarFrame(Verb.REQUEST_SPARES, 5, 1, nbytes=4096))
        (spare,) = await raw.read_frames(1)
        arena = tmp_path / "arena"
        with arena.open("r+b") as file:  # a producer that dies while it writes
            file.seek(spare.offset)
            file.write(b"secret")

        raw.writer.close()

        await wait_until(lambda: sidecar.snapshot()["spare_blocks"] == 0)
        assert not (await client.allocate(4096, invocation="i", deadline=make_deadline())).array.any()


async def test_the_header_of_a_spare_says_how_much_of_it_is_used(pair):
    await warm_producer(pair)

    handle = at_once(put_tensor(pair))

    header = (Path(pair.sidecar.settings.directory) / "arena").read_bytes()[handle.offset - 64 : handle.offset]
    assert struct.unpack("<4Q", header[:32])[1:] == (handle.generation, handle.id, DATA.nbytes)
