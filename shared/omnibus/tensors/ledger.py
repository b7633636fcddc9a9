"""Holders of the blocks of the arena, and the lifetime of each block. Pure bookkeeping: no clock, no sockets.

All of it belongs to one thread, but for ``find_readable`` and ``pin``.

The rule. A block is granted with one writer's lease and a number of expected readers.

- The producer's ``seal`` ends the writer's lease: the bytes are complete. Readers may look earlier.
- Each ``hold`` marks a reader at work, each ``release`` ends one expected read. A release without a
  hold declines the read. A holder that dies has released.
- The block is free when it is sealed, no expected read remains and nobody holds it.
- A transfer to another node has a *pin* on its block, which counts as a hold. Pins are taken by another thread, which
  does not wait for this one: a block is freed only behind a lock, and never while it has one.
- ``retain`` lets it live on from there, for readers that may begin again, until its invocation ends or
  ``reclaim_oldest`` takes it: an allocation that finds no room drops what is retained only, the oldest first.
- A spare is granted before there is a tensor for it: it belongs to no invocation, and ``use_spare`` makes it a block as
  all others. Its readers may be faster than the word of its producer: what they release until then is counted.

Early ends condemn a block: ``discard`` by its producer, ``end_invocation`` of its invocation, its deadline, or the
death of a producer that had not sealed. Its header is wiped at once, so it has no new readers. Its
memory is free as soon as no living client has it open, for a producer or reader that still works on a
cancelled request must not meet the bytes of the next one. Those clients let go with ``release``,
``discard`` or their own ``end_invocation``; after a grace period the block is taken from them by ``force_free``.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from threading import Lock
from typing import Protocol

from omnibus.tensors.allocator import Allocator
from omnibus.tensors.block_lease import NEVER_DUE, BlockLease, BlockOwner


class Headers(Protocol):
    """Operations of the ledger on the memory itself."""

    def write_header(self, offset: int, block: int, generation: int, nbytes: int) -> None: ...

    def clear_header(self, offset: int) -> None: ...

    def zero_bytes(self, offset: int, nbytes: int) -> None: ...


class Ledger:
    """All leases of one arena.

    ``boot`` makes generations differ from those of every earlier sidecar. ``header`` bytes are put
    before each block's data. ``linger`` is told of each condemned block that somebody still has open.
    ``freed`` counts freed blocks by reason; ``stale`` counts messages about blocks that were gone;
    ``condemned`` is how many blocks are over but still open somewhere. ``spares`` are granted ahead of need: they are
    leases of nothing, which neither ``granted`` nor ``freed`` counts.
    """

    def __init__(
        self, allocator: Allocator, headers: Headers, boot: int, header: int, linger: Callable[[BlockLease], None]
    ) -> None:
        self.freed: Counter[str] = Counter()
        self.stale = 0
        self.condemned = 0
        self.granted = 0
        self.spares: dict[int, BlockLease] = {}
        self.spare_bytes = 0  # headers included
        self.clear_on_free = False
        self._allocator = allocator
        self._headers = headers
        self._boot = boot
        self._last_id = 0
        self._header = header
        self._linger = linger
        self._leases: dict[int, BlockLease] = {}
        self._idle: dict[int, BlockLease] = {}  # nobody needs them now, and they are retained
        self.idle_bytes = 0
        self._tags: dict[bytes, dict[int, BlockLease]] = {}
        self._freeing = Lock()

    def __len__(self) -> int:
        return len(self._leases) - len(self.spares)

    def list_leases(self, limit: int) -> list[dict[str, object]]:
        """The oldest ``limit`` leases as JSON rows."""
        leases = (lease for lease in self._leases.values() if not lease.spare)
        return [lease.to_row() for lease in islice(leases, limit)]

    def grant(self, owner: BlockOwner, tag: bytes, nbytes: int, readers: int, deadline: float) -> BlockLease | None:
        """A new block of ``nbytes`` data bytes, or ``None`` when no hole is large enough."""
        lease = self._grant_block(owner, tag, nbytes)
        if lease is not None:
            self.granted += 1
            lease.readers = readers
            lease.deadline = deadline
            self._tags.setdefault(tag, {})[lease.id] = lease
        return lease

    def grant_spare(self, owner: BlockOwner, nbytes: int) -> BlockLease | None:
        """A block of ``nbytes`` data bytes for a later tensor, or ``None`` when no hole is large enough."""
        lease = self._grant_block(owner, b"", nbytes)
        if lease is not None:
            lease.spare = True
            self.spares[lease.id] = lease
            owner.spare_bytes += nbytes + self._header
            self.spare_bytes += nbytes + self._header
        return lease

    def use_spare(self, lease: BlockLease, tag: bytes, nbytes: int, readers: int, deadline: float) -> None:
        """The producer has a tensor of ``nbytes`` bytes, no more than there are, for its spare."""
        self._end_spare(lease)
        self._allocator.shrink(lease.offset - self._header, nbytes + self._header)
        self.granted += 1
        lease.tag, lease.nbytes, lease.deadline = tag, nbytes, deadline
        lease.readers = max(lease.readers + readers, 0)
        self._tags.setdefault(tag, {})[lease.id] = lease
        with self._freeing:
            self._leases[lease.id] = self._leases.pop(lease.id)  # the youngest

    def find_spare(self, owner: BlockOwner, block: int, generation: int) -> BlockLease | None:
        """The lease of a spare of ``owner``; ``None`` when it was taken from it."""
        lease = self._find_lease(block, generation)
        return lease if lease is not None and lease.spare and lease.owner is owner else None

    def return_spare(self, lease: BlockLease) -> None:
        """The producer needs its spare no more, or is dead."""
        self._stop_writing(lease.owner, lease)
        if lease.is_open:  # the word of its use is lost
            self._condemn_lease(lease, "orphaned")
        else:
            self._free_lease(lease, "")

    def seal(self, owner: BlockOwner, block: int, generation: int) -> None:
        """The producer has written everything."""
        lease = self._find_lease(block, generation)
        if lease is not None and owner.writing.pop(block, None) is not None:
            lease.writing = False
            self._free_if_unused(lease)

    def hold(self, owner: BlockOwner, block: int, generation: int) -> None:
        """``owner`` reads the block from now on."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            self._remove_idle(lease)
            owner.holding[block] = lease
            lease.holders[owner] = lease.holders.get(owner, 0) + 1

    def release(self, owner: BlockOwner, block: int, generation: int) -> None:
        """``owner`` has read the block, or will not read it."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            self._let_go(owner, lease, 1)
            lease.end_reads(1)
            self._free_if_unused(lease)

    def find_readable(self, block: int, generation: int) -> BlockLease | None:
        """The lease of a block that may be read by more; ``None`` when it is gone or over. For any thread."""
        with self._freeing:  # a spare that is used changes its place
            lease = self._leases.get(block)
        return None if lease is None or lease.generation != generation or lease.condemned else lease

    def pin(self, pin: object, lease: BlockLease) -> bool:
        """Keep a block from being freed until ``unpin``; false if it is gone or over. For any thread."""
        with self._freeing:
            if lease.condemned or self._leases.get(lease.id) is not lease:
                return False
            lease.pins.add(pin)
            return True

    def unpin(self, pin: object, lease: BlockLease) -> None:
        """The block is not sent any more; reads are as expected as before."""
        lease.pins.discard(pin)
        if self._leases.get(lease.id) is lease:
            self._free_if_unused(lease)

    def end_reads(self, block: int, generation: int, count: int) -> None:
        """``count`` expected reads are over; those who read hold nothing here."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            lease.end_reads(count)
            self._free_if_unused(lease)

    def discard(self, owner: BlockOwner, block: int, generation: int) -> None:
        """The producer takes the block back, sealed or not."""
        lease = self._find_lease(block, generation)
        if lease is not None and lease.owner is owner:
            if lease.spare:
                self.return_spare(lease)
                return
            self._stop_writing(owner, lease)
            self._condemn_lease(lease, "discarded")

    def extend(self, block: int, generation: int, deadline: float) -> BlockLease | None:
        """Set a new deadline; ``None`` when the block is gone or condemned."""
        lease = self._find_lease(block, generation)
        if lease is None or lease.condemned:
            return None
        lease.deadline = deadline
        return lease

    def retain(self, block: int, generation: int) -> None:
        """In the place of one read, let the block live until its invocation ends, if there is room for it."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            lease.retained = True
            lease.end_reads(1)
            self._free_if_unused(lease)

    def drop(self, block: int, generation: int) -> None:
        """The block need not outlive its readers any more."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            lease.retained = False
            self._free_if_unused(lease)

    def reclaim_oldest(self) -> bool:
        """Free the oldest block that is only retained; returns whether there was one."""
        while (lease := next((each for each in self._idle.values() if not each.pins), None)) is not None:
            if self._free_lease(lease, "reclaimed"):
                return True
        return False

    def end_invocation(self, owner: BlockOwner, tag: bytes) -> None:
        """The invocation is over and ``owner`` has stopped working on it."""
        for lease in tuple(self._tags.get(tag, {}).values()):
            self._stop_writing(owner, lease)
            self._let_go(owner, lease, lease.holders.get(owner, 0))
            self._condemn_lease(lease, "ended")

    def expire(self, lease: BlockLease) -> None:
        """The deadline of ``lease`` has passed."""
        self._condemn_lease(lease, "expired")

    def force_free(self, lease: BlockLease) -> None:
        """Free a condemned block although a client still has it open; one with pins is free once they are gone."""
        self._stop_writing(lease.owner, lease)
        for owner in tuple(lease.holders):
            self._let_go(owner, lease, lease.holders[owner])
        self._free_lease(lease, "forced")

    def remove_owner(self, owner: BlockOwner) -> None:
        """``owner`` is dead: what it was writing is lost, what it was reading is released."""
        for lease in tuple(owner.writing.values()):
            if lease.spare:
                self.return_spare(lease)
                continue
            self._stop_writing(owner, lease)
            self._condemn_lease(lease, "orphaned")
        for lease in tuple(owner.holding.values()):
            count = lease.holders[owner]
            self._let_go(owner, lease, count)
            lease.end_reads(count)
            self._free_if_unused(lease)

    def end_used(self, lease: BlockLease) -> None:
        """The invocation of ``lease`` was over before its tensor was there."""
        self._condemn_lease(lease, "ended")

    def _grant_block(self, owner: BlockOwner, tag: bytes, nbytes: int) -> BlockLease | None:
        extent = self._allocator.allocate(nbytes + self._header)
        if extent is None:
            return None
        self._last_id += 1
        lease = BlockLease(self._last_id, self._boot + self._last_id, extent + self._header, nbytes, owner, tag)
        self._leases[lease.id] = lease
        owner.writing[lease.id] = lease
        self._headers.write_header(lease.offset, lease.id, lease.generation, nbytes)
        return lease

    def _end_spare(self, lease: BlockLease) -> None:
        if lease.spare:
            lease.spare = False
            del self.spares[lease.id]
            lease.owner.spare_bytes -= lease.nbytes + self._header
            self.spare_bytes -= lease.nbytes + self._header

    def _find_lease(self, block: int, generation: int) -> BlockLease | None:
        lease = self._leases.get(block)
        if lease is None or lease.generation != generation:
            self.stale += 1
            return None
        return lease

    def _stop_writing(self, owner: BlockOwner, lease: BlockLease) -> None:
        if owner.writing.pop(lease.id, None) is not None:
            lease.writing = False

    def _let_go(self, owner: BlockOwner, lease: BlockLease, count: int) -> None:
        remaining = lease.holders.pop(owner, 0) - count
        if remaining > 0:
            lease.holders[owner] = remaining
        else:
            owner.holding.pop(lease.id, None)

    def _condemn_lease(self, lease: BlockLease, reason: str) -> None:
        first = not lease.condemned
        if first:
            self._end_spare(lease)
            lease.condemned = reason
            self.condemned += 1
            self._headers.clear_header(lease.offset)
        self._free_if_unused(lease)
        if first and lease.id in self._leases:
            self._linger(lease)

    def _free_if_unused(self, lease: BlockLease) -> None:
        if lease.is_open:
            return
        if lease.condemned or not (lease.readers or lease.retained):
            self._free_lease(lease, lease.condemned or "released")
        elif not lease.readers and lease.id not in self._idle:
            self._idle[lease.id] = lease
            self.idle_bytes += lease.nbytes

    def _remove_idle(self, lease: BlockLease) -> None:
        """Somebody needs a block that was only retained."""
        if self._idle.pop(lease.id, None) is not None:
            self.idle_bytes -= lease.nbytes

    def _free_lease(self, lease: BlockLease, reason: str) -> bool:
        """Free ``lease``, unless somebody has pinned it meanwhile, who will let go of it."""
        with self._freeing:
            if lease.pins:
                return False
            del self._leases[lease.id]
        self._end_spare(lease)
        self._remove_idle(lease)
        self._forget_tag(lease)
        self._headers.clear_header(lease.offset)
        if self.clear_on_free:
            self._headers.zero_bytes(lease.offset, lease.nbytes)
        self._allocator.free(lease.offset - self._header)
        lease.due = NEVER_DUE
        self.condemned -= bool(lease.condemned)
        if reason:
            self.freed[reason] += 1
        if lease.owner.on_freed is not None:
            lease.owner.on_freed(lease)
        return True

    def _forget_tag(self, lease: BlockLease) -> None:
        tagged = self._tags.get(lease.tag)
        if tagged is not None and tagged.pop(lease.id, None) is not None and not tagged:
            del self._tags[lease.tag]
