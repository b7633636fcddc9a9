"""The sidecar's front desk: the effect of each verb on the ledger, and the queue for memory.

Timers for items with a due time: one heap, one timer of the event loop, no polling.
"""

import time
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from omnibus.errors import ProtocolError
from omnibus.tensors.allocator import Allocator
from omnibus.tensors.arena import HEADER_BYTES, Arena
from omnibus.tensors.ledger import BlockLease, BlockOwner, Ledger
from omnibus.tensors.protocol import PullRequest, SidecarFrame, Verb, decode_pull, encode_text
from omnibus_sidecar.backing import Backing
from omnibus_sidecar.settings import SidecarConfig
from omnibus_sidecar.spares import SpareBlocks


class Timed(Protocol):
    """An item with a due time in ``loop.time()`` seconds; ``inf`` if nothing is due."""

    due: float


T = TypeVar("T", bound=Timed)


class TimerQueue(Generic[T]):
    """Calls ``ring(item)`` when ``item.due`` is reached.

    To cancel, set ``item.due`` to ``inf``. The heap's entry is then a tombstone. It is removed when it reaches the top,
    or when tombstones outnumber the live entries of the last cleanup.
    """

    def __init__(self, loop: AbstractEventLoop, ring: Callable[[T], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._heap: list[tuple[float, int, T]] = []
        self._order = count()
        self._clean_at = 256
        self._timer: TimerHandle | None = None
        self._armed = inf

    def __len__(self) -> int:
        return len(self._heap)

    def set_due(self, item: T, when: float) -> None:
        """Set the due time of ``item`` to ``when``, replacing an earlier one."""
        item.due = when
        heappush(self._heap, (when, next(self._order), item))
        if when < self._armed:
            self._arm_timer(when)
        elif len(self._heap) > self._clean_at:
            self._drop_tombstones()

    def close(self) -> None:
        """Cancel all timers."""
        self._heap.clear()
        self._arm_timer(inf)

    def _arm_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = when
        self._timer = None if when == inf else self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        while self._heap and (self._heap[0][0] <= now or self._is_tombstone(self._heap[0])):
            entry = heappop(self._heap)
            if not self._is_tombstone(entry):
                entry[2].due = inf
                self._ring(entry[2])
        self._arm_timer(self._heap[0][0] if self._heap else inf)

    def _drop_tombstones(self) -> None:
        self._heap = [entry for entry in self._heap if not self._is_tombstone(entry)]
        heapify(self._heap)
        self._clean_at = 2 * len(self._heap) + 256

    @staticmethod
    def _is_tombstone(entry: tuple[float, int, T]) -> bool:
        return entry[0] != entry[2].due


#: Most leases that one LEDGER reply lists.
MAX_LISTED = 1000
#: Longest JSON of a client's request.
_MAX_TEXT_BYTES = 4096


class Caller(Protocol):
    """The client's side of a connection, as the desk uses it."""

    owner: BlockOwner

    def reply(self, frame: SidecarFrame) -> None: ...

    def reply_bytes(self, frames: bytes) -> None: ...


_NOBODY = BlockOwner("nobody")


class Waiter:
    """An allocation that waits for memory until ``patience``, in the loop's seconds."""

    __slots__ = ("caller", "due", "frame", "patience")

    def __init__(self, caller: Caller, frame: SidecarFrame, patience: float) -> None:
        self.caller = caller
        self.frame = frame
        self.patience = patience
        self.due = inf


class Pulls(Protocol):
    """Tensors of other nodes, as the desk uses them; see ``omnibus_sidecar.peers.incoming``."""

    def pull(self, caller: Caller, number: int, request: PullRequest) -> None: ...

    def decline(self, request: PullRequest) -> None: ...

    def on_release(self, owner: BlockOwner, block: int) -> None: ...

    def withdraw_request(self, caller: Caller, number: int) -> None: ...

    def end_invocation(self, invocation: str) -> None: ...

    def remove_client(self, owner: BlockOwner) -> None: ...

    def on_condemned(self, lease: BlockLease) -> bool: ...


class Sends(Protocol):
    """Blocks of this node that others read; see ``omnibus_sidecar.peers.outgoing``."""

    def key_of(self, lease: BlockLease) -> int: ...

    def stop_sending(self, lease: BlockLease) -> bool: ...


class Desk:
    """Serves the verbs of all clients in order of arrival."""

    def __init__(self, settings: SidecarConfig, arena: Arena, boot: int, loop: AbstractEventLoop) -> None:
        self.settings = settings
        self.allocator = Allocator(arena.size, backed_size=0, header=HEADER_BYTES)
        self.backing = Backing(arena, self.allocator, loop, self._on_backing_changed)
        self.ledger = Ledger(self.allocator, arena, boot, HEADER_BYTES, self._start_grace)
        self.ledger.clear_on_free = settings.clear_on_free
        self._agenda: TimerQueue[BlockLease | Waiter] = TimerQueue(loop, self._on_due)
        self.spares = SpareBlocks(
            self.ledger,
            self.allocator.size,
            loop,
            lambda nbytes: self.backing.extend_for(nbytes + HEADER_BYTES),
            self._start_grace,
            self._agenda.set_due,
            self._on_backing_changed,
        )
        self.refused = 0
        self._pulls: Pulls | None = None
        self._sends: Sends | None = None
        self._more_counters: Callable[[], Mapping[str, Any]] = dict
        self._texts: dict[tuple[Caller, int], bytes] = {}
        self._open = True
        self._loop = loop
        self._queue: deque[Waiter] = deque()
        self._verbs: dict[int, Callable[[Caller, SidecarFrame], None]] = {
            Verb.ALLOCATE: self._handle_allocate,
            Verb.SEAL: lambda caller, frame: self.ledger.seal(caller.owner, frame.block, frame.generation),
            Verb.HOLD: lambda caller, frame: self.ledger.hold(caller.owner, frame.block, frame.generation),
            Verb.RELEASE: self._handle_release,
            Verb.DISCARD: self._handle_discard,
            Verb.REQUEST_SPARES: self._handle_request_spares,
            Verb.USE_SPARE: self._handle_use_spare,
            Verb.EXTEND: self._handle_extend,
            Verb.RETAIN: lambda caller, frame: self.ledger.retain(frame.block, frame.generation),
            Verb.DROP: lambda caller, frame: self.ledger.drop(frame.block, frame.generation),
            Verb.END: self._handle_end,
            Verb.CANCEL: self._handle_cancel,
            Verb.STATS: lambda caller, frame: self._reply_json(caller, frame, self.counters()),
            Verb.LEDGER: lambda caller, frame: self._reply_json(caller, frame, self.ledger.list_leases(MAX_LISTED)),
            Verb.PULL: self._handle_pull,
            Verb.DECLINE: self._handle_pull,
        }

    def connect_nodes(self, pulls: Pulls, sends: Sends, counters: Callable[[], Mapping[str, Any]]) -> None:
        """Let clients pull tensors of other nodes, and vice versa.

        ``counters`` are added to those of the desk.
        """
        self._pulls, self._sends, self._more_counters = pulls, sends, counters

    def call_later(self, seconds: float, function: Callable[..., None], *arguments: object) -> None:
        """Call ``function`` in ``seconds``, unless the desk is closed by then."""
        self._loop.call_later(seconds, lambda: function(*arguments) if self._open else None)

    def serve_frame(self, caller: Caller, frame: SidecarFrame) -> None:
        """Execute the verb of ``frame``. Raises ``ProtocolError`` for a verb that no client may send."""
        verb = self._verbs.get(frame.verb)
        if verb is None:
            raise ProtocolError(f"verb {frame.verb} is not a request of a connected client")
        verb(caller, frame)

    def admit_waiters(self) -> None:
        """Grant freed memory to waiting requests, strictly first come, first served."""
        while self._queue and self._try_grant(self._queue[0].caller, self._queue[0].frame):
            self._queue.popleft().due = inf

    def remove_client(self, caller: Caller) -> None:
        """End all waits, writes and reads of a disconnected client."""
        if not self._open:
            return
        self._dismiss_waiters(lambda waiter: waiter.caller is caller)
        if self._pulls is not None:
            self._pulls.remove_client(caller.owner)
        self.ledger.remove_owner(caller.owner)
        self.spares.remove_client(caller.owner)
        self.admit_waiters()

    def close(self) -> None:
        """Stop the clock. Nothing is served afterwards: the arena is about to be removed."""
        self._open = False
        self._agenda.close()
        self._queue.clear()

    def counters(self) -> dict[str, Any]:
        """Return the running counters. Bytes are used, spare or free.

        ``freed_total`` is by reason. ``forced_total`` above zero means that a client kept a cancelled block, or a
        recalled spare, open for longer than the grace period.
        """
        space, spare = self.allocator, self.ledger.spare_bytes
        return {
            "arena_bytes": space.size,
            "used_bytes": space.used - spare,
            "spare_bytes": spare,
            "free_bytes": space.free_bytes,
            "peak_bytes": space.peak,
            "touched_bytes": space.touched,
            "backed_bytes": space.backed,
            "largest_hole_bytes": space.largest_hole,
            "holes": space.holes,
            "blocks": space.blocks - len(self.ledger.spares),
            "spare_blocks": len(self.ledger.spares),
            "spares_used_total": self.spares.used,
            "spares_recalled_total": self.spares.recalls,
            "condemned_blocks": self.ledger.condemned,
            "retained_bytes": self.ledger.idle_bytes,
            "waiting": len(self._queue),
            "granted_total": self.ledger.granted,
            "refused_total": self.refused,
            "stale_total": self.ledger.stale,
            "expired_total": self.ledger.freed["expired"],
            "forced_total": self.ledger.freed["forced"],
            "freed_total": dict(self.ledger.freed),
            **self._more_counters(),
        }

    def _handle_allocate(self, caller: Caller, frame: SidecarFrame) -> None:
        if frame.nbytes + HEADER_BYTES > self.allocator.size:
            caller.reply(SidecarFrame(Verb.TOO_LARGE, frame.request, nbytes=self.allocator.size - HEADER_BYTES))
        elif frame.deadline <= time.time():
            caller.reply(SidecarFrame(Verb.LATE, frame.request))
        elif self._queue or not self._try_grant(caller, frame):
            self._enqueue_waiter(caller, frame)

    def _try_grant(self, caller: Caller, frame: SidecarFrame) -> bool:
        deadline, due = self._cap_deadline(frame.deadline)
        lease = self.ledger.grant(caller.owner, frame.text, frame.nbytes, frame.readers, deadline)
        while lease is None:
            self.backing.extend_for(frame.nbytes + HEADER_BYTES)
            # Unused memory first, then spares, then retained blocks, the oldest first.
            if self.backing.busy or self.spares.recall() or not self.ledger.reclaim_oldest():
                return False
            lease = self.ledger.grant(caller.owner, frame.text, frame.nbytes, frame.readers, deadline)
        self._agenda.set_due(lease, due)
        block, generation, key = lease.id, lease.generation, self._key_of(lease)
        caller.reply(SidecarFrame(Verb.GRANTED, frame.request, 0, block, generation, key, lease.offset))
        return True

    def _key_of(self, lease: BlockLease) -> int:
        return 0 if self._sends is None else self._sends.key_of(lease)

    def _handle_request_spares(self, caller: Caller, frame: SidecarFrame) -> None:
        self.spares.grant(caller, frame, self._key_of, full=bool(self._queue))

    def _handle_use_spare(self, caller: Caller, frame: SidecarFrame) -> None:
        deadline, due = self._cap_deadline(frame.deadline)
        self.spares.use(caller, frame, deadline, due)

    def _handle_discard(self, caller: Caller, frame: SidecarFrame) -> None:
        self.ledger.discard(caller.owner, frame.block, frame.generation)
        self.spares.check_recall()

    def _enqueue_waiter(self, caller: Caller, frame: SidecarFrame) -> None:
        waiter = Waiter(caller, frame, self._loop.time() + min(frame.wait, self.settings.max_wait))
        # While memory is being freed or allocated, even a request without patience is queued.
        if (frame.wait <= 0 and not self._is_growing) or len(self._queue) >= self.settings.max_waiting:
            self._refuse_waiter(waiter)
            return
        self._queue.append(waiter)
        if frame.wait > 0:
            self._agenda.set_due(waiter, waiter.patience)

    @property
    def _is_growing(self) -> bool:
        """True while memory is about to become free: pages, or spares that were recalled."""
        return self.backing.busy or self.spares.recalling

    def _refuse_waiter(self, waiter: Waiter) -> None:
        self.refused += 1
        space, frame = self.allocator, waiter.frame
        largest = max(space.largest_hole - HEADER_BYTES, 0)
        reason = self.backing.refusal_reason(frame.nbytes + HEADER_BYTES)
        waiter.caller.reply(
            SidecarFrame(Verb.FULL, frame.request, nbytes=space.free_bytes, offset=largest, text=reason)
        )

    def _handle_extend(self, caller: Caller, frame: SidecarFrame) -> None:
        deadline, due = self._cap_deadline(frame.deadline)
        lease = self.ledger.extend(frame.block, frame.generation, deadline)
        if lease is not None:
            self._agenda.set_due(lease, due)

    def _handle_release(self, caller: Caller, frame: SidecarFrame) -> None:
        if self._pulls is not None:
            self._pulls.on_release(caller.owner, frame.block)
        self.ledger.release(caller.owner, frame.block, frame.generation)

    def _handle_pull(self, caller: Caller, frame: SidecarFrame) -> None:
        text = self._texts.pop((caller, frame.request), b"") + frame.text
        if frame.nbytes + len(text) > _MAX_TEXT_BYTES:
            raise ProtocolError(
                f"a request has {frame.nbytes + len(text)} bytes; at most {_MAX_TEXT_BYTES} are accepted"
            )
        if frame.nbytes:
            self._texts[caller, frame.request] = text
        elif self._pulls is None:
            raise ProtocolError("this node is not connected to others: set OMNIBUS_SIDECAR_HOST")
        elif frame.verb == Verb.PULL:
            self._pulls.pull(caller, frame.request, decode_pull(text))
        else:
            self._pulls.decline(decode_pull(text))

    def _handle_end(self, caller: Caller, frame: SidecarFrame) -> None:
        self._end_invocation(caller.owner, frame.text)

    def end_invocation(self, invocation: str) -> None:
        """End an invocation of another node's gateway: its blocks are free when no client has them open."""
        self._end_invocation(_NOBODY, invocation.encode())
        self.admit_waiters()

    def _end_invocation(self, owner: BlockOwner, tag: bytes) -> None:
        self._dismiss_waiters(lambda waiter: waiter.frame.text == tag)
        if self._pulls is not None:
            self._pulls.end_invocation(tag.decode(errors="replace"))
        self.ledger.end_invocation(owner, tag)
        self.spares.note_end(owner, tag)

    def _handle_cancel(self, caller: Caller, frame: SidecarFrame) -> None:
        self._dismiss_waiters(lambda waiter: waiter.caller is caller and waiter.frame.request == frame.request)
        if self._pulls is not None:
            self._pulls.withdraw_request(caller, frame.request)

    def _dismiss_waiters(self, goes: Callable[[Waiter], bool]) -> None:
        for waiter in [waiter for waiter in self._queue if goes(waiter)]:
            self._queue.remove(waiter)
            waiter.due = inf
            waiter.caller.reply(SidecarFrame(Verb.ENDED, waiter.frame.request))

    def _reply_json(self, caller: Caller, frame: SidecarFrame, body: object) -> None:
        caller.reply_bytes(encode_text(frame.request, msgspec.json.encode(body)))

    def _cap_deadline(self, deadline: float) -> tuple[float, float]:
        """Return the granted deadline, and the same time on the loop's clock."""
        now = time.time()
        deadline = min(deadline, now + self.settings.max_lease)
        return deadline, self._loop.time() + deadline - now

    def _start_grace(self, lease: BlockLease) -> None:
        self._stop_transfers(lease)
        if lease.is_open:
            self._agenda.set_due(lease, self._loop.time() + self.settings.grace)

    def _stop_transfers(self, lease: BlockLease) -> bool:
        """End transfers of ``lease`` between nodes. Returns True if there are any."""
        if self._sends is None or self._pulls is None:
            return False
        sending, writing = self._sends.stop_sending(lease), self._pulls.on_condemned(lease)
        return sending or writing

    def _on_due(self, item: BlockLease | Waiter) -> None:
        if isinstance(item, Waiter):
            self._refuse_expired_waiters()
        elif item.condemned and self._stop_transfers(item):
            self._start_grace(item)  # its bytes are still moving: do not grant the memory again yet
        elif item.condemned or item.spare:
            self.ledger.force_free(item)
        else:
            self.ledger.expire(item)
        self.admit_waiters()

    def _on_backing_changed(self) -> None:
        """Serve waiting requests after memory was added, or could not be."""
        self.admit_waiters()
        self._refuse_expired_waiters()
        self.admit_waiters()

    def _refuse_expired_waiters(self) -> None:
        """Refuse requests out of patience, unless memory is about to be free."""
        if self._is_growing:
            return
        now = self._loop.time()
        for waiter in [waiter for waiter in self._queue if waiter.patience <= now]:
            self._queue.remove(waiter)
            waiter.due = inf
            self._refuse_waiter(waiter)
