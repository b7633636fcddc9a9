"""Bytes sent to another node are from the right block. Its memory may be reused meanwhile."""

import asyncio
import threading

import numpy as np
import pytest

from omnibus.tensors.peer_protocol import COPIED, PeerFrame, PeerVerb, PullStatus, encode_peer_frame
from omnibus_sidecar.peers.plain_stream import PlainStream
from omnibus_sidecar.peers.stream import read_frame, read_text
from tests.unit.sidecar.node import make_deadline, wait_until
from tests.unit.sidecar.peers.pair import two_nodes
from tests.unit.sidecar.peers.raw import connect_greeted, read_rest, request_block

OLD, NEW = 7, 9
SIZE = 24 << 20


async def test_a_reader_that_stops_in_the_middle_is_cut_off_before_others_get_the_memory(tmp_path):
    async with two_nodes(tmp_path, 1 << 25, stall_seconds=30.0) as (a, _), await a.client() as producer:
        handle = await producer.put(np.full(SIZE, OLD, np.uint8), invocation="i", deadline=make_deadline())
        reader = await connect_greeted(a)
        assert (await request_block(reader, handle)).status == PullStatus.OK
        await asyncio.sleep(0.2)  # the sockets are full now

        producer.end_invocation("i")
        # The arena has room for it only in place of the first one.
        block = await producer.allocate(SIZE, invocation="j", deadline=make_deadline(), wait=10.0)
        block.array[:] = NEW
        came = np.frombuffer(await read_rest(reader), np.uint8)

        assert len(came) < SIZE
        assert set(came) == {OLD}
        assert block.handle.offset == handle.offset
        block.discard()
        await wait_until(lambda: a.blocks == 0)


@pytest.mark.parametrize("copy_flag", [COPIED, 0])
async def test_memory_that_is_replaced_before_its_bytes_were_read_does_not_reach_the_reader(tmp_path, copy_flag):
    """All bytes are in the socket when their memory is reused."""
    async with two_nodes(tmp_path, 1 << 18, stall_seconds=30.0) as (a, _), await a.client() as producer:
        size = 160 << 10
        handle = await producer.put(np.full(size, OLD, np.uint8), invocation="i", deadline=make_deadline())
        reader = await connect_greeted(a, receive_bytes=1 << 22)
        head = await request_block(reader, handle, reads=copy_flag)
        await asyncio.sleep(0.2)

        producer.end_invocation("i")
        block = await producer.allocate(size, invocation="j", deadline=make_deadline(), wait=10.0)
        block.array[:] = NEW

        assert (head.status, head.reads) == (PullStatus.OK, copy_flag)
        assert block.handle.offset == handle.offset
        assert set(await read_text(reader, size)) == {OLD}
        await reader.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
        if not copy_flag:
            assert (await read_frame(reader)).verb == PeerVerb.KEPT
        assert (
            await request_block(reader, block.seal(), reads=copy_flag)
        ).status == PullStatus.OK  # the connection is as good as new
        assert set(await read_text(reader, size)) == {NEW}


async def test_a_sender_that_lets_go_before_it_has_sent_would_send_bytes_of_somebody_else(tmp_path, monkeypatch):
    """The same scenario with the bug that the previous test must detect."""
    send_range = PlainStream.send_range

    async def let_go_and_send(self, offset, nbytes, progress):
        a.plane._thread.call_main(release_all)
        replace_event.wait(5.0)
        await send_range(self, offset, nbytes, progress)

    def release_all() -> None:
        reads = a.plane.reads
        for owner in list(reads._sending):
            reads.abandon_read(owner)
        release_event.set()

    release_event, replace_event = threading.Event(), threading.Event()
    monkeypatch.setattr(PlainStream, "send_range", let_go_and_send)
    async with two_nodes(tmp_path, 1 << 18, stall_seconds=30.0) as (a, _), await a.client() as producer:
        size = 160 << 10
        handle = await producer.put(np.full(size, OLD, np.uint8), invocation="i", deadline=make_deadline())
        reader = await connect_greeted(a, receive_bytes=1 << 22)
        asking = asyncio.create_task(request_block(reader, handle, reads=COPIED))
        await wait_until(release_event.is_set)

        producer.end_invocation("i")
        block = await producer.allocate(size, invocation="j", deadline=make_deadline(), wait=10.0)
        block.array[:] = NEW
        replace_event.set()

        assert (await asking).status == PullStatus.OK
        assert set(await read_text(reader, size)) == {NEW}
        block.discard()


async def test_copies_are_not_confirmed_and_the_next_request_is_answered_at_once(tmp_path):
    async with two_nodes(tmp_path) as (a, _), await a.client() as producer:
        reader = await connect_greeted(a)
        for value in (OLD, NEW):
            handle = await producer.put(np.full(1000, value, np.uint8), invocation="i", deadline=make_deadline())

            head = await request_block(reader, handle, reads=COPIED)

            assert (head.verb, head.reads) == (PeerVerb.HEAD, COPIED)
            assert set(await read_text(reader, 1000)) == {value}
            await reader.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
        await wait_until(lambda: a.blocks == 0)


async def test_a_reader_of_an_earlier_build_is_sent_a_confirmation(tmp_path):
    async with two_nodes(tmp_path) as (a, _), await a.client() as producer:
        handle = await producer.put(np.full(1000, OLD, np.uint8), invocation="i", deadline=make_deadline())
        reader = await connect_greeted(a)
        await request_block(reader, handle)
        await read_text(reader, 1000)
        await reader.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
        assert (await read_frame(reader)).verb == PeerVerb.KEPT
        await wait_until(lambda: a.blocks == 0)


async def test_a_reader_that_says_nothing_is_cut_off_and_the_read_is_expected_again(tmp_path):
    async with (
        two_nodes(tmp_path, 1 << 25, stall_seconds=0.3) as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        handle = await producer.put(np.full(SIZE, OLD, np.uint8), invocation="i", deadline=make_deadline())
        silent = await connect_greeted(a)
        await request_block(silent, handle)

        await rest_until_closed(silent)

        got = await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())
        assert int(got.sum()) == OLD * SIZE
        await wait_until(lambda: a.blocks == 0)


async def rest_until_closed(stream) -> None:
    """Read nothing until the peer gives up, then the remaining bytes."""
    await asyncio.sleep(1.0)
    await asyncio.wait_for(read_rest(stream), 10.0)
