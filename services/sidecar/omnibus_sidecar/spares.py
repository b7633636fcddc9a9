"""Spare blocks of clients: their limits, and their recall when memory is short."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Protocol

from omnibus.errors import ProtocolError
from omnibus.tensors.ledger import NEVER_DUE, BlockLease, BlockOwner, Ledger
from omnibus.tensors.protocol import SidecarFrame, Verb

#: Shares of the arena that spares of one client, and all spares, may take.
_CLIENT_SHARE, _ALL_SHARE = 1 / 8, 1 / 4
#: Most spares of one request.
_MOST_AT_ONCE = 64
#: Seconds in which clients must return recalled spares; allocations without patience wait as long.
RECALL_SECONDS = 0.25
#: Ended invocations to remember, for their tensors that are named later.
_MOST_ENDED = 1024


class SpareClient(Protocol):
    """The client's side of a connection."""

    owner: BlockOwner

    def reply(self, frame: SidecarFrame) -> None: ...


class SpareBlocks:
    """Grants, uses and recalls spares of ``ledger``.

    ``size`` is the bytes of the arena. ``make_room`` starts to allocate pages for so many bytes. ``start_grace`` starts
    the time in which a client may still write. ``set_due`` sets when a block expires. ``on_settle`` is called when a
    recall is over.
    """

    def __init__(
        self,
        ledger: Ledger,
        size: int,
        loop: AbstractEventLoop,
        make_room: Callable[[int], None],
        start_grace: Callable[[BlockLease], None],
        set_due: Callable[[BlockLease, float], None],
        on_settle: Callable[[], None],
    ) -> None:
        self.used = 0  # tensors so far
        self.recalls = 0
        self._ledger = ledger
        self._size = size
        self._loop = loop
        self._make_room = make_room
        self._start_grace = start_grace
        self._set_due = set_due
        self._settled = on_settle
        self._clients: dict[BlockOwner, SpareClient] = {}
        self._recall_until = 0.0  # in the loop's seconds; 0: nothing is recalled
        self._ended: dict[bytes, BlockOwner] = {}

    @property
    def recalling(self) -> bool:
        """True while recalled spares are outstanding."""
        return self._recall_until > 0 and bool(self._ledger.spares)

    def grant(self, client: SpareClient, frame: SidecarFrame, key_of: Callable[[BlockLease], int], full: bool) -> None:
        """Reply to REQUEST_SPARES, one frame for each spare; a ``full`` arena has none."""
        if frame.readers > _MOST_AT_ONCE:
            raise ProtocolError(f"{frame.readers} spares requested at once; at most {_MOST_AT_ONCE} are granted")
        full = full or self._recall_until > 0
        for _ in range(frame.readers):
            lease = None if full else self._grant_one(client.owner, frame.nbytes)
            if lease is None:
                client.reply(SidecarFrame(Verb.NO_SPARE, frame.request))
                continue
            self._clients[client.owner] = client
            block, generation, key = lease.id, lease.generation, key_of(lease)
            client.reply(SidecarFrame(Verb.SPARE, frame.request, 0, block, generation, key, lease.offset))

    def use(self, client: SpareClient, frame: SidecarFrame, deadline: float, due: float) -> None:
        """Turn a spare into a block, unless it was already freed.

        ``due`` is ``deadline`` on the loop's clock.
        """
        ledger, owner = self._ledger, client.owner
        lease = ledger.find_spare(owner, frame.block, frame.generation)
        if lease is None:
            return
        if frame.nbytes > lease.nbytes or not frame.text:
            raise ProtocolError(
                f"spare {frame.block} has {lease.nbytes} bytes; a tensor of {frame.nbytes} does not fit"
            )
        self.used += 1
        ledger.use_spare(lease, frame.text, frame.nbytes, frame.readers, deadline)
        self._set_due(lease, due)
        # The client that ended the invocation was unaware of this tensor, and does not end it again.
        if self._ended.get(frame.text, owner) is not owner:
            ledger.end_used(lease)
        if frame.offset:
            ledger.seal(owner, lease.id, lease.generation)
        self.check_recall()

    def note_end(self, owner: BlockOwner, tag: bytes) -> None:
        """Record that ``owner`` ended the invocation ``tag``."""
        self._ended[tag] = owner
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def recall(self) -> bool:
        """Recall all spares from clients. Returns True if memory is about to become free."""
        now = self._loop.time()
        spares = self._ledger.spares.values()
        fresh = [lease for lease in spares if lease.due == NEVER_DUE and not lease.holders]
        if fresh:
            self.recalls += 1
            self._recall_until = now + RECALL_SECONDS
            self._loop.call_at(self._recall_until, self._end_recall)
        for lease in fresh:
            self._start_grace(lease)
        for owner in {lease.owner for lease in fresh}:
            self._clients[owner].reply(SidecarFrame(Verb.RECALL_SPARES))
        return self.recalling

    def check_recall(self) -> None:
        """End the recall when no spares are left."""
        if self._recall_until and not self._ledger.spares:
            self._recall_until = 0.0
            self._loop.call_soon(self._settled)

    def _grant_one(self, owner: BlockOwner, nbytes: int) -> BlockLease | None:
        ledger, size = self._ledger, self._size
        if owner.spare_bytes + nbytes > size * _CLIENT_SHARE or ledger.spare_bytes + nbytes > size * _ALL_SHARE:
            return None
        lease = ledger.grant_spare(owner, nbytes)
        if lease is None:
            self._make_room(nbytes)  # for the next time
        return lease

    def _end_recall(self) -> None:
        """Stop waiting for clients that have not returned their spares: they may be frozen."""
        if self._loop.time() >= self._recall_until > 0:
            self._recall_until = 0.0
            self._settled()

    def remove_client(self, owner: BlockOwner) -> None:
        """Remove a client that is gone; its spares are gone with it."""
        self._clients.pop(owner, None)
        self.check_recall()
