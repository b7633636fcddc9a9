"""Wakeups of a reader of a large range: few for a fast sender, and timely for a slow one."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from omnibus_sidecar.peers.plain_stream import TURN_BYTES, WAKE_BYTES, PlainStream
from omnibus_sidecar.peers.stream import make_progress
from tests.unit.sidecar.peers.raw import NoArena

PIECE = 1 << 14
PIECES = 4 * WAKE_BYTES // PIECE
LARGE = 8 * TURN_BYTES


class BytesArena(NoArena):
    """The memory of a sending peer."""

    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(data)

    def bytes_at(self, offset: int, nbytes: int) -> memoryview:
        return self._data[offset : offset + nbytes]


@pytest.fixture
async def sender_and_stream() -> AsyncIterator[tuple[socket.socket, PlainStream]]:
    """A socket, and the stream at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    for each in (sender, receiver):
        each.setblocking(False)
    stream = PlainStream(receiver, NoArena())
    with sender:
        yield sender, stream
        stream.abort()


async def test_a_reader_is_not_woken_for_each_piece(sender_and_stream: tuple[socket.socket, PlainStream]):
    sender, stream = sender_and_stream
    target, wakeups = bytearray(PIECE * PIECES), 0

    def count_wakeup() -> None:
        nonlocal wakeups
        wakeups += 1

    reading = asyncio.create_task(stream.read_into(memoryview(target), count_wakeup))
    for number in range(PIECES):
        await asyncio.get_running_loop().sock_sendall(sender, bytes([number % 251]) * PIECE)
        await asyncio.sleep(0)  # let waiting readers run
    await reading

    assert target == b"".join(bytes([number % 251]) * PIECE for number in range(PIECES))
    assert wakeups <= PIECES / 8


async def test_bytes_that_come_slowly_count_before_there_are_many(sender_and_stream: tuple[socket.socket, PlainStream]):
    sender, stream = sender_and_stream
    progress = asyncio.Event()
    reading = asyncio.create_task(stream.read_into(memoryview(bytearray(2 * WAKE_BYTES)), progress.set))

    for _ in range(2):
        progress.clear()
        await asyncio.get_running_loop().sock_sendall(sender, b"x")
        async with asyncio.timeout(10):
            await progress.wait()
    reading.cancel()


async def test_a_frame_behind_a_large_range_is_read_at_once(sender_and_stream: tuple[socket.socket, PlainStream]):
    sender, stream = sender_and_stream
    large, small = bytearray(2 * WAKE_BYTES), bytearray(64)
    reading = asyncio.create_task(stream.read_into(memoryview(large), lambda: None))
    await asyncio.get_running_loop().sock_sendall(sender, bytes(len(large)))
    await reading

    following = asyncio.create_task(stream.read_into(memoryview(small), lambda: None))
    await asyncio.sleep(0)
    await asyncio.get_running_loop().sock_sendall(sender, b"y" * len(small))
    async with asyncio.timeout(10):
        await following

    assert small == b"y" * len(small)


async def test_a_sender_that_is_gone_is_noticed_whatever_is_missing(
    sender_and_stream: tuple[socket.socket, PlainStream],
):
    sender, stream = sender_and_stream
    reading = asyncio.create_task(stream.read_into(memoryview(bytearray(2 * WAKE_BYTES)), lambda: None))
    await asyncio.get_running_loop().sock_sendall(sender, b"x")

    sender.close()

    async with asyncio.timeout(10):
        with pytest.raises(ConnectionResetError):
            await reading


async def test_a_turn_of_the_loop_moves_one_slice_so_that_others_have_theirs():
    """Run both directions in this loop, and count its turns."""
    loop, turn = asyncio.get_running_loop(), 0
    target = bytearray(LARGE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
        for end in ends:
            end.setblocking(False)
        sender, reader = PlainStream(ends[0], BytesArena(bytearray(b"x" * LARGE))), PlainStream(ends[1], NoArena())

        def count_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count_turn)

        count_turn()
        sent_turns: list[int] = []
        received_turns: list[int] = []
        async with asyncio.timeout(30):
            await asyncio.gather(
                sender.send_range(0, LARGE, lambda: sent_turns.append(turn)),
                reader.read_into(memoryview(target), lambda: received_turns.append(turn)),
            )
        sender.abort()
        reader.abort()

    assert target == b"x" * LARGE
    for turns in (sent_turns, received_turns):
        assert len(turns) >= LARGE // TURN_BYTES
        assert len(set(turns)) == len(turns)


async def test_a_limit_moves_on_while_bytes_come_but_not_with_each_of_them(monkeypatch):
    deadlines: list[float] = []
    now = asyncio.get_running_loop().time()

    class Limit:
        reschedule = staticmethod(deadlines.append)

    progress = make_progress(Limit(), 2.0)
    for elapsed in (0.01, 0.1, 0.2, 0.21, 1.9):
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda passed=elapsed: now + passed)
        progress()
    monkeypatch.undo()

    assert [round(when - now, 2) for when in deadlines] == [2.2, 3.9]
