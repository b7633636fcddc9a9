"""Results as the app sees them: streams that survive a change of executor.

When an invocation moves to another executor it runs again from the start. Seeds make it produce the
same answer, so a stream skips what the client already has and checks that it is the same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from omnibus.bus.messages import Chunk
from omnibus.errors import OmnibusError, SequenceGap, StageFailed
from omnibus.tensors.handle import Handle
from omnibus.tensors.item import Item

#: Reads a handle's tensor and gives the memory back.
Fetch = Callable[[Handle], np.ndarray]


class _Told:
    """Strings and lists that grow chunk by chunk, by their key. A later attempt tells them again, in chunks
    of its own: how many tokens share a chunk depends on how busy the executor is."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Any]] = {}
        self.again: dict[str, Any] = {}  # what this attempt still has to repeat

    def restart(self) -> None:
        self.again = {key: _joined(told) for key, told in self._pieces.items()}
        self._pieces = {key: [told] for key, told in self.again.items()}

    def new(self, data: dict[str, Any]) -> dict[str, Any]:
        """What ``data`` adds. Raises ``StageFailed`` when it differs from what was told before."""
        fresh = {key: self._rest(key, value) for key, value in data.items()} if self.again else data
        for key, value in fresh.items():
            if type(value) in _GROW and value:
                self._pieces.setdefault(key, []).append(value)
        return fresh

    def _rest(self, key: str, value: Any) -> Any:
        told = self.again.get(key)
        if not told or type(value) not in _GROW:
            return value
        if told[: len(value)] != value[: len(told)]:
            raise StageFailed("another executor continued differently, so the answer cannot be resumed: ask again")
        self.again[key] = told[len(value) :]
        return value[len(told) :]


_GROW = (str, list)


def _joined(pieces: list[Any]) -> Any:
    return "".join(pieces) if type(pieces[0]) is str else list(chain.from_iterable(pieces))


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
        self._told = _Told()
        self._samples = 0  # array rows delivered in all attempts together
        self._skip = 0  # array rows still to be skipped in this attempt

    def feed(self, chunk: Chunk) -> None:
        """Take a chunk of the current attempt. Raises ``SequenceGap`` when one before it was lost."""
        if self.ended:
            return
        if chunk.seq != self._expected:
            raise SequenceGap(f"{chunk.output} of node {chunk.node}: chunk {chunk.seq}, expected {self._expected}")
        self._expected += 1
        try:
            self._take(chunk)
        except StageFailed as error:
            self.fail(error)
        self.ended = self.ended or chunk.last
        self._wake()

    def _take(self, chunk: Chunk) -> None:
        if chunk.handle is not None:
            self._take_rows(chunk)
        elif not chunk.empty:
            fresh = self._told.new(chunk.data)
            if fresh is chunk.data or any(fresh.values()):
                self._ready.append(Item(fresh))
        if chunk.last and (self._skip or any(self._told.again.values())):
            raise StageFailed("another executor ended the answer earlier, so it cannot be resumed: ask again")

    def _take_rows(self, chunk: Chunk) -> None:
        array = self._fetch(chunk.handle)  # type: ignore[arg-type]
        dropped = min(self._skip, len(array))
        self._skip -= dropped
        if len(array) > dropped:
            self._samples += len(array) - dropped
            self._ready.append(Item(chunk.data, array[dropped:]))

    def restart(self) -> None:
        """The invocation begins again elsewhere."""
        self._expected = 0
        self._skip = self._samples
        self._told.restart()

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
