"""The sidecar's front desk: what each verb does to the ledger, and the queue for memory."""

import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

import msgspec

from omnibus.errors import ProtocolError
from omnibus.tensors.allocator import Allocator
from omnibus.tensors.arena import HEADER_BYTES, Arena
from omnibus.tensors.ledger import BlockLease, BlockOwner, Ledger
from omnibus.tensors.protocol import SidecarFrame, Verb, encode_text
from services.sidecar.backing import Backing
from services.sidecar.settings import SidecarConfig
from services.sidecar.timer_queue import Agenda

#: Most leases that one LEDGER answer lists.
MAX_LISTED = 1000


class Caller(Protocol):
    """The client's side of a connection, as the desk sees it."""

    owner: BlockOwner

    def reply(self, frame: SidecarFrame) -> None: ...

    def reply_bytes(self, frames: bytes) -> None: ...


class Waiter:
    """An allocation that waits for memory, by itself until ``patience``, in the loop's seconds."""

    __slots__ = ("caller", "due", "frame", "patience")

    def __init__(self, caller: Caller, frame: SidecarFrame, patience: float) -> None:
        self.caller = caller
        self.frame = frame
        self.patience = patience
        self.due = inf


class Desk:
    """Serves the verbs of all clients, in the order in which they arrive."""

    def __init__(self, settings: SidecarConfig, arena: Arena, boot: int, loop: AbstractEventLoop) -> None:
        self.settings = settings
        self.allocator = Allocator(arena.size, backed=0)
        self.backing = Backing(arena, self.allocator, loop, self._on_backing_changed)
        self.ledger = Ledger(self.allocator, arena, boot, HEADER_BYTES, self._start_grace)
        self.ledger.clear_on_free = settings.clear_on_free
        self.refused = 0
        self._open = True
        self._loop = loop
        self._agenda: Agenda[BlockLease | Waiter] = Agenda(loop, self._on_due)
        self._queue: deque[Waiter] = deque()
        self._verbs: dict[int, Callable[[Caller, SidecarFrame], None]] = {
            Verb.ALLOCATE: self._handle_allocate,
            Verb.SEAL: lambda caller, frame: self.ledger.seal(caller.owner, frame.block, frame.generation),
            Verb.HOLD: lambda caller, frame: self.ledger.hold(caller.owner, frame.block, frame.generation),
            Verb.RELEASE: lambda caller, frame: self.ledger.release(caller.owner, frame.block, frame.generation),
            Verb.DISCARD: lambda caller, frame: self.ledger.discard(caller.owner, frame.block, frame.generation),
            Verb.EXTEND: self._handle_extend,
            Verb.RETAIN: lambda caller, frame: self.ledger.retain(frame.block, frame.generation),
            Verb.DROP: lambda caller, frame: self.ledger.drop(frame.block, frame.generation),
            Verb.END: self._handle_end,
            Verb.CANCEL: self._handle_cancel,
            Verb.STATS: lambda caller, frame: self._reply_json(caller, frame, self.counters()),
            Verb.LEDGER: lambda caller, frame: self._reply_json(caller, frame, self.ledger.list_leases(MAX_LISTED)),
        }

    def serve_frame(self, caller: Caller, frame: SidecarFrame) -> None:
        """Do what ``frame`` asks. Raises ``ProtocolError`` for a verb that no client may send."""
        verb = self._verbs.get(frame.verb)
        if verb is None:
            raise ProtocolError(f"verb {frame.verb} is not a request of a connected client")
        verb(caller, frame)

    def admit_waiters(self) -> None:
        """Give freed memory to those who wait, strictly first come first served."""
        while self._queue and self._try_grant(self._queue[0].caller, self._queue[0].frame):
            self._queue.popleft().due = inf

    def remove_client(self, caller: Caller) -> None:
        """The client's socket is closed: it no longer waits, writes or reads."""
        if not self._open:
            return
        self._dismiss_waiters(lambda waiter: waiter.caller is caller)
        self.ledger.remove_owner(caller.owner)
        self.admit_waiters()

    def close(self) -> None:
        """Stop the clock. Nothing is served afterwards: the arena goes away."""
        self._open = False
        self._agenda.close()
        self._queue.clear()

    def counters(self) -> dict[str, Any]:
        """Running counters. ``freed_total`` is by reason; ``forced_total`` above zero means that a client
        kept a cancelled block open for longer than the grace.
        """
        space = self.allocator
        return {
            "arena_bytes": space.size,
            "used_bytes": space.used,
            "free_bytes": space.free_bytes,
            "peak_bytes": space.peak,
            "touched_bytes": space.touched,
            "backed_bytes": space.backed,
            "largest_hole_bytes": space.largest_hole,
            "holes": space.holes,
            "blocks": space.blocks,
            "condemned_blocks": self.ledger.condemned,
            "retained_bytes": self.ledger.idle_bytes,
            "waiting": len(self._queue),
            "granted_total": self.ledger.granted,
            "refused_total": self.refused,
            "stale_total": self.ledger.stale,
            "expired_total": self.ledger.freed["expired"],
            "forced_total": self.ledger.freed["forced"],
            "freed_total": dict(self.ledger.freed),
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
            # Unused memory first; then what is only retained makes room, the oldest first.
            if self.backing.busy or not self.ledger.reclaim_oldest():
                return False
            lease = self.ledger.grant(caller.owner, frame.text, frame.nbytes, frame.readers, deadline)
        self._agenda.set_due(lease, due)
        caller.reply(
            SidecarFrame(Verb.GRANTED, frame.request, block=lease.id, generation=lease.generation, offset=lease.offset)
        )
        return True

    def _enqueue_waiter(self, caller: Caller, frame: SidecarFrame) -> None:
        waiter = Waiter(caller, frame, self._loop.time() + min(frame.wait, self.settings.max_wait))
        # While pages are on their way, also one that would not wait for others does: memory is free.
        if (frame.wait <= 0 and not self.backing.busy) or len(self._queue) >= self.settings.max_waiting:
            self._refuse_waiter(waiter)
            return
        self._queue.append(waiter)
        if frame.wait > 0:
            self._agenda.set_due(waiter, waiter.patience)

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

    def _handle_end(self, caller: Caller, frame: SidecarFrame) -> None:
        self._dismiss_waiters(lambda waiter: waiter.frame.text == frame.text)
        self.ledger.end_invocation(caller.owner, frame.text)

    def _handle_cancel(self, caller: Caller, frame: SidecarFrame) -> None:
        self._dismiss_waiters(lambda waiter: waiter.caller is caller and waiter.frame.request == frame.request)

    def _dismiss_waiters(self, goes: Callable[[Waiter], bool]) -> None:
        for waiter in [waiter for waiter in self._queue if goes(waiter)]:
            self._queue.remove(waiter)
            waiter.due = inf
            waiter.caller.reply(SidecarFrame(Verb.ENDED, waiter.frame.request))

    def _reply_json(self, caller: Caller, frame: SidecarFrame, body: object) -> None:
        caller.reply_bytes(encode_text(frame.request, msgspec.json.encode(body)))

    def _cap_deadline(self, deadline: float) -> tuple[float, float]:
        """The deadline that is granted, and the same moment on the loop's clock."""
        now = time.time()
        deadline = min(deadline, now + self.settings.max_lease)
        return deadline, self._loop.time() + deadline - now

    def _start_grace(self, lease: BlockLease) -> None:
        self._agenda.set_due(lease, self._loop.time() + self.settings.grace)

    def _on_due(self, item: BlockLease | Waiter) -> None:
        if isinstance(item, Waiter):
            self._refuse_expired_waiters()
        elif item.condemned:
            self.ledger.force_free(item)
        else:
            self.ledger.expire(item)
        self.admit_waiters()

    def _on_backing_changed(self) -> None:
        """There are more pages, or there are none."""
        self.admit_waiters()
        self._refuse_expired_waiters()
        self.admit_waiters()

    def _refuse_expired_waiters(self) -> None:
        """Refuse who has waited long enough, but not while pages are on their way."""
        if self.backing.busy:
            return
        now = self._loop.time()
        for waiter in [waiter for waiter in self._queue if waiter.patience <= now]:
            self._queue.remove(waiter)
            waiter.due = inf
            self._refuse_waiter(waiter)
