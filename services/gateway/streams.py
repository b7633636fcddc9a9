"""Results as the app sees them: streams that survive a change of executor.

When an invocation moves to another executor it runs again from the start. Seeds make it produce the
same chunks, so a stream skips what the client already has and checks that it is the same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import numpy as np

from omnibus.bus.messages import Chunk
from omnibus.errors import OmnibusError, SequenceGap, StageFailed
from omnibus.tensors.handle import Handle
from omnibus.tensors.item import Item

#: Reads a handle's tensor and gives the memory back.
Fetch = Callable[[Handle], np.ndarray]


class ResultStream:
    """One output of one node, as it arrives. ``origin`` lets replay verify where it is passed."""

    def __init__(self, node: int, output: str, fetch: Fetch) -> None:
        self.origin = (node, output)
        self.ended = False
        self.notify: Callable[[], None] | None = None
        self._fetch = fetch
        self._ready: list[Item] = []
        self._failure: OmnibusError | None = None
        self._expected = 0
        self._seen: list[dict] = []  # data of chunks without arrays, for the check after a move
        self._samples = 0  # array rows delivered in all attempts together
        self._skip = 0  # array rows still to be skipped in this attempt

    def feed(self, chunk: Chunk) -> None:
        """Take a chunk of the current attempt. Raises ``SequenceGap`` when one before it was lost."""
        if self.ended:
            return
        if chunk.seq != self._expected:
            raise SequenceGap(f"{chunk.output} of node {chunk.node}: chunk {chunk.seq}, expected {self._expected}")
        self._expected += 1
        if chunk.handle is not None:
            self._take_rows(chunk)
        elif chunk.seq < len(self._seen):
            self._compare(chunk)
        else:
            self._seen.append(chunk.data)
            if not chunk.empty:
                self._ready.append(Item(chunk.data))
        self.ended = self.ended or chunk.last
        self._wake()

    def _take_rows(self, chunk: Chunk) -> None:
        array = self._fetch(chunk.handle)  # type: ignore[arg-type]
        dropped = min(self._skip, len(array))
        self._skip -= dropped
        if chunk.seq >= len(self._seen):
            self._seen.append({})
        if len(array) > dropped:
            self._samples += len(array) - dropped
            self._ready.append(Item(chunk.data, array[dropped:]))

    def _compare(self, chunk: Chunk) -> None:
        before = self._seen[chunk.seq]
        if before and chunk.data != before:
            self.fail(StageFailed("another executor continued differently, so the answer cannot be resumed: ask again"))

    def restart(self) -> None:
        """The invocation begins again elsewhere."""
        self._expected = 0
        self._skip = self._samples

    def fail(self, error: OmnibusError) -> None:
        self._failure = error
        self.ended = True
        self._wake()

    def take(self) -> list[Item]:
        """Everything that is ready. Raises the failure once all before it was taken."""
        items = self._ready
        if items:
            self._ready = []
        elif self._failure is not None:
            raise self._failure
        return items

    @property
    def exhausted(self) -> bool:
        return self.ended and not self._ready and self._failure is None

    def _wake(self) -> None:
        if self.notify is not None:
            self.notify()


async def merge(streams: Mapping[str, ResultStream]) -> AsyncIterator[list[tuple[str, Item]]]:
    """Chunks of several streams in turn: all that is ready at once, then the next lot."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    for stream in streams.values():
        stream.notify = wake
    left = dict(streams)
    while left:
        batch = [(name, item) for name, stream in left.items() for item in stream.take()]
        if any(stream.ended for stream in left.values()):
            left = {name: stream for name, stream in left.items() if not stream.exhausted}
        if batch:
            yield batch
        elif left:
            await waiter
            waiter = loop.create_future()
