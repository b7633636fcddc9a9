"""``sendfile`` sends pages, not bytes: what is on its way must not become somebody else's."""

import asyncio
import threading
from contextlib import suppress

import numpy as np
import pytest

from omnibus.tensors.peer_protocol import PeerFrame, PeerVerb, PullStatus, encode_peer_frame
from services.sidecar.peers.stream import PlainStream, read_frame, read_text
from tests.unit.sidecar.node import soon, until
from tests.unit.sidecar.peers.pair import two_nodes
from tests.unit.sidecar.peers.raw import ask, greeted, rest

OLD, NEW = 7, 9
SIZE = 24 << 20


async def test_a_reader_that_stops_in_the_middle_is_cut_off_before_others_get_the_memory(tmp_path):
    async with two_nodes(tmp_path, 1 << 25, stall_seconds=30.0) as (a, _), await a.client() as producer:
        handle = await producer.put(np.full(SIZE, OLD, np.uint8), invocation="i", deadline=soon())
        reader = await greeted(a)
        assert (await ask(reader, handle)).status == PullStatus.OK
        await asyncio.sleep(0.2)  # the sockets are full now

        producer.end_invocation("i")
        # The arena has room for it only in the place of the first one.
        block = await producer.allocate(SIZE, invocation="j", deadline=soon(), wait=10.0)
        block.array[:] = NEW
        came = np.frombuffer(await rest(reader), np.uint8)

        assert len(came) < SIZE
        assert set(came) <= {OLD, NEW}  # over loopback its socket may hold the pages themselves
        assert block.handle.offset == handle.offset
        block.discard()
        await until(lambda: a.blocks == 0)


async def test_bytes_that_were_replaced_before_they_were_read_are_never_confirmed(tmp_path):
    """All of them are in the reader's socket when their memory is given to somebody else."""
    async with two_nodes(tmp_path, 1 << 18, stall_seconds=30.0) as (a, _), await a.client() as producer:
        size = 160 << 10
        handle = await producer.put(np.full(size, OLD, np.uint8), invocation="i", deadline=soon())
        reader = await greeted(a, receive_bytes=1 << 22)
        assert (await ask(reader, handle)).status == PullStatus.OK
        await asyncio.sleep(0.2)

        producer.end_invocation("i")
        block = await producer.allocate(size, invocation="j", deadline=soon(), wait=10.0)
        block.array[:] = NEW

        with suppress(OSError):
            await read_text(reader, size)
        with pytest.raises(OSError):
            await reader.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
            await read_frame(reader)  # no KEPT
        block.discard()


async def test_a_sender_that_lets_go_after_sendfile_would_confirm_bytes_of_somebody_else(tmp_path, monkeypatch):
    """The same with the mistake that the test before is to find."""
    send_range = PlainStream.send_range

    async def send_and_let_go(self, offset, nbytes, progress):
        await send_range(self, offset, nbytes, progress)
        a.plane._thread.call_main(release_all)
        released.wait(5.0)

    def release_all() -> None:
        reads = a.plane.reads
        for owner in list(reads._aborts):
            reads.abandon_read(owner)
        released.set()

    released = threading.Event()
    monkeypatch.setattr(PlainStream, "send_range", send_and_let_go)
    async with two_nodes(tmp_path, 1 << 18, stall_seconds=30.0) as (a, _), await a.client() as producer:
        size = 160 << 10
        handle = await producer.put(np.full(size, OLD, np.uint8), invocation="i", deadline=soon())
        reader = await greeted(a, receive_bytes=1 << 22)
        assert (await ask(reader, handle)).status == PullStatus.OK
        await until(released.is_set)

        producer.end_invocation("i")
        block = await producer.allocate(size, invocation="j", deadline=soon(), wait=10.0)
        block.array[:] = NEW
        await asyncio.sleep(0.2)

        came = np.frombuffer(await read_text(reader, size), np.uint8)
        await reader.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
        assert (await read_frame(reader)).verb == PeerVerb.KEPT
        assert NEW in came
        block.discard()


async def test_bytes_that_were_read_in_time_are_confirmed(tmp_path):
    async with two_nodes(tmp_path) as (a, _), await a.client() as producer:
        handle = await producer.put(np.full(1000, OLD, np.uint8), invocation="i", deadline=soon())
        reader = await greeted(a)
        await ask(reader, handle)
        await read_text(reader, 1000)
        producer.end_invocation("i")
        await producer.stats()  # it is over, and waits for the reader

        # What is on its way is cut off, whatever was read of it.
        with pytest.raises(OSError):
            await reader.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
            while True:
                await read_frame(reader)

        other = await producer.put(np.full(1000, NEW, np.uint8), invocation="j", deadline=soon())
        reader = await greeted(a)
        await ask(reader, other)
        await read_text(reader, 1000)
        await reader.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 1, reads=1)))
        assert (await read_frame(reader)).verb == PeerVerb.KEPT
        await until(lambda: a.blocks == 0)


async def test_a_reader_that_says_nothing_is_cut_off_and_the_read_is_expected_again(tmp_path):
    async with (
        two_nodes(tmp_path, 1 << 25, stall_seconds=0.3) as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        handle = await producer.put(np.full(SIZE, OLD, np.uint8), invocation="i", deadline=soon())
        silent = await greeted(a)
        await ask(silent, handle)

        await rest_until_closed(silent)

        got = await consumer.open_tensor(handle, invocation="i", deadline=soon())
        assert int(got.sum()) == OLD * SIZE
        await until(lambda: a.blocks == 0)


async def rest_until_closed(stream) -> None:
    """Read nothing until the other side has given up, then what it had sent."""
    await asyncio.sleep(1.0)
    await asyncio.wait_for(rest(stream), 10.0)
