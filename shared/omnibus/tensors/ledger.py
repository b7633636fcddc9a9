"""Holders and lifetimes of the arena's blocks. Pure bookkeeping: no clock, no sockets.

Use it in one thread, except for ``find_readable`` and ``pin``.

The rule: a block is granted with one writer's lease and a number of expected readers.

- The producer's ``seal`` ends the writer's lease: the bytes are complete. Readers may read earlier.
- Each ``hold`` marks a reader at work, each ``release`` ends one expected read. A release without a hold declines the
  read. The death of a holder releases its reads.
- The block is free when it is sealed, and has neither expected reads nor holders.
- A transfer to another node has a *pin* on its block, which counts as a hold. Another thread sets pins without waiting
  for this one. A block is therefore freed only under a lock, and never while it has a pin.
- ``retain`` keeps it after that, for readers that may start again, until its invocation ends or ``reclaim_oldest``
  frees it. An allocation without room frees blocks that are only retained, the oldest first.
- A spare is granted before its tensor exists. It belongs to no invocation, and ``use_spare`` makes it a normal block.
  Its readers may be faster than its producer's message: their releases until then are counted.

A block is condemned early by ``discard`` of its producer, ``end_invocation``, its deadline, or the death of a producer
that had not sealed it. Its header is cleared at once, so it gets no new readers. Its memory is free once no living
client has it open. A client that still works on a cancelled request must not see the bytes of the next one. Those
clients release it with ``release``, ``discard`` or their own ``end_invocation``. After a grace period, ``force_free``
takes the block from them.

One granted block of the arena, and its client; ``ledger.py`` defines its lifetime.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from math import inf
from threading import Lock
from typing import Protocol

from omnibus.tensors.allocator import Allocator

#: ``due`` of a lease that has ended.
NEVER_DUE = inf


class BlockOwner:
    """One client: its blocks in writing and in reading, by id, and the bytes of its spares.

    ``on_freed`` is called with each block that was granted to it, once it is free.
    """

    __slots__ = ("holding", "name", "on_freed", "spare_bytes", "writing")

    def __init__(self, name: str, on_freed: "Callable[[BlockLease], None] | None" = None) -> None:
        self.name = name
        self.on_freed = on_freed
        self.spare_bytes = 0
        self.writing: dict[int, BlockLease] = {}
        self.holding: dict[int, BlockLease] = {}


class BlockLease:
    """One granted block.

    ``readers`` is the number of expected reads, ``holders`` the open ones by client, and ``pins`` the transfers to
    other nodes. ``due`` is for the owner of the timer. ``condemned`` is the reason, or empty.
    """

    __slots__ = (
        "condemned", "deadline", "due", "generation", "holders", "id", "nbytes", "offset", "owner", "pins", "readers",
        "retained", "spare", "tag", "writing",
    )  # fmt: skip

    def __init__(self, id: int, generation: int, offset: int, nbytes: int, owner: BlockOwner, tag: bytes) -> None:
        self.id = id
        self.generation = generation
        self.offset = offset
        self.nbytes = nbytes
        self.owner = owner
        self.tag = tag
        self.readers = 0
        self.deadline = 0.0
        self.due = NEVER_DUE
        self.holders: dict[BlockOwner, int] = {}
        self.pins: set[object] = set()
        self.writing = True
        self.retained = False
        self.spare = False
        self.condemned = ""

    def end_reads(self, count: int) -> None:
        """End ``count`` expected reads. The reads of a spare are not known yet."""
        self.readers -= count if self.spare else min(count, self.readers)

    @property
    def is_open(self) -> bool:
        """True while a client writes, reads or sends it: its memory cannot be reused."""
        return bool(self.writing or self.holders or self.pins)

    def to_row(self) -> dict[str, object]:
        """Return the lease for people: small JSON."""
        return {
            "id": self.id,
            "generation": self.generation,
            "offset": self.offset,
            "nbytes": self.nbytes,
            "owner": self.owner.name,
            "invocation": self.tag.decode(errors="replace"),
            "deadline": self.deadline,
            "readers": self.readers,
            "held": sum(self.holders.values()) + len(self.pins),
            "sealed": not self.writing,
            "retained": self.retained,
            "condemned": self.condemned,
        }


class Headers(Protocol):
    """Operations of the ledger on the memory itself."""

    def write_header(self, offset: int, block: int, generation: int, nbytes: int) -> None: ...

    def clear_header(self, offset: int) -> None: ...

    def zero_bytes(self, offset: int, nbytes: int) -> None: ...


class Ledger:
    """All leases of one arena.

    ``boot`` makes generations differ from those of every earlier sidecar. ``header`` bytes precede each block's data.
    ``linger`` is called with each condemned block that a client still has open. ``freed`` counts freed blocks by
    reason, and ``stale`` counts messages about blocks that were gone. ``condemned`` is the number of blocks that are
    over, but still open. ``spares`` are granted ahead of need: they have no tensor, and neither ``granted`` nor
    ``freed`` counts them.
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
        self._idle: dict[int, BlockLease] = {}  # retained blocks without readers
        self.idle_bytes = 0
        self._tags: dict[bytes, dict[int, BlockLease]] = {}
        self._freeing = Lock()

    def __len__(self) -> int:
        return len(self._leases) - len(self.spares)

    def list_leases(self, limit: int) -> list[dict[str, object]]:
        """Return the oldest ``limit`` leases as JSON rows."""
        leases = (lease for lease in self._leases.values() if not lease.spare)
        return [lease.to_row() for lease in islice(leases, limit)]

    def grant(self, owner: BlockOwner, tag: bytes, nbytes: int, readers: int, deadline: float) -> BlockLease | None:
        """Grant a block of ``nbytes`` bytes, or ``None`` without a hole."""
        lease = self._grant_block(owner, tag, nbytes)
        if lease is not None:
            self.granted += 1
            lease.readers = readers
            lease.deadline = deadline
            self._tags.setdefault(tag, {})[lease.id] = lease
        return lease

    def grant_spare(self, owner: BlockOwner, nbytes: int) -> BlockLease | None:
        """Grant a spare of ``nbytes`` bytes, or ``None`` without a hole."""
        lease = self._grant_block(owner, b"", nbytes)
        if lease is not None:
            lease.spare = True
            self.spares[lease.id] = lease
            owner.spare_bytes += nbytes + self._header
            self.spare_bytes += nbytes + self._header
        return lease

    def use_spare(self, lease: BlockLease, tag: bytes, nbytes: int, readers: int, deadline: float) -> None:
        """Use a spare for a tensor of at most its size, ``nbytes``."""
        self._end_spare(lease)
        self._allocator.shrink(lease.offset - self._header, nbytes + self._header)
        self.granted += 1
        lease.tag, lease.nbytes, lease.deadline = tag, nbytes, deadline
        lease.readers = max(lease.readers + readers, 0)
        self._tags.setdefault(tag, {})[lease.id] = lease
        with self._freeing:
            self._leases[lease.id] = self._leases.pop(lease.id)  # the youngest

    def find_spare(self, owner: BlockOwner, block: int, generation: int) -> BlockLease | None:
        """Return the lease of a spare of ``owner``; ``None`` if it was recalled."""
        lease = self._find_lease(block, generation)
        return lease if lease is not None and lease.spare and lease.owner is owner else None

    def return_spare(self, lease: BlockLease) -> None:
        """Free a spare that its producer does not need; it may be dead."""
        self._stop_writing(lease.owner, lease)
        if lease.is_open:  # the message of its use is lost
            self._condemn_lease(lease, "orphaned")
        else:
            self._free_lease(lease, "")

    def seal(self, owner: BlockOwner, block: int, generation: int) -> None:
        """End the producer's lease: everything is written."""
        lease = self._find_lease(block, generation)
        if lease is not None and owner.writing.pop(block, None) is not None:
            lease.writing = False
            self._free_if_unused(lease)

    def hold(self, owner: BlockOwner, block: int, generation: int) -> None:
        """Record that ``owner`` reads the block."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            self._remove_idle(lease)
            owner.holding[block] = lease
            lease.holders[owner] = lease.holders.get(owner, 0) + 1

    def release(self, owner: BlockOwner, block: int, generation: int) -> None:
        """Record that ``owner`` has read the block, or will not read it."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            self._let_go(owner, lease, 1)
            lease.end_reads(1)
            self._free_if_unused(lease)

    def find_readable(self, block: int, generation: int) -> BlockLease | None:
        """Return the lease of a readable block; ``None`` if it is gone or over. For any thread."""
        with self._freeing:  # the use of a spare moves its lease
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
        """End a transfer of the block; its expected reads do not change."""
        lease.pins.discard(pin)
        if self._leases.get(lease.id) is lease:
            self._free_if_unused(lease)

    def end_reads(self, block: int, generation: int, count: int) -> None:
        """End ``count`` expected reads of readers that hold nothing here."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            lease.end_reads(count)
            self._free_if_unused(lease)

    def discard(self, owner: BlockOwner, block: int, generation: int) -> None:
        """Discard the producer's block, sealed or not."""
        lease = self._find_lease(block, generation)
        if lease is not None and lease.owner is owner:
            if lease.spare:
                self.return_spare(lease)
                return
            self._stop_writing(owner, lease)
            self._condemn_lease(lease, "discarded")

    def extend(self, block: int, generation: int, deadline: float) -> BlockLease | None:
        """Set a new deadline; ``None`` if the block is gone or condemned."""
        lease = self._find_lease(block, generation)
        if lease is None or lease.condemned:
            return None
        lease.deadline = deadline
        return lease

    def retain(self, block: int, generation: int) -> None:
        """End one read, but retain the block until its invocation ends."""
        lease = self._find_lease(block, generation)
        if lease is not None:
            lease.retained = True
            lease.end_reads(1)
            self._free_if_unused(lease)

    def drop(self, block: int, generation: int) -> None:
        """End the retention: the block need not outlive its readers."""
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
        """End the invocation, on which ``owner`` has stopped working."""
        for lease in tuple(self._tags.get(tag, {}).values()):
            self._stop_writing(owner, lease)
            self._let_go(owner, lease, lease.holders.get(owner, 0))
            self._condemn_lease(lease, "ended")

    def expire(self, lease: BlockLease) -> None:
        """Condemn ``lease``, whose deadline has passed."""
        self._condemn_lease(lease, "expired")

    def force_free(self, lease: BlockLease) -> None:
        """Free a condemned block that a client still has open; a pinned block is freed after its pins."""
        self._stop_writing(lease.owner, lease)
        for owner in tuple(lease.holders):
            self._let_go(owner, lease, lease.holders[owner])
        self._free_lease(lease, "forced")

    def remove_owner(self, owner: BlockOwner) -> None:
        """Remove a dead ``owner``: condemn its unsealed blocks, and release its reads."""
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
        """Condemn ``lease``: its invocation was over before its tensor existed."""
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
        """Mark a retained block as used again."""
        if self._idle.pop(lease.id, None) is not None:
            self.idle_bytes -= lease.nbytes

    def _free_lease(self, lease: BlockLease, reason: str) -> bool:
        """Free ``lease``, unless another thread has pinned it; the pin's owner then frees it."""
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
        leases = self._tags.get(lease.tag)
        if leases is not None and leases.pop(lease.id, None) is not None and not leases:
            del self._tags[lease.tag]
