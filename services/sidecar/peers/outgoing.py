"""Reads of this node's blocks by other nodes, as the ledger sees them.

A connection that sends a block holds it from the check of the request until the reader's DONE. Whoever needs its memory
before has it once all of it is copied into the socket, or the socket is aborted: memory that is given away too early
would reach the reader with the bytes of somebody else. UCX reads it until the reader has them all.
"""

from collections.abc import Callable
from typing import NamedTuple

from omnibus.tensors.ledger import BlockLease, BlockOwner, Ledger
from omnibus.tensors.peer_protocol import PeerFrame, PeerVerb, PullStatus, block_key


class GrantedRange(NamedTuple):
    """Answer to GET: where the bytes lie in the arena."""

    status: PullStatus
    offset: int = 0


class OutgoingReads:
    """Checks and holds for other nodes. ``secret`` makes the keys of blocks."""

    def __init__(self, ledger: Ledger, secret: bytes, freed: Callable[[], None]) -> None:
        """``freed`` is called when memory may have become free."""
        self._ledger = ledger
        self._secret = secret
        self._freed = freed
        self._aborts: dict[BlockOwner, Callable[[], None]] = {}
        self.sent_bytes = 0
        self.refused = 0

    def key_of(self, lease: BlockLease) -> int:
        """The key of ``lease``, which its handle carries."""
        return block_key(self._secret, lease.id, lease.generation)

    def begin_read(self, owner: BlockOwner, get: PeerFrame, abort: Callable[[], None]) -> GrantedRange:
        """Check GET and hold its block for the connection ``owner``; ``abort`` ends the connection at once."""
        lease = self._ledger.find_readable(get.block, get.generation)
        if lease is None or self.key_of(lease) != get.key:
            self.refused += 1
            return GrantedRange(PullStatus.STALE)
        if get.remaining <= 0:
            return GrantedRange(PullStatus.LATE)
        if get.offset + get.nbytes > lease.nbytes:
            self.refused += 1
            return GrantedRange(PullStatus.OUTSIDE)
        self._ledger.hold(owner, lease.id, lease.generation)
        self._aborts[owner] = abort
        return GrantedRange(PullStatus.OK, lease.offset + get.offset)

    def finish_read(self, owner: BlockOwner, get: PeerFrame, reads: int) -> None:
        """The reader has the bytes, and ``reads`` expected reads are over with them."""
        self.sent_bytes += get.nbytes
        if self._aborts.pop(owner, None) is None:
            return  # the block was over before
        self._ledger.unhold(owner)
        self._end_reads(get.block, get.generation, reads)

    def abandon_read(self, owner: BlockOwner) -> None:
        """Nothing reads the block any more: it is copied, or the connection is closed. The read is expected again."""
        self._aborts.pop(owner, None)
        self._ledger.unhold(owner)
        self._freed()

    def end_reads(self, over: PeerFrame) -> None:
        """Reads that are over without a transfer; ignored without the block's key."""
        lease = self._ledger.find_readable(over.block, over.generation)
        if lease is not None and self.key_of(lease) == over.key:
            self._end_reads(over.block, over.generation, over.reads)

    def set_retention(self, frame: PeerFrame) -> None:
        """Let a block outlive its readers, in the place of a read, or not any more; ignored without its key."""
        lease = self._ledger.find_readable(frame.block, frame.generation)
        if lease is None or self.key_of(lease) != frame.key:
            return
        if frame.verb == PeerVerb.RETAIN:
            self._ledger.retain(frame.block, frame.generation)
        else:
            self._ledger.drop(frame.block, frame.generation)
            self._freed()

    def stop_sending(self, lease: BlockLease) -> bool:
        """End the transfers of ``lease``; returns whether there are any. They let go of it once they have ended."""
        aborts = [self._aborts[owner] for owner in lease.holders if owner in self._aborts]
        for abort in aborts:
            abort()
        return bool(aborts)

    def _end_reads(self, block: int, generation: int, reads: int) -> None:
        self._ledger.end_reads(block, generation, reads)
        self._freed()
