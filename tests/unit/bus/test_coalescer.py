"""The outbox: one frame per receiver and loop turn, order preserved, and lazy messages that wait for others."""

import asyncio

import pytest
import uvloop

from omnibus.bus import Delivery, coalescer
from omnibus.bus.coalescer import Outbox
from omnibus.bus.messages import Chunk, decode_replies, encode
from omnibus.errors import ProtocolError
from omnibus.settings import BusSettings
from tests.memory_bus import MemoryBus


def make_chunk(seq: int, text: str = "x") -> bytes:
    return encode(Chunk("i", 0, "text", seq, data={"text": text}))


class OutboxWire:
    """A bus, its outbox, and the numbers in received frames, by subject."""

    def __init__(self, limit: int = 1000) -> None:
        self.bus = MemoryBus(BusSettings(max_payload=limit))
        self.outbox = Outbox(self.bus, limit)
        self.frames: list[tuple[str, list[int]]] = []
        self.arrived = asyncio.Event()

    def record_frame(self, delivery: Delivery) -> None:
        numbers = [message.seq for message in decode_replies(delivery.data) if isinstance(message, Chunk)]
        self.frames.append((delivery.subject, numbers))
        self.arrived.set()

    async def wait_frame(self) -> None:
        self.arrived.clear()
        await asyncio.wait_for(self.arrived.wait(), 5)


@pytest.fixture
async def wire() -> OutboxWire:
    outbox_wire = OutboxWire()
    await outbox_wire.bus.subscribe("to.>", outbox_wire.record_frame)
    return outbox_wire


async def test_what_is_ready_in_one_turn_is_one_frame_per_subject(wire: OutboxWire):
    for seq in range(3):
        wire.outbox.send("to.a", make_chunk(seq))
    wire.outbox.send("to.b", make_chunk(7))
    assert wire.frames == []

    await wire.wait_frame()

    assert wire.frames == [("to.a", [0, 1, 2]), ("to.b", [7])]


async def test_the_next_turn_makes_the_next_frame(wire: OutboxWire):
    wire.outbox.send("to.a", make_chunk(0))
    await wire.wait_frame()
    wire.outbox.send("to.a", make_chunk(1))
    await wire.wait_frame()

    assert wire.frames == [("to.a", [0]), ("to.a", [1])]


async def test_a_lazy_message_leaves_with_the_next_urgent_one_for_its_receiver_and_wakes_no_other(wire: OutboxWire):
    wire.outbox.send("to.a", make_chunk(0), lazy=True)
    wire.outbox.send("to.b", make_chunk(5), lazy=True)
    wire.outbox.send("to.a", make_chunk(1))
    wire.outbox.send("to.a", make_chunk(2), lazy=True)

    await wire.wait_frame()
    soon = list(wire.frames)
    await wire.wait_frame()

    assert soon == [("to.a", [0, 1, 2])]
    assert wire.frames == [*soon, ("to.b", [5])]


async def test_a_lazy_message_without_company_leaves_after_a_moment(wire: OutboxWire):
    began = asyncio.get_running_loop().time()
    wire.outbox.send("to.a", make_chunk(0), lazy=True)
    wire.outbox.send("to.a", make_chunk(1), lazy=True)

    await wire.wait_frame()

    assert wire.frames == [("to.a", [0, 1])]
    assert asyncio.get_running_loop().time() - began >= coalescer.LAZY_FLUSH_SECONDS * 0.9


async def test_flushing_sends_everything_at_once_and_nothing_twice(wire: OutboxWire):
    wire.outbox.send("to.a", make_chunk(0), lazy=True)
    wire.outbox.flush()
    await wire.wait_frame()
    wire.outbox.send("to.a", make_chunk(1))
    wire.outbox.flush()
    await asyncio.sleep(coalescer.LAZY_FLUSH_SECONDS * 3)

    assert wire.frames == [("to.a", [0]), ("to.a", [1])]


async def test_more_than_a_frame_holds_becomes_several_in_order():
    wire = OutboxWire(limit=200)
    await wire.bus.subscribe("to.>", wire.record_frame)
    for seq in range(10):
        wire.outbox.send("to.a", make_chunk(seq))

    await wire.wait_frame()
    await asyncio.sleep(0)

    assert len(wire.frames) > 2
    assert [seq for _, numbers in wire.frames for seq in numbers] == list(range(10))


async def test_a_message_over_the_limit_hits_its_sender_and_nobody_else(wire: OutboxWire):
    wire.outbox.send("to.a", make_chunk(0))
    with pytest.raises(ProtocolError, match="over the bus limit"):
        wire.outbox.send("to.a", make_chunk(1, "x" * 2000))
    wire.outbox.send("to.a", make_chunk(2))

    await wire.wait_frame()

    assert wire.frames == [("to.a", [0, 2])]


class Growing:
    """A piece of a stream that grows until it is sent."""

    def __init__(self, wire: OutboxWire) -> None:
        self._wire = wire
        self._numbers: list[int] = []

    def add(self, number: int) -> None:
        self._numbers.append(number)
        if len(self._numbers) == 1:
            self._wire.outbox.hold(self)
        else:
            self._wire.outbox.note_growth()

    def flush_held(self) -> None:
        numbers, self._numbers = self._numbers, []
        if numbers:
            self._wire.outbox.send("to.a", make_chunk(numbers[-1]))


class OutboxClock:
    """The outbox's clock; the event loop's timers use another."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> OutboxClock:
    outbox_clock = OutboxClock()
    monkeypatch.setattr(coalescer, "monotonic", outbox_clock)
    return outbox_clock


async def run_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_held_piece_leaves_by_the_end_of_the_turn_while_nothing_else_does(wire: OutboxWire):
    piece = Growing(wire)
    piece.add(0)
    piece.add(1)
    await wire.wait_frame()

    assert wire.frames == [("to.a", [1])]


async def test_pieces_that_come_slowly_leave_one_by_one(wire: OutboxWire, clock: OutboxClock):
    pieces = [Growing(wire), Growing(wire)]
    for number in range(4):
        for each, piece in enumerate(pieces):
            piece.add(10 * each + number)
        await run_turns()
        clock.now += 0.6 * coalescer.PIECE_FLUSH_SECONDS

    assert wire.frames == [("to.a", [number, 10 + number]) for number in range(4)]


async def test_pieces_that_come_fast_leave_with_the_last_one_that_is_soon_enough(
    wire: OutboxWire, clock: OutboxClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 3600.0)  # no timer is involved
    piece = Growing(wire)
    for number in range(9):
        piece.add(number)
        await run_turns()
        clock.now += 1000.0

    assert wire.frames == [("to.a", [0]), ("to.a", [3]), ("to.a", [6])]


async def test_a_piece_leaves_by_itself_when_nothing_follows(wire: OutboxWire, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 0.3)
    piece = Growing(wire)
    for number in range(3):
        piece.add(number)
        await run_turns()
    assert wire.frames == [("to.a", [0])]

    await wire.wait_frame()

    assert wire.frames == [("to.a", [0]), ("to.a", [2])]


async def test_a_message_that_cannot_wait_leaves_without_held_pieces(wire: OutboxWire, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 3600.0)
    piece = Growing(wire)
    piece.add(0)
    await wire.wait_frame()
    piece.add(1)
    wire.outbox.send("to.b", make_chunk(9))
    await wire.wait_frame()

    assert wire.frames == [("to.a", [0]), ("to.b", [9])]

    wire.outbox.flush()
    await run_turns()

    assert wire.frames == [("to.a", [0]), ("to.b", [9]), ("to.a", [1])]


def test_pieces_are_held_on_uvloop_too_whose_timers_may_be_none():
    async def hold_for_less_than_a_millisecond() -> list[tuple[str, list[int]]]:
        wire = OutboxWire()
        await wire.bus.subscribe("to.>", wire.record_frame)
        wire.outbox._grown_at = coalescer.monotonic()
        wire.outbox._released_at = coalescer.monotonic() + 0.0002 - coalescer.PIECE_FLUSH_SECONDS
        pieces = [Growing(wire), Growing(wire)]
        for number, piece in enumerate(pieces):
            piece.add(number)
        await wire.wait_frame()
        return wire.frames

    assert uvloop.run(hold_for_less_than_a_millisecond()) == [("to.a", [0, 1])]
