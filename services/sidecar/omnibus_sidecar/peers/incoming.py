"""Mirrors: blocks of other nodes in this node's arena. Bookkeeping on the loop of the ledger, no sockets.

A mirror is allocated whole, and filled by ranges as readers request them, because a block may be read while its
producer still adds rows. Readers of the same block share the mirror: a range is never pulled twice. Each mirror has one
transfer at a time, which is the mirror's *writer*. An invocation that ends or expires condemns the mirror like any
block, and its memory is free only after the transfer has stopped writing there.

    requested -> waits for memory -> idle <-> moving -> whole | failed | condemned

Every read here ends exactly one expected read of the block's own node. A read of the whole block ends it with the last
byte, any other read when it is released.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from omnibus.errors import DeadlineExceeded, OmnibusError, StaleHandle
from omnibus.tensors.ledger import BlockLease, BlockOwner
from omnibus.tensors.peer_protocol import PeerFrame, PeerVerb, PullStatus
from omnibus.tensors.protocol import PullRequest, Retention, SidecarFrame, Verb, encode_tag, encode_text
from omnibus_sidecar.request_handler import Caller, Desk

#: Node, block and generation.
MirrorKey = tuple[str, int, int]


@dataclass(eq=False, slots=True)
class MirrorReader:
    """One client that waits for a range of a mirror."""

    caller: Caller
    number: int  # of its request
    request: PullRequest


@dataclass(frozen=True, slots=True)
class MirrorTransfer:
    """A range to pull from another node. When it has arrived, ``reads`` of its expected reads are over."""

    node: str
    get: PeerFrame
    offset: int  # of the range in this arena
    reads: int
    deadline: float  # wall-clock seconds


#: Called with the status of a transfer, or its error, after the last write; both are None if it was cancelled.
TransferDone = Callable[[PullStatus | None, OmnibusError | None], None]
#: Starts a transfer; returns a function that cancels it.
StartTransfer = Callable[[MirrorTransfer, TransferDone], Callable[[], None]]


class ByteRanges:
    """A set of bytes as sorted ranges that do not touch."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        merged_ranges = [(start, stop)] if start < stop else []
        for low, high in self._ranges:
            if merged_ranges and low <= merged_ranges[0][1] and high >= merged_ranges[0][0]:
                merged_ranges[0] = (min(low, merged_ranges[0][0]), max(high, merged_ranges[0][1]))
            else:
                merged_ranges.append((low, high))
        self._ranges = sorted(merged_ranges)

    def first_gap(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the first gap in the set between ``start`` and ``stop``."""
        for low, high in self._ranges:
            if low > start:
                return (start, min(low, stop)) if start < stop else None
            start = max(start, high)
        return (start, stop) if start < stop else None


class Mirror:
    """One block of another node. It is also the caller of the allocation."""

    def __init__(
        self, key: MirrorKey, request: PullRequest, on_grant: "Callable[[Mirror, SidecarFrame], None]"
    ) -> None:
        self.key = key
        self.block_key = request.key
        self.nbytes = request.nbytes
        self.deadline = request.deadline
        self.invocation = request.invocation
        self.owner = BlockOwner(f"pull:{key[0]}")
        self.lease: BlockLease | None = None
        self.offset = 0
        self.landed = ByteRanges()
        self.readers: list[MirrorReader] = []
        self.open_reads: Counter[BlockOwner] = Counter()  # not yet reported to their node
        self.moving_reads: Counter[BlockOwner] = Counter()  # over when the transfer has arrived
        self.withdrawn_reads = 0  # of the transfer: over even if it fails
        self.cancel: Callable[[], None] | None = None  # of the transfer
        self.failed = False
        self._granted = on_grant

    @property
    def is_whole(self) -> bool:
        return self.landed.first_gap(0, self.nbytes) is None

    def reply(self, frame: SidecarFrame) -> None:
        """Receive the reply to the allocation."""
        self._granted(self, frame)

    def reply_bytes(self, frames: bytes) -> None:
        raise AssertionError("an allocation is answered by one frame")


class Mirrors:
    """All mirrors of one arena. ``limit`` is the most bytes of it that they may take."""

    def __init__(
        self, desk: Desk, limit: int, start: StartTransfer, send_over: Callable[[str, PeerFrame], None]
    ) -> None:
        self.pulled_bytes = 0
        self.granted = 0  # mirrors that got memory
        self.failures: Counter[str] = Counter()
        self.nbytes = 0
        self._desk = desk
        self._limit = limit
        self._start = start
        self._send_over = send_over
        self._mirrors: dict[MirrorKey, Mirror] = {}
        self._by_lease: dict[int, Mirror] = {}
        self._waiting: deque[Mirror] = deque()

    def __len__(self) -> int:
        return len(self._mirrors)

    def pull(self, caller: Caller, number: int, request: PullRequest) -> None:
        """Pull the bytes from ``start`` to ``stop`` of a block, then reply."""
        key = (request.node, request.block, request.generation)
        mirror = self._mirrors.get(key)
        if mirror is None:
            mirror = self._mirrors[key] = Mirror(key, request, self._on_granted)
            self._make_room(mirror, request)
        if request.begins:
            self._begin_read(mirror, caller.owner)
        mirror.readers.append(MirrorReader(caller, number, request))
        self._step(mirror)

    def decline(self, request: PullRequest) -> None:
        """Report a read that will not take place, or changed retention.

        Retention lets a block outlive its readers, or ends that.
        """
        if request.retention == Retention.NONE:
            self._report_reads((request.node, request.block, request.generation), request.key, 1)
            return
        verb = PeerVerb.RETAIN if request.retention == Retention.RETAIN else PeerVerb.DROP
        self._send_over(request.node, PeerFrame(verb, 0, request.block, request.generation, request.key))

    def on_release(self, owner: BlockOwner, block: int) -> None:
        """Report a released read, if the mirror's node still expects one."""
        mirror = self._by_lease.get(block)
        if mirror is not None and mirror.open_reads[owner] > 0:
            mirror.open_reads[owner] -= 1
            self._report_reads(mirror.key, mirror.block_key, 1)

    def withdraw_request(self, caller: Caller, number: int) -> None:
        """Withdraw the request of this number of ``caller``."""
        self._withdraw(lambda reader: reader.caller is caller and reader.number == number)

    def end_invocation(self, invocation: str) -> None:
        """Withdraw all requests for tensors of ``invocation``."""
        self._withdraw(lambda reader: reader.request.invocation == invocation)

    def _withdraw(self, goes: Callable[[MirrorReader], bool]) -> None:
        for mirror in list(self._mirrors.values()):
            leaving = [reader for reader in mirror.readers if goes(reader)]
            for reader in leaving:
                mirror.readers.remove(reader)
                if reader.request.begins:
                    self._end_read(mirror, reader.caller.owner)
                reader.caller.reply(SidecarFrame(Verb.ENDED, reader.number))
            if leaving and not mirror.readers:
                self._stop_transfer(mirror)
                if mirror in self._waiting:
                    self._waiting.remove(mirror)
                    self._forget(mirror)

    def remove_client(self, owner: BlockOwner) -> None:
        """End all requests and reads of ``owner``, whose process is gone."""
        self._withdraw(lambda reader: reader.caller.owner is owner)
        for mirror in list(self._mirrors.values()):
            reads = mirror.open_reads.pop(owner, 0)
            if reads:
                self._report_reads(mirror.key, mirror.block_key, reads)

    def on_condemned(self, lease: BlockLease) -> bool:
        """Stop a mirror whose block ended while it was open. Returns True if a transfer still writes to it."""
        mirror = self._by_lease.get(lease.id)
        if mirror is None:
            return False
        if mirror.cancel is None:
            self._desk.ledger.seal(mirror.owner, lease.id, lease.generation)
            return False
        self._stop_transfer(mirror)
        return True

    # Room

    def _make_room(self, mirror: Mirror, request: PullRequest) -> None:
        while self.nbytes and self.nbytes + mirror.nbytes > self._limit and self._reclaim_oldest():
            pass
        if self.nbytes and self.nbytes + mirror.nbytes > self._limit:
            self._waiting.append(mirror)
            self._desk.call_later(request.wait, self._refuse_waiting, mirror)
            return
        self._allocate(mirror, request.wait)

    def _allocate(self, mirror: Mirror, wait: float) -> None:
        self.nbytes += mirror.nbytes
        frame = SidecarFrame(
            Verb.ALLOCATE, nbytes=mirror.nbytes, deadline=mirror.deadline, wait=wait, text=encode_tag(mirror.invocation)
        )
        self._desk.serve_frame(mirror, frame)

    def _reclaim_oldest(self) -> bool:
        """Discard the oldest mirror without readers. Returns False if there is none."""
        for mirror in self._mirrors.values():
            lease = mirror.lease
            if lease is not None and not lease.holders and not mirror.readers and mirror.cancel is None:
                self._discard(mirror)
                return True
        return False

    def _refuse_waiting(self, mirror: Mirror) -> None:
        if mirror in self._waiting:
            self._waiting.remove(mirror)
            text = b"pulls from other nodes already use their share of the arena"
            self._fail_readers(mirror, SidecarFrame(Verb.FULL, text=text))
            self._forget(mirror)

    def _on_granted(self, mirror: Mirror, frame: SidecarFrame) -> None:
        if frame.verb != Verb.GRANTED:
            self.nbytes -= mirror.nbytes
            self._fail_readers(mirror, frame)
            self._forget(mirror)
            return
        mirror.lease = self._desk.ledger.find_readable(frame.block, frame.generation)
        mirror.offset = frame.offset
        self.granted += 1
        mirror.owner.on_freed = lambda lease: self._on_freed(mirror)
        self._by_lease[frame.block] = mirror
        # Later readers find it here until the invocation ends, or other blocks need the memory.
        self._desk.ledger.retain(frame.block, frame.generation)
        self._step(mirror)

    def _on_freed(self, mirror: Mirror) -> None:
        self.nbytes -= mirror.nbytes
        if mirror.lease is not None:
            self._by_lease.pop(mirror.lease.id, None)
        self._forget(mirror)
        while self._waiting and self.nbytes + self._waiting[0].nbytes <= self._limit:
            self._allocate(self._waiting.popleft(), 0.0)

    # Bytes

    def _step(self, mirror: Mirror) -> None:
        """Reply to readers whose range has arrived, then start the next transfer."""
        lease = mirror.lease
        if lease is None:
            return
        if lease.condemned:
            self._fail_readers(mirror, SidecarFrame(Verb.ENDED))
            return
        for reader in [each for each in mirror.readers if self._gap(mirror, each) is None]:
            mirror.readers.remove(reader)
            if reader.request.begins:
                self._desk.ledger.hold(reader.caller.owner, lease.id, lease.generation)
            began = int(reader.request.begins)
            reader.caller.reply(
                SidecarFrame(Verb.PULLED, reader.number, began, lease.id, lease.generation, 0, mirror.offset)
            )
        if mirror.readers and mirror.cancel is None:
            self._begin_transfer(mirror)

    def _gap(self, mirror: Mirror, reader: MirrorReader) -> tuple[int, int] | None:
        return mirror.landed.first_gap(reader.request.start, reader.request.stop)

    def _begin_transfer(self, mirror: Mirror) -> None:
        start, stop = min(self._gap(mirror, reader) or (mirror.nbytes, 0) for reader in mirror.readers)
        for low, high in sorted((each.request.start, each.request.stop) for each in mirror.readers):
            if low <= stop:  # include ranges that other readers need next
                stop = max(stop, high)
        stop = (mirror.landed.first_gap(start, stop) or (start, stop))[1]
        node, block, generation = mirror.key
        whole = start == 0 and stop == mirror.nbytes
        reads = sum(mirror.open_reads.values()) if whole else 0
        deadline = max(reader.request.deadline for reader in mirror.readers)
        get = PeerFrame(
            PeerVerb.GET, 0, block, generation, mirror.block_key, start, stop - start, deadline - time.time()
        )
        if whole:
            mirror.moving_reads, mirror.open_reads = mirror.open_reads, Counter()
        transfer = MirrorTransfer(node, get, mirror.offset + start, reads, deadline)
        mirror.cancel = self._start(
            transfer, lambda status, error: self._on_transferred(mirror, transfer, status, error)
        )

    def _on_transferred(
        self, mirror: Mirror, transfer: MirrorTransfer, status: PullStatus | None, error: OmnibusError | None
    ) -> None:
        """Process the end of a transfer; nothing is written any more.

        The range has arrived, or ``error`` has the reason. Both arguments are None after ``cancel``.
        """
        mirror.cancel = None
        lease = mirror.lease
        if lease is None:
            raise AssertionError("a mirror without memory cannot be filled")
        self._settle_reads(mirror, arrived=status == PullStatus.OK)
        if status == PullStatus.OK:
            start = transfer.get.offset
            self.pulled_bytes += transfer.get.nbytes
            mirror.landed.add(start, start + transfer.get.nbytes)
            if mirror.is_whole or lease.condemned:
                self._desk.ledger.seal(mirror.owner, lease.id, lease.generation)
            self._step(mirror)
        elif lease.condemned:
            self._desk.ledger.seal(mirror.owner, lease.id, lease.generation)
            self._fail_readers(mirror, SidecarFrame(Verb.ENDED))
        elif status is None and error is None:
            self._step(mirror)  # there may be new readers
        else:
            self._fail_transfer(mirror, status, error)
        self._desk.admit_waiters()

    def _fail_transfer(self, mirror: Mirror, status: PullStatus | None, error: OmnibusError | None) -> None:
        node, block, _ = mirror.key
        if status == PullStatus.LATE:
            error = DeadlineExceeded(f"the deadline passed before tensor {block} of node {node!r} arrived")
        elif error is None:
            error = StaleHandle(f"tensor {block} of node {node!r} was freed: run its producer again")
        self.failures[error.code] += 1
        text = msgspec.json.encode(error.to_problem())
        self._answer_all(mirror, lambda reader: reader.caller.reply_bytes(encode_text(reader.number, text)))
        self._discard(mirror)

    def _stop_transfer(self, mirror: Mirror) -> None:
        if mirror.cancel is not None:
            mirror.cancel()

    def _fail_readers(self, mirror: Mirror, frame: SidecarFrame) -> None:
        self._answer_all(mirror, lambda reader: reader.caller.reply(frame._replace(request=reader.number)))

    def _answer_all(self, mirror: Mirror, answer: Callable[[MirrorReader], None]) -> None:
        """Reply to all readers. The node of the block, if it lives, expects their reads again."""
        readers, mirror.readers = mirror.readers, []
        mirror.open_reads.clear()
        for reader in readers:
            answer(reader)

    def _discard(self, mirror: Mirror) -> None:
        lease = mirror.lease
        if lease is not None:
            self._desk.ledger.discard(mirror.owner, lease.id, lease.generation)
        self._forget(mirror)

    def _forget(self, mirror: Mirror) -> None:
        if self._mirrors.get(mirror.key) is mirror:
            del self._mirrors[mirror.key]

    # Reads that the other node expects

    def _begin_read(self, mirror: Mirror, owner: BlockOwner) -> None:
        if mirror.is_whole and mirror.lease is not None:
            self._report_reads(mirror.key, mirror.block_key, 1)
        else:
            mirror.open_reads[owner] += 1

    def _end_read(self, mirror: Mirror, owner: BlockOwner) -> None:
        if mirror.open_reads[owner] > 0:
            mirror.open_reads[owner] -= 1
            self._report_reads(mirror.key, mirror.block_key, 1)
        elif mirror.moving_reads[owner] > 0:  # the transfer may report it to its node
            mirror.moving_reads[owner] -= 1
            mirror.withdrawn_reads += 1

    def _settle_reads(self, mirror: Mirror, arrived: bool) -> None:
        """Settle the reads of a transfer that is over: they are over too if it has arrived."""
        moving, mirror.moving_reads = mirror.moving_reads, Counter()
        withdrawn, mirror.withdrawn_reads = mirror.withdrawn_reads, 0
        if not arrived:
            mirror.open_reads.update(moving)
            if withdrawn:
                self._report_reads(mirror.key, mirror.block_key, withdrawn)

    def _report_reads(self, key: MirrorKey, block_key: int, count: int) -> None:
        node, block, generation = key
        self._send_over(node, PeerFrame(PeerVerb.OVER, 0, block, generation, block_key, reads=count))
