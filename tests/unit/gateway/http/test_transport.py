"""Writes of one turn leave together, in their order, and never wait for a later turn."""

import asyncio

import pytest

from services.gateway.http.transport import MAX_HELD_BYTES, TurnTransport


class Writes(asyncio.Transport):
    """What reaches the connection: one entry for each write."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.made.append(bytes(data))

    def write_eof(self) -> None:
        self.made.append(b"EOF")

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writes() -> Writes:
    return Writes()


def joined(writes: Writes) -> TurnTransport:
    return TurnTransport(writes, asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write(writes: Writes):
    transport = joined(writes)

    transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.write(b"{}")
    assert writes.made == []
    await asyncio.sleep(0)

    assert writes.made == [b"HTTP/1.1 200 OK\r\n\r\n{}"]


async def test_what_is_written_in_a_later_turn_is_a_write_of_its_own(writes: Writes):
    transport = joined(writes)

    for event in (b"one", b"two"):
        transport.write(event)
        await asyncio.sleep(0)

    assert writes.made == [b"one", b"two"]


async def test_much_leaves_at_once_so_that_a_slow_reader_is_noticed(writes: Writes):
    transport = joined(writes)

    transport.write(b"head")
    transport.write(b"x" * MAX_HELD_BYTES)
    before = b"".join(writes.made)
    transport.write(b"tail")
    await asyncio.sleep(0)

    assert before == b"head" + b"x" * MAX_HELD_BYTES
    assert b"".join(writes.made) == before + b"tail"


async def test_the_end_of_a_direction_comes_behind_what_was_written(writes: Writes):
    transport = joined(writes)

    transport.write(b"last")
    transport.write_eof()
    await asyncio.sleep(0)

    assert writes.made == [b"last", b"EOF"]


async def test_a_connection_is_closed_behind_what_was_written(writes: Writes):
    transport = joined(writes)

    transport.write(b"last")
    transport.close()
    await asyncio.sleep(0)

    assert (writes.made, writes.closed) == ([b"last"], True)


async def test_nothing_is_written_to_a_connection_that_is_gone(writes: Writes):
    transport = joined(writes)

    transport.write(b"late")
    writes.closed = True
    await asyncio.sleep(0)

    assert writes.made == []
