"""Connections in their handshake: how many there may be, and which one makes room for the next."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Connections that may be in their handshake at the same time, and those of one address: strangers cannot take more.
MAX_HANDSHAKES, MAX_ADDRESS_HANDSHAKES = 64, 16


class Handshakes:
    """Tasks that greet other nodes, by the address that they came from, oldest first.

    A handshake takes milliseconds, so where there are too many the oldest one is cancelled: of the address that the new
    one comes from if that has too many, else of the one that has most. A right one goes through, however many are
    silent. ``refused`` counts those that were cancelled.
    """

    def __init__(self, refused: Counter[str]) -> None:
        self._refused = refused
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
