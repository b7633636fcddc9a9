"""Writes of one turn are sent together, in order, without delay."""

import asyncio
import socket
from contextlib import nullcontext

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus_gateway.http.connection import MAX_HELD_BYTES, TurnTransport


class Writes(asyncio.Transport):
    """A transport that records each write to the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.made.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.fixture
def writes() -> Writes:
    return Writes()


def make_transport(writes: Writes) -> TurnTransport:
    return TurnTransport(writes, asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write(writes: Writes):
    transport = make_transport(writes)

    transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.write(b"{}")
    assert writes.made == []
    await asyncio.sleep(0)

    assert writes.made == [b"HTTP/1.1 200 OK\r\n\r\n{}"]


async def test_what_is_written_in_a_later_turn_is_a_write_of_its_own(writes: Writes):
    transport = make_transport(writes)

    for event in (b"one", b"two"):
        transport.write(event)
        await asyncio.sleep(0)

    assert writes.made == [b"one", b"two"]


async def test_much_leaves_at_once_so_that_a_slow_reader_is_noticed(writes: Writes):
    transport = make_transport(writes)

    transport.write(b"head")
    transport.write(b"x" * MAX_HELD_BYTES)
    before = b"".join(writes.made)
    transport.write(b"tail")
    await asyncio.sleep(0)

    assert before == b"head" + b"x" * MAX_HELD_BYTES
    assert b"".join(writes.made) == before + b"tail"


async def test_what_is_all_of_its_turn_leaves_at_once_behind_what_waits(writes: Writes):
    transport = make_transport(writes)

    transport.write_now(b"one")
    transport.write(b"two ")
    transport.write_now(b"three")
    at_once = list(writes.made)
    writes.closed = True
    transport.write_now(b"late")
    await asyncio.sleep(0)

    assert at_once == [b"one", b"two three"]
    assert writes.made == at_once


async def test_a_connection_is_closed_behind_what_was_written(writes: Writes):
    transport = make_transport(writes)

    transport.write(b"last")
    transport.close()
    await asyncio.sleep(0)

    assert (writes.made, writes.closed) == ([b"last"], True)


async def test_nothing_is_written_to_a_connection_that_is_gone(writes: Writes):
    transport = make_transport(writes)

    transport.write(b"late")
    writes.closed = True
    await asyncio.sleep(0)

    assert writes.made == []


# On real sockets, in both event loops

Operation = tuple[str, bytes]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
#: Pieces below and above the buffer limit, and other events of a connection.
PIECES = st.binary(max_size=40) | st.integers(1, 255).map(lambda byte: bytes([byte]) * (MAX_HELD_BYTES + byte))
OPERATIONS = st.tuples(st.just("write"), PIECES) | st.sampled_from(
    [("turn", b""), ("pause_reading", b""), ("resume_reading", b"")]
)
ENDS = st.sampled_from(["write_eof", "close", "write_eof close", "turn write_eof turn close", "write_eof write"])


class Idle(asyncio.Protocol):
    """A protocol that ignores its input."""


async def run_operations(operations: list[Operation], end: str) -> bytes:
    """Return the bytes that the peer reads after ``operations`` and an end.

    A write after the end must be refused at once.
    """
    own_socket, peer_socket = socket.socketpair()
    peer_socket.setblocking(False)
    raw, _ = await asyncio.get_running_loop().connect_accepted_socket(Idle, own_socket)
    transport = TurnTransport(raw, asyncio.get_running_loop())
    reader, writer = await asyncio.open_connection(sock=peer_socket)
    for name, data in [*operations, *((step, b"late") for step in end.split())]:
        if name == "turn":
            await asyncio.sleep(0)
        elif name == "write":
            with pytest.raises(RuntimeError, match="write_eof") if data == b"late" else nullcontext():
                transport.write(data)
        else:
            getattr(transport, name)()
    read = await asyncio.wait_for(reader.read(), 10)
    transport.close()
    writer.close()
    return read


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=60, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=8), end=ENDS)
def test_whatever_happens_between_writes_all_bytes_leave_in_order(loop: str, operations: list[Operation], end: str):
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        read = runner.run(run_operations(operations, end))

    assert read == b"".join(data for name, data in operations if name == "write")


async def test_what_is_held_counts_as_not_sent_and_is_dropped_with_an_aborted_connection(writes: Writes):
    transport = make_transport(writes)

    transport.write(b"held")
    size = transport.get_write_buffer_size()
    transport.abort()
    await asyncio.sleep(0)

    assert (size, writes.made, writes.closed) == (4, [], True)
