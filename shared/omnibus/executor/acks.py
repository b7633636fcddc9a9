"""Confirmations of accepted work, batched: one frame per gateway and interval."""

import asyncio

from omnibus.bus import messages
from omnibus.bus.coalescer import Outbox
from omnibus.bus.messages import Accepted, Hop
from omnibus.graph import Invocation

ACK_DELAY_SECONDS = 0.2  # longest delay until the gateway learns that an invocation was accepted
#: The same for one that resumes an earlier attempt: its client has waited for long enough.
RESUMED_ACK_DELAY_SECONDS = 0.01


class Confirmations:
    """Collects ``accepted`` messages and times of finished nodes until the interval ends."""

    def __init__(self, executor: str, outbox: Outbox) -> None:
        self._executor = executor
        self._outbox = outbox
        self._taken: dict[str, tuple[Invocation, list[bytes]]] = {}
        self._records: dict[str, list[bytes]] = {}  # by reply subject, chunks in order
        self._timer: asyncio.TimerHandle | None = None
        self._timer_seconds = 0.0  # the delay that it was started with

    def add_retained_chunk(self, invocation: Invocation, chunk: bytes) -> None:
        """Queue ``chunk`` for the gateway, which retains it; it was sent to another node. Chunks keep their order."""
        self._records.setdefault(invocation.reply, []).append(chunk)
        self._start_timer(ACK_DELAY_SECONDS)

    def add_accepted(self, invocation: Invocation) -> None:
        """Queue the confirmation that this executor works on ``invocation``."""
        self._taken[invocation.id] = (invocation, [])
        self._start_timer(RESUMED_ACK_DELAY_SECONDS if invocation.resumes else ACK_DELAY_SECONDS)

    def _start_timer(self, seconds: float) -> None:
        if self._timer is not None:
            if seconds >= self._timer_seconds:  # as nearly always: no need to read the clock
                return
            self._timer.cancel()
        self._timer_seconds = seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self.send_pending)

    def add_finished_node(self, invocation: Invocation, hop: Hop) -> None:
        """Queue the times of a finished node; they also travel with its outputs."""
        pending = self._taken.get(invocation.id)
        if pending is not None:
            pending[1].append(messages.encode(hop))
        else:
            self._outbox.send(invocation.reply, messages.encode(hop), lazy=True)

    def discard_accepted(self, invocation: str) -> None:
        """Drop the confirmation: the gateway has this executor's results, which imply it."""
        self._taken.pop(invocation, None)

    def send_pending(self) -> None:
        """Send everything that is queued now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._taken = self._taken, {}
        for invocation, extra_messages in pending.values():
            acceptance = Accepted(invocation.id, self._executor, invocation.attempt)
            for message in (messages.encode(acceptance), *extra_messages):
                self._outbox.send(invocation.reply, message)
        records, self._records = self._records, {}
        for subject, chunks in records.items():
            for chunk in chunks:
                self._outbox.send(subject, chunk)
