"""How often a reader of a large range is woken: rarely while bytes come fast, and in time where they come slowly."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from services.sidecar.peers.stream import WAKE_BYTES, PlainStream
from tests.unit.sidecar.peers.raw import NoArena

PIECE = 1 << 14
PIECES = 4 * WAKE_BYTES // PIECE


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

    def count() -> None:
        nonlocal wakeups
        wakeups += 1

    reading = asyncio.create_task(stream.read_into(memoryview(target), count))
    for number in range(PIECES):
        await asyncio.get_running_loop().sock_sendall(sender, bytes([number % 251]) * PIECE)
        await asyncio.sleep(0)  # whoever is to be woken is
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
