"""Reading messages cut at any byte; input that is not for our handlers goes to nats-py."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser

from omnibus.bus import Delivery
from omnibus.bus.nats.connection import MessageReader

OURS, FAILING = 1, 2
MESSAGES = [Delivery("a.b", b"hello"), Delivery("a.c", b"MSG a 1 1\r\nx\r\n", "an.swer"), Delivery("x", b"")]
STREAM = b"MSG a.b 1 5\r\nhello\r\nMSG a.c 1 an.swer 14\r\nMSG a 1 1\r\nx\r\n\r\nMSG x 1 0\r\n\r\n"


class BufferedStream:
    """Stub of the stream that nats-py reads; it buffers the unread bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed_data(self, data: bytes) -> None:
        self._buffer += data

    def take_bytes(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


class ReaderWire:
    def __init__(self) -> None:
        self.stream, self.parser = BufferedStream(), Parser()
        self.taken: list[Delivery] = []
        self.stats = {"in_msgs": 0, "in_bytes": 0}
        handlers = {OURS: self.taken.append, FAILING: lambda _: 1 / 0}
        reader: asyncio.StreamReader = self.stream  # type: ignore[assignment]
        self.feed = MessageReader(reader, self.parser, handlers, self.stats).feed_data


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_messages_are_the_same_wherever_their_bytes_are_cut(cuts: list[int]):
    wire = ReaderWire()

    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(STREAM)], strict=True):
        wire.feed(STREAM[begin:end])

    assert wire.taken == MESSAGES
    assert wire.stream.take_bytes() == b""
    assert wire.stats == {"in_msgs": 3, "in_bytes": 19}


@pytest.mark.parametrize(
    "other",
    [
        b"PING\r\n",
        b"+OK\r\n",
        b"-ERR 'x'\r\n",
        b"HMSG a 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        b"MSG a 3 1\r\nx\r\n",
        b"M\r\n",
        b"NO",
        b"MSG a\r\n",
        b"MSG a 1 x\r\n",
    ],
    ids=["ping", "ok", "error", "headers", "another subscription", "cut short", "unknown", "too few words", "no size"],
)
def test_what_is_no_message_of_ours_is_nats_pys_with_all_that_follows(other: bytes):
    wire = ReaderWire()

    wire.feed(STREAM + other + STREAM)
    wire.feed(STREAM)

    assert wire.taken == MESSAGES
    assert wire.stream.take_bytes() == other + STREAM + STREAM
    wire.feed(STREAM)
    assert wire.taken == [*MESSAGES, *MESSAGES]


def test_what_nats_py_is_in_the_middle_of_is_its_own_to_the_end():
    wire = ReaderWire()
    wire.parser.state = AWAITING_MSG_PAYLOAD

    wire.feed(STREAM)

    assert (wire.taken, wire.stream.take_bytes()) == ([], STREAM)
    wire.parser.state, wire.parser.buf = AWAITING_CONTROL_LINE, bytearray(b"PI")
    wire.feed(b"NG\r\n")
    assert (wire.taken, wire.stream.take_bytes()) == ([], b"NG\r\n")


def test_a_line_without_end_is_nats_pys():
    wire = ReaderWire()

    wire.feed(b"MSG " + b"a" * 5000)

    assert wire.stream.take_bytes() == b"MSG " + b"a" * 5000


def test_a_handler_that_fails_costs_nobody_else_a_message(caplog: pytest.LogCaptureFixture):
    wire = ReaderWire()

    wire.feed(b"MSG a 2 1\r\nx\r\n" + STREAM)

    assert wire.taken == MESSAGES
    assert "handler of a failed" in caplog.messages
