"""A ledger over real memory, without sockets."""

from omnibus.tensors.allocator import Allocator
from omnibus.tensors.arena import HEADER_BYTES, Arena
from omnibus.tensors.ledger import BlockLease, BlockOwner, Ledger

SIZE = 1 << 16


class LedgerDesk:
    """A ledger over real memory, and the leases reported as lingering."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.space = Allocator(SIZE)
        self.lingering: list[BlockLease] = []
        self.ledger = Ledger(self.space, arena, 1000, HEADER_BYTES, self.lingering.append)
        self.producer, self.reader, self.other = BlockOwner("producer"), BlockOwner("reader"), BlockOwner("other")

    def grant(self, readers: int = 1, tag: bytes = b"i") -> BlockLease:
        lease = self.ledger.grant(self.producer, tag, 100, readers, 9e9)
        assert lease is not None
        return lease

    def call_verb(self, verb: str, owner: BlockOwner, lease: BlockLease) -> None:
        getattr(self.ledger, verb)(owner, lease.id, lease.generation)

    def generation_in_memory(self, lease: BlockLease) -> int:
        return int.from_bytes(self.arena.path.read_bytes()[lease.offset - 56 : lease.offset - 48], "little")

    def empty(self) -> bool:
        idle = not any(owner.writing or owner.holding for owner in (self.producer, self.reader, self.other))
        return idle and not len(self.ledger) and not self.ledger.condemned and self.space.used == 0


def read_lease(desk: LedgerDesk, lease: BlockLease) -> None:
    desk.call_verb("hold", desk.reader, lease)
    desk.call_verb("release", desk.reader, lease)
