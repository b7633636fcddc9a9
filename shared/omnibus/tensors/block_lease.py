"""One granted block of the arena, and its client; ``ledger.py`` defines its lifetime."""

from collections.abc import Callable
from math import inf

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
