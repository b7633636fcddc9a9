"""Inputs of a job that come from other nodes: ordered, gap-free, bounded in time."""

import asyncio
import time
from collections import deque
from typing import NamedTuple

from omnibus.errors import OmnibusError, SequenceGap
from omnibus.executor.runner import Item
from omnibus.tensors.handle import Handle


class ChannelChunk(NamedTuple):
    """A chunk as it arrived: from the bus with a handle, or from this process with its array."""

    seq: int
    item: Item
    handle: Handle | None = None
    rows: tuple[int, int] | None = None
    last: bool = False
    empty: bool = False


class Channel:
    """Chunks of one output of one producer, in order."""

    __slots__ = ("_arrived", "_closed", "_expected", "_failure", "_key", "_task", "_waiter", "began")

    def __init__(self, task: str, key: tuple[int, str]) -> None:
        self._task = task
        self._key = key
        self.began = 0.0  # arrival of the first chunk, Unix seconds
        self._arrived: deque[ChannelChunk] = deque()
        self._expected = 0
        self._closed = False
        self._failure: OmnibusError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def add_chunk(self, piece: ChannelChunk) -> None:
        """Add a chunk. A repeated end is harmless; a gap fails the consumer."""
        if self._closed:
            return
        if piece.seq != self._expected:
            node, output = self._key
            gap = f"chunk {piece.seq} arrived instead of {self._expected}"
            self.fail(SequenceGap(f"{self._task}: {output} of node {node}: {gap}"))
            return
        if not self._expected:
            self.began = time.time()
        self._expected += 1
        self._closed = piece.last
        self._arrived.append(piece)
        self._wake_reader()

    def fail(self, error: OmnibusError) -> None:
        self._failure = error
        self._closed = True
        self._wake_reader()

    async def next_chunk(self) -> ChannelChunk | None:
        """Return the next chunk, or None after the last one."""
        while not self._arrived:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._arrived.popleft()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
