"""Tensors of another node: the same bytes, each pulled once, freed on both nodes before any deadline."""

import asyncio
import socket

import numpy as np
import pytest

from omnibus.errors import ArenaFull, NodeUnreachable, StaleHandle
from omnibus.tensors.peer_protocol import (
    COPIED,
    FRAME_BYTES,
    PeerFrame,
    PeerVerb,
    PullStatus,
    decode_peer_frame,
    encode_peer_frame,
)
from omnibus_sidecar.peers import dialler
from omnibus_sidecar.peers import plane as listener
from omnibus_sidecar.peers.stream import write_frame
from tests.unit.sidecar.node import make_deadline, wait_until
from tests.unit.sidecar.peers.pair import two_nodes
from tests.unit.sidecar.peers.raw import connect_greeted


async def test_a_tensor_of_another_node_has_the_same_bytes_and_is_freed_on_both(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        array = np.random.default_rng(1).integers(0, 255, (300, 1000), np.uint8)
        handle = await producer.put(array, invocation="i", deadline=make_deadline())

        got = await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())

        assert np.array_equal(got, array)
        await wait_until(lambda: a.blocks == 0)  # all expected reads are over as soon as the bytes are there
        consumer.release(handle)
        b.sidecar.end_invocation("i")
        await wait_until(lambda: b.blocks == 0)


async def test_a_pull_between_nodes_of_this_build_has_no_confirmation(tmp_path, monkeypatch):
    verbs: list[int] = []

    async def write_and_note(stream, frame, **options):
        verbs.append(frame.verb)
        await write_frame(stream, frame, **options)

    for side in (listener, dialler):
        monkeypatch.setattr(side, "write_frame", write_and_note)
    async with two_nodes(tmp_path, 1 << 24) as (a, b), await a.client() as producer, await b.client() as consumer:
        for nbytes in (1000, 3 << 20):
            handle = await producer.put(np.ones(nbytes, np.uint8), invocation="i", deadline=make_deadline())
            got = await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())
            assert int(got.sum()) == nbytes
        await wait_until(lambda: a.blocks == 0)
        b.sidecar.end_invocation("i")

    pulls = [verb for verb in verbs if verb not in (PeerVerb.READY, PeerVerb.PING, PeerVerb.PONG)]
    assert pulls == [PeerVerb.GET, PeerVerb.HEAD, PeerVerb.DONE] * 2


async def test_many_readers_on_one_node_cause_one_transfer_and_one_read_each(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer:
        handle = await producer.put(np.ones(500_000, np.uint8), invocation="i", deadline=make_deadline(), readers=4)
        readers = [await b.client(f"reader-{number}") for number in range(4)]

        arrays = await asyncio.gather(
            *(reader.open_tensor(handle, invocation="i", deadline=make_deadline()) for reader in readers)
        )

        assert [int(array.sum()) for array in arrays] == [500_000] * 4
        assert b.counters["pulled_bytes_total"] == 500_000
        await wait_until(lambda: a.counters["sent_bytes_total"] == 500_000)  # counted after the readers have it
        for reader in readers:
            reader.release(handle)
        await wait_until(lambda: a.blocks == 0)
        b.sidecar.end_invocation("i")
        await wait_until(lambda: b.blocks == 0)
        for reader in readers:
            await reader.close()


async def test_rows_are_pulled_while_their_producer_still_writes(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        block = await producer.allocate((100, 64), "float32", invocation="i", deadline=make_deadline())
        handle = block.handle
        block.array[:40] = 1.0
        rows = await consumer.open_tensor(handle, (0, 40), invocation="i", deadline=make_deadline())
        assert rows[:40].sum() == 40 * 64

        block.array[40:100] = 2.0
        block.seal()
        await consumer.extend_read(handle, (40, 100), invocation="i", deadline=make_deadline())

        assert rows[40:].sum() == 2 * 60 * 64
        assert b.counters["pulled_bytes_total"] == handle.nbytes
        assert a.blocks == 1  # its one reader is still reading
        consumer.release(handle)
        await wait_until(lambda: a.blocks == 0)


async def test_a_freed_tensor_is_stale_and_not_somebody_elses_bytes(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        producer.end_invocation("i")
        await producer.put(np.zeros(1000, np.uint8), invocation="j", deadline=make_deadline())

        with pytest.raises(StaleHandle):
            await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())

        await wait_until(lambda: b.blocks == 0)


async def test_without_the_key_of_a_block_nothing_is_sent(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        forged_handle = handle.__class__(
            *[getattr(handle, name) for name in handle.__struct_fields__[:-1]], handle.key ^ 1
        )

        with pytest.raises(StaleHandle):
            await consumer.open_tensor(forged_handle, invocation="i", deadline=make_deadline())

        assert a.counters["sent_bytes_total"] == 0
        assert (await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())).sum() == 1000


async def test_a_node_that_nobody_knows_is_unreachable(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        assert b.sidecar.peers is not None
        del b.sidecar.peers.addresses["a"]

        with pytest.raises(NodeUnreachable) as refusal:
            await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())

        assert refusal.value.node == "a"


async def test_a_stopped_sidecar_ends_the_wait_for_its_tensors(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        first = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        await consumer.open_tensor(first, invocation="i", deadline=make_deadline())
        await a.sidecar.stop()

        with pytest.raises(NodeUnreachable):
            await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())


async def test_pulls_take_only_their_share_of_the_arena_and_make_room_for_each_other(tmp_path):
    async with (
        two_nodes(tmp_path, 1 << 22, incoming=0.25) as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        handles = [
            await producer.put(np.full(700_000, number, np.uint8), invocation="i", deadline=make_deadline())
            for number in range(3)
        ]
        first_tensor = await consumer.open_tensor(handles[0], invocation="i", deadline=make_deadline())
        with pytest.raises(ArenaFull, match="share"):
            await consumer.open_tensor(handles[1], invocation="i", deadline=make_deadline(1.0))
        assert first_tensor[0] == 0

        consumer.release(handles[0])

        for handle, value in zip(handles[1:], (1, 2), strict=True):
            assert (await consumer.open_tensor(handle, invocation="i", deadline=make_deadline()))[0] == value
            consumer.release(handle)
        assert b.counters["mirror_bytes"] <= 1 << 20


async def test_a_dead_reader_ends_its_reads_on_the_other_node(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer:
        block = await producer.allocate((100, 64), "float32", invocation="i", deadline=make_deadline())
        consumer = await b.client()
        await consumer.open_tensor(block.handle, (0, 10), invocation="i", deadline=make_deadline())
        block.seal()
        assert a.blocks == 1

        await consumer.close()

        await wait_until(lambda: a.blocks == 0)


async def test_a_read_may_be_declined_from_another_node(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())

        consumer.release(handle)

        await wait_until(lambda: a.blocks == 0)


async def test_a_reader_that_gives_up_inside_a_pull_has_read(tmp_path):
    async with two_nodes(tmp_path, 1 << 26) as (a, b), await a.client() as producer, await b.client() as consumer:
        handle = await producer.put(np.ones(20 << 20, np.uint8), invocation="i", deadline=make_deadline())
        reading = asyncio.create_task(consumer.open_tensor(handle, invocation="i", deadline=make_deadline()))
        await wait_until(lambda: b.blocks == 1)

        reading.cancel()

        await wait_until(lambda: a.blocks == 0)


async def test_an_invocation_that_ends_frees_what_is_on_its_way(tmp_path):
    async with two_nodes(tmp_path, 1 << 26) as (a, b), await a.client() as producer, await b.client() as consumer:
        handle = await producer.put(np.ones(20 << 20, np.uint8), invocation="i", deadline=make_deadline())
        reading = asyncio.create_task(consumer.open_tensor(handle, invocation="i", deadline=make_deadline()))
        await wait_until(lambda: b.blocks == 1)

        b.sidecar.end_invocation("i")
        a.sidecar.end_invocation("i")

        await asyncio.wait([reading])
        consumer.end_invocation("i")
        await wait_until(lambda: a.blocks == b.blocks == 0)


async def test_another_node_is_answered_while_the_ledger_is_busy(tmp_path):
    """The ledger's loop is blocked from the request to the last byte."""
    async with two_nodes(tmp_path) as (a, _), await a.client() as producer:
        handle = await producer.put(np.full(1000, 7, np.uint8), invocation="i", deadline=make_deadline())
        reader = await connect_greeted(a)
        connection = reader._socket.dup()
        connection.settimeout(10.0)
        get = PeerFrame(PeerVerb.GET, 1, handle.id, handle.generation, handle.key, 0, 1000, 30.0, COPIED)

        connection.sendall(encode_peer_frame(get))
        head = decode_peer_frame(connection.recv(FRAME_BYTES, socket.MSG_WAITALL))
        came = connection.recv(1000, socket.MSG_WAITALL)
        connection.sendall(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
        connection.close()

        assert (head.verb, head.status) == (PeerVerb.HEAD, PullStatus.OK)
        assert set(came) == {7}
        await wait_until(lambda: a.blocks == 0)


async def test_two_reads_on_one_connection_end_for_themselves_while_the_ledger_is_busy(tmp_path):
    """The second begins before the ledger learns that the first is over."""
    async with two_nodes(tmp_path) as (a, _), await a.client() as producer:
        handles = [
            await producer.put(np.full(1000, 7, np.uint8), invocation="i", deadline=make_deadline()) for _ in range(2)
        ]
        reader = await connect_greeted(a)
        connection = reader._socket.dup()
        connection.settimeout(10.0)

        for number, handle in enumerate(handles):
            get = PeerFrame(PeerVerb.GET, number, handle.id, handle.generation, handle.key, 0, 1000, 30.0, COPIED)
            connection.sendall(encode_peer_frame(get))
            assert len(connection.recv(FRAME_BYTES + 1000, socket.MSG_WAITALL)) == FRAME_BYTES + 1000
            if number == 0:
                connection.sendall(encode_peer_frame(PeerFrame(PeerVerb.DONE, number, reads=1)))
        connection.close()

        (left,) = [lease for lease in await producer.ledger() if lease["id"] == handles[1].id]
        assert (a.blocks, left["held"], left["readers"]) == (1, 1, 1)
        reader.abort()
        await wait_until(lambda: a.counters["sent_bytes_total"] == 1000)
        producer.discard(handles[1])
        await wait_until(lambda: a.blocks == 0)
