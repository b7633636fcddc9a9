"""Reads of this node's blocks by other nodes, for the ledger.

A connection that sends a block pins it from the check of the request until DONE. The thread of the connection checks
and pins, so that it need not wait for that of the ledger, where all else runs.

Another owner of the block's memory gets it only after all of the block is copied into the socket, or the socket is
aborted. If it got the memory earlier, the peer would receive bytes of another block. UCX reads the memory until the
peer has all bytes.
"""

from collections.abc import Callable
from typing import NamedTuple

from omnibus.tensors.ledger import BlockLease, Ledger
from omnibus.tensors.peer_protocol import PeerFrame, PeerVerb, PullStatus, block_key


class GrantedRange(NamedTuple):
    """Reply to GET: the place of the bytes in the arena."""

    status: PullStatus
    offset: int = 0


class OutgoingReads:
    """Checks and holds blocks for other nodes. ``secret`` makes the keys of blocks."""

    def __init__(self, ledger: Ledger, secret: bytes, on_free: Callable[[], None]) -> None:
        """Create the reads; ``on_free`` is called when memory may have become free."""
        self._ledger = ledger
        self._secret = secret
        self._freed = on_free
        self._sending: dict[object, tuple[BlockLease, Callable[[], None]]] = {}
        self.sent_bytes = 0
        self.refused = 0

    def key_of(self, lease: BlockLease) -> int:
        """Return the key of ``lease``, which its handle carries."""
        return block_key(self._secret, lease.id, lease.generation)

    def begin_read(self, transfer: object, get: PeerFrame, abort: Callable[[], None]) -> GrantedRange:
        """Check GET and pin its block for ``transfer``, which is used once; ``abort`` ends its connection at once.

        Called in the connection's thread. If the block ends meanwhile, this rejects the request or ``abort`` is called.
        """
        lease = self._ledger.find_readable(get.block, get.generation)
        if lease is None or self.key_of(lease) != get.key:
            self.refused += 1
            return GrantedRange(PullStatus.STALE)
        if get.remaining <= 0:
            return GrantedRange(PullStatus.LATE)
        if get.offset + get.nbytes > lease.nbytes:
            self.refused += 1
            return GrantedRange(PullStatus.OUTSIDE)
        self._sending[transfer] = lease, abort  # before the pin, so that a thread that sees the pin can end it
        if not self._ledger.pin(transfer, lease):
            del self._sending[transfer]
            return GrantedRange(PullStatus.STALE)
        return GrantedRange(PullStatus.OK, lease.offset + get.offset)

    def finish_read(self, transfer: object, get: PeerFrame, reads: int) -> None:
        """Record that the peer has the bytes, and end ``reads`` expected reads."""
        self.sent_bytes += get.nbytes
        if self._unpin(transfer):  # else the block was over before
            self._end_reads(get.block, get.generation, reads)

    def abandon_read(self, transfer: object) -> None:
        """Release the block of a read that failed; the read is expected again.

        The block is copied, or the connection is closed.
        """
        self._unpin(transfer)
        self._freed()

    def end_reads(self, over: PeerFrame) -> None:
        """End reads without a transfer; ignored without the block's key."""
        lease = self._ledger.find_readable(over.block, over.generation)
        if lease is not None and self.key_of(lease) == over.key:
            self._end_reads(over.block, over.generation, over.reads)

    def set_retention(self, frame: PeerFrame) -> None:
        """Retain a block in the place of a read, or stop; ignored without its key.

        A retained block outlives its readers.
        """
        lease = self._ledger.find_readable(frame.block, frame.generation)
        if lease is None or self.key_of(lease) != frame.key:
            return
        if frame.verb == PeerVerb.RETAIN:
            self._ledger.retain(frame.block, frame.generation)
        else:
            self._ledger.drop(frame.block, frame.generation)
            self._freed()

    def stop_sending(self, lease: BlockLease) -> bool:
        """End the transfers of ``lease``. Returns True if there are any; each releases the block when it has ended."""
        transfers = tuple(lease.pins)
        for transfer in transfers:
            self._sending[transfer][1]()
        return bool(transfers)

    def _unpin(self, transfer: object) -> bool:
        """Release the block of ``transfer``. Returns False if it had none."""
        lease, _ = self._sending.pop(transfer, (None, None))
        if lease is not None:
            self._ledger.unpin(transfer, lease)
        return lease is not None

    def _end_reads(self, block: int, generation: int, reads: int) -> None:
        self._ledger.end_reads(block, generation, reads)
        self._freed()
