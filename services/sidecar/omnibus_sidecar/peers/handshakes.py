"""Connections in their handshake: the limits, and which one is evicted for the next."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Most concurrent handshakes in total and from one address: strangers cannot occupy more.
MAX_HANDSHAKES, MAX_ADDRESS_HANDSHAKES = 64, 16


class Handshakes:
    """Tasks that greet other nodes, by the peer's address, oldest first.

    A handshake takes milliseconds, so at a limit the oldest task is cancelled. It is of the same address as the new
    connection if that address is at its limit, else of the address with the most. A valid handshake therefore succeeds
    even with many silent connections. ``refusal_counts`` counts the cancelled ones.
    """

    def __init__(self, refusal_counts: Counter[str]) -> None:
        self._refused = refusal_counts
        self._addresses: dict[asyncio.Task[Any], str] = {}

    @contextmanager
    def admit(self, address: str, task: asyncio.Task[Any]) -> Iterator[None]:
        """Count ``task`` from ``address`` while the block lasts."""
        counts = Counter(self._addresses.values())
        if counts[address] >= MAX_ADDRESS_HANDSHAKES:
            self._evict_oldest(address)
        elif counts.total() >= MAX_HANDSHAKES:
            self._evict_oldest(counts.most_common(1)[0][0])
        self._addresses[task] = address
        try:
            yield
        finally:
            self._addresses.pop(task, None)

    def _evict_oldest(self, address: str) -> None:
        task = next(each for each, where in self._addresses.items() if where == address)
        del self._addresses[task]
        self._refused["busy"] += 1
        task.cancel()
