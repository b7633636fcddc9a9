"""Pins of transfers, which another thread takes: a pinned block is never freed, even under a race."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from omnibus.tensors.allocator import Allocator
from omnibus.tensors.arena import HEADER_BYTES, Arena
from omnibus.tensors.ledger import BlockLease, BlockOwner, Ledger

SIZE = 1 << 12
NBYTES = 100
PINS = 30
TRANSFER = "transfer"


class PinDesk:
    """A ledger over real memory with one producer and one reader."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.space = Allocator(SIZE)
        self.ledger = Ledger(self.space, arena, 1000, HEADER_BYTES, lambda lease: None)
        self.producer, self.reader = BlockOwner("producer"), BlockOwner("reader")

    def put_block(self, readers: int = 1) -> BlockLease:
        """Return a sealed block."""
        lease = self.ledger.grant(self.producer, b"i", NBYTES, readers, 9e9)
        assert lease is not None
        self.ledger.seal(self.producer, lease.id, lease.generation)
        return lease

    def pin_block(self) -> BlockLease:
        lease = self.put_block()
        assert self.ledger.pin(TRANSFER, lease)
        return lease

    def read_generation(self, lease: BlockLease) -> int:
        """Return the generation in memory."""
        return int.from_bytes(self.arena.bytes_at(lease.offset - 56, 8), "little")


@pytest.fixture
def desk(tmp_path) -> Iterator[PinDesk]:
    arena = Arena.create("arena", SIZE, str(tmp_path))
    yield PinDesk(arena)
    arena.close()


def release_reader(desk: PinDesk, lease: BlockLease) -> None:
    desk.ledger.release(desk.reader, lease.id, lease.generation)


def end_reader(desk: PinDesk, lease: BlockLease) -> None:
    desk.ledger.end_invocation(desk.reader, b"i")


def expire_and_force(desk: PinDesk, lease: BlockLease) -> None:
    desk.ledger.expire(lease)
    desk.ledger.force_free(lease)


@pytest.mark.parametrize("over", [release_reader, end_reader, expire_and_force])
def test_a_pinned_block_is_free_once_its_pin_is_gone(desk, over: Callable[[PinDesk, BlockLease], None]):
    lease = desk.pin_block()

    over(desk, lease)
    used_bytes = desk.space.used
    desk.ledger.unpin(TRANSFER, lease)

    assert used_bytes > 0
    assert (desk.space.used, len(desk.ledger)) == (0, 0)


def test_a_block_that_is_over_or_gone_cannot_be_pinned(desk):
    lease = desk.pin_block()
    end_reader(desk, lease)

    assert desk.ledger.find_readable(lease.id, lease.generation) is None
    assert not desk.ledger.pin("another", lease)
    desk.ledger.unpin(TRANSFER, lease)
    assert not desk.ledger.pin("another", lease)


def test_a_retained_block_that_is_sent_makes_no_room(desk):
    pinned_lease, idle = desk.put_block(), desk.put_block()
    for lease in (pinned_lease, idle):
        desk.ledger.retain(lease.id, lease.generation)
    desk.ledger.pin(TRANSFER, pinned_lease)

    assert desk.ledger.reclaim_oldest()
    assert not desk.ledger.reclaim_oldest()
    assert [lease["id"] for lease in desk.ledger.list_leases(9)] == [pinned_lease.id]
    desk.ledger.unpin(TRANSFER, pinned_lease)
    assert desk.ledger.reclaim_oldest()


class PinFirst:
    """A lock that a transfer takes before the thread that frees a block."""

    def __init__(self, ledger: Ledger, lease: BlockLease) -> None:
        self._ledger, self._lease, self._lock = ledger, lease, ledger._freeing

    def __enter__(self) -> None:
        self._ledger._freeing = self._lock
        assert self._ledger.pin(TRANSFER, self._lease) or self._lease.condemned
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_block_that_is_pinned_while_it_is_about_to_be_freed_is_not(desk):
    lease = desk.put_block()
    desk.ledger._freeing = PinFirst(desk.ledger, lease)

    release_reader(desk, lease)

    assert desk.read_generation(lease) == lease.generation
    desk.ledger.unpin(TRANSFER, lease)
    assert (desk.space.used, desk.read_generation(lease)) == (0, 0)


def test_two_threads_never_meet_in_memory_that_is_freed(desk):
    """One thread pins the newest block and reads its memory; the other one frees it at any moment."""
    latest: deque[BlockLease] = deque(maxlen=1)
    pin_queue: deque[tuple[object, BlockLease]] = deque()
    wrong: list[int] = []
    pins, stop_event = 0, Event()

    def pin_on() -> None:
        nonlocal pins
        while not stop_event.is_set():
            lease = latest[0] if latest else None
            if lease is not None and len(pin_queue) < 8 and desk.ledger.pin(pin := object(), lease):
                pins += 1
                time.sleep(0)  # let the other thread run
                if desk.read_generation(lease) != lease.generation:
                    wrong.append(lease.id)
                pin_queue.append((pin, lease))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = Thread(target=pin_on)
    thread.start()
    try:
        deadline = time.monotonic() + 30.0
        while pins < PINS and time.monotonic() < deadline:
            latest.append(lease := desk.put_block())
            time.sleep(0)
            release_reader(desk, lease)
            while pin_queue:
                desk.ledger.unpin(*pin_queue.popleft())
    finally:
        stop_event.set()
        thread.join()
        sys.setswitchinterval(interval)
    while pin_queue:
        desk.ledger.unpin(*pin_queue.popleft())

    assert pins >= PINS
    assert wrong == []
    assert (desk.space.used, len(desk.ledger)) == (0, 0)
