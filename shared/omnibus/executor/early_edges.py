"""Edges that arrive before their invocation: an executor may be faster than the gateway."""

import logging
import time

from omnibus.bus.messages import Chunk, Hop

log = logging.getLogger(__name__)

EDGE_WAIT_SECONDS = 10.0  # longest time that an edge waits for its invocation
MAX_WAITING_INVOCATIONS = 4096  # most invocations with waiting edges


class EarlyMessages:
    """Waiting messages by invocation; its length is the number of invocations."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, list[Chunk | Hop]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add_message(self, message: Chunk | Hop) -> None:
        if message.inv not in self._waiting and len(self._waiting) >= MAX_WAITING_INVOCATIONS:
            log.warning("dropped an edge of %s: too many edges wait for their invocation", message.inv)
            return
        self._waiting.setdefault(message.inv, (time.monotonic(), []))[1].append(message)

    def take_messages(self, invocation: str) -> list[Chunk | Hop]:
        """Remove and return the messages of ``invocation``, in order."""
        _, messages = self._waiting.pop(invocation, (0.0, []))
        return messages

    def drop_expired(self) -> None:
        """Drop messages that have waited for too long."""
        oldest = time.monotonic() - EDGE_WAIT_SECONDS
        for invocation in [key for key, (arrival_time, _) in self._waiting.items() if arrival_time < oldest]:
            del self._waiting[invocation]
