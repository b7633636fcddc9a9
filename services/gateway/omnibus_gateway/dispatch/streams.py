"""Streams of results for the app, which survive a change of executor.

A node that moves to another executor runs again, from the start or from a position that it reports. Seeds make it
produce the same answer. So a stream skips the part that the client already received and checks that it is the same. A
digest of its content, independent of chunks, compares replays.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from omnibus.bus.messages import Chunk
from omnibus.errors import OmnibusError, SequenceGap, StageFailed
from omnibus.structured.calls import CALL
from omnibus.task.result import KEY
from omnibus.tensors.handle import RESUMED_AT, Handle, Item, JoinedText, unpack_tensor

#: Fields of the closing chunk of an answer.
_CLOSING = frozenset({"finish_reason", "usage"})
_encode = msgspec.json.Encoder(order="sorted").encode


class Fingerprint:
    """Digest that joins texts and lists by key, and arrays; other values count per chunk."""

    def __init__(self) -> None:
        self._texts: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}
        self._chunks: list[dict[str, Any]] = []
        self._arrays = hashlib.sha256()
        self._nbytes = 0
        #: Sizes of the content: characters of texts by key, tool calls, arrays, their rows, and the shape of a row.
        self.characters: dict[str, int] = {}
        self.calls = 0
        self.arrays = self.rows = 0
        self.row_shape: tuple[int, ...] = ()

    def add_item(self, item: Item) -> None:
        if item.array is not None:
            self._add_array(item.array)
            return
        rest: dict[str, Any] = {}
        for key, value in item.data.items():
            if isinstance(value, str | list) and not value:
                continue
            if isinstance(value, str):
                self._texts.setdefault(key, hashlib.sha256()).update(value.encode())
                self.characters[key] = self.characters.get(key, 0) + len(value)
                self.calls += value.count(CALL) if key == "calls" else 0
            elif isinstance(value, list):
                self._lists.setdefault(key, []).extend(value)
            else:
                rest[key] = value
        if rest:
            self._chunks.append(rest)

    def _add_array(self, array: np.ndarray) -> None:
        if not array.nbytes:
            return
        if not self._nbytes:  # a rerun may cut the rows differently, but not the shape of a row
            self._arrays.update(f"{array.dtype.str}{array.shape[1:]}".encode())
        self._arrays.update(array.tobytes())
        self._nbytes += array.nbytes
        self.arrays += 1
        self.rows += len(array) if array.ndim else 1
        self.row_shape = array.shape[1:]

    @property
    def lengths(self) -> dict[str, int]:
        """Numbers of elements of the lists, by key."""
        return {key: len(elements) for key, elements in self._lists.items()}

    @property
    def values(self) -> int:
        """Number of chunks with other values, such as numbers or objects."""
        return len(self._chunks)

    @property
    def has_content(self) -> bool:
        """True if anything but the closing chunk of an answer arrived."""
        content_keys = self._texts.keys() - _CLOSING or self._lists or self._nbytes
        return bool(content_keys or any(each.keys() - _CLOSING for each in self._chunks))

    def hexdigest(self, *, cached: bool = False) -> str:
        """Return 64 hex digits, or the empty string without content.

        Cached prompt tokens do not count: they depend on the run, not on its answer. With ``cached`` they count, as in
        records of earlier builds.
        """
        if not (self._texts or self._lists or self._chunks or self._nbytes):
            return ""
        texts = {key: text.hexdigest() for key, text in self._texts.items()}
        chunks = self._chunks if cached else [_without_cached(chunk) for chunk in self._chunks]
        return hashlib.sha256(_encode([texts, self._lists, chunks, self._arrays.hexdigest()])).hexdigest()


def _without_cached(chunk: dict[str, Any]) -> dict[str, Any]:
    usage = chunk.get("usage")
    if not isinstance(usage, dict) or "cached_tokens" not in usage:
        return chunk
    return {**chunk, "usage": {name: count for name, count in usage.items() if name != "cached_tokens"}}


#: Most numbers of a list that a node can resume from: they travel in its message.
MAX_RESUMED_VALUES = 4096

#: Reads a handle's tensor and releases the memory.
Fetch = Callable[[Handle], np.ndarray]


class _RepeatableOutput:
    """Strings and lists that grow chunk by chunk, by key and type.

    A later attempt repeats them in different chunks: the number of tokens per chunk depends on the executor's load.
    """

    def __init__(self) -> None:
        self._pieces: dict[_Key, list[Any]] = {}
        self._whole: list[dict[str, Any]] = []  # chunks of plain values, which are never cut differently
        self._repeated = 0
        self.again: dict[_Key, Any] = {}  # the rest that this attempt must repeat

    def restart(self) -> None:
        self.again = {key: _join_values(pieces) for key, pieces in self._pieces.items()}
        self._pieces = {key: [joined_value] for key, joined_value in self.again.items()}
        self._repeated = 0

    def number_lists(self) -> dict[str, list[int]]:
        """Return the first ``MAX_RESUMED_VALUES`` elements of each list of whole numbers."""
        lists = {key: _join_values(pieces) for (key, type_), pieces in self._pieces.items() if type_ is list and pieces}
        return {
            key: all_[:MAX_RESUMED_VALUES] for key, all_ in lists.items() if all(type(each) is int for each in all_)
        }

    @property
    def is_missing(self) -> bool:
        """True if this attempt has not repeated all earlier output."""
        return any(self.again.values()) or self._repeated < len(self._whole)

    def skip_repeated(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the new part of ``data``. Raises ``StageFailed`` if it differs from earlier output."""
        if not self.again and KEY not in data and self._add_pieces(data):
            return data
        if type(data.get(KEY)) is list and len(data) == 1:
            return self._skip_repeated_chunk(data)  # a list that is a whole part
        grows = [key for key, value in data.items() if type(value) in _GROWING_TYPES]
        grown_keys = [key for key in grows if data[key]]
        if not grown_keys and data and (not grows or any(data.values())):
            return self._skip_repeated_chunk(data)
        fresh = {key: self._skip_repeated_value(key, value) for key, value in data.items()} if self.again else data
        if grown_keys and not any(fresh[key] for key in grown_keys):
            return {}  # repeated, with all other fields of the chunk
        for key in grown_keys:
            if fresh[key]:
                self._pieces.setdefault((key, type(data[key])), []).append(fresh[key])
        return fresh

    def _add_pieces(self, data: dict[str, Any]) -> bool:
        """Remember the text and lists of ``data``, which are new; returns True if there are any."""
        has_new = False
        for key, value in data.items():
            if value and type(value) in _GROWING_TYPES:
                has_new = True
                self._pieces.setdefault((key, type(value)), []).append(value)
        return has_new

    def _skip_repeated_chunk(self, data: dict[str, Any]) -> dict[str, Any]:
        """Skip a chunk without text or lists, which repeats unchanged."""
        self._repeated += 1
        if self._repeated > len(self._whole):
            self._whole.append(data)
            return data
        if self._whole[self._repeated - 1] != data:
            raise StageFailed(_DIVERGED_MESSAGE)
        return {}

    def _skip_repeated_value(self, key: str, value: Any) -> Any:
        known_value = self.again.get((key, type(value)))
        if not known_value or type(value) not in _GROWING_TYPES:
            return value
        if known_value[: len(value)] != value[: len(known_value)]:
            raise StageFailed(_DIVERGED_MESSAGE)
        self.again[key, type(value)] = known_value[len(value) :]
        return value[len(known_value) :]


_Key = tuple[str, type]
_GROWING_TYPES = (str, list)
_DIVERGED_MESSAGE = "another executor continued differently, so the answer cannot be resumed: retry the request"


def _join_values(pieces: list[Any]) -> Any:
    return "".join(pieces) if type(pieces[0]) is str else list(chain.from_iterable(pieces))


class ItemStream:
    """Items as they arrive, for one reader."""

    def __init__(self) -> None:
        self.ended = False
        self.notify: Callable[[], None] | None = None
        #: Receives each item on arrival, instead of a reader; ``notify`` is then called only at the end.
        self.consumer: Callable[[Item], None] | None = None
        self.first: Item | None = None  # for graphs that use it later
        self.began = 0.0  # when it arrived, Unix seconds
        self.fingerprint: Fingerprint | None = None  # of its recorded content
        self._ready: list[Item] = []
        self._failure: OmnibusError | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def add_item(self, item: Item) -> None:
        if self.first is None:
            self.first, self.began = item, time.time()
        if self.fingerprint is not None:
            self.fingerprint.add_item(item)
        if self.consumer is not None:
            self.consumer(item)
        else:
            self._ready.append(item)

    def consume_by(self, consumer: Callable[[Item], None]) -> None:
        """Pass the ready items to ``consumer``, and each later item on arrival."""
        self.consumer = consumer
        ready, self._ready = self._ready, []
        for item in ready:
            consumer(item)

    def end(self) -> None:
        self.ended = True
        self.wake_reader()

    def fail(self, error: OmnibusError) -> None:
        """End with ``error`` if the stream is incomplete; a complete stream ignores failures elsewhere."""
        if not self.ended:
            self._failure = error
            self.ended = True
            self.wake_reader()

    def wake_reader(self) -> None:
        """Wake the waiting reader after an arrival."""
        if self.notify is not None:
            self.notify()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def stop(self) -> None:
        """Stop reading."""

    def take_ready(self) -> list[Item]:
        """Return all ready items. Raises the failure once all items before it were taken."""
        items = self._ready
        if items:
            self._ready = []
        elif self._failure is not None:
            raise self._failure
        return items

    async def next_items(self) -> list[Item]:
        """Return all ready items, at least one; empty after the last."""
        while not (items := self.take_ready()):
            if self.ended:
                return []
            await self._wait_arrival()
        return items

    async def wait_first(self) -> Item:
        """Return the first item, even if already taken. Raises ``StageFailed`` if there is none."""
        while self.first is None:
            if self._failure is not None:
                raise self._failure
            if self.ended:
                raise StageFailed("an output that a later step needs ended without a value: retry the request")
            await self._wait_arrival()
        return self.first

    async def _wait_arrival(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    @property
    def has_ready(self) -> bool:
        """True if items are ready for a reader."""
        return bool(self._ready)

    @property
    def is_whole(self) -> bool:
        """True if all items arrived, whether or not they were read."""
        return self.ended and self._failure is None

    @property
    def is_exhausted(self) -> bool:
        """True if all items were read and the stream did not fail."""
        return self.ended and not self._ready and self._failure is None


class ResultStream(ItemStream):
    """One output of one node over all attempts of its invocation."""

    def __init__(self, node: int, output: str, fetch: Fetch) -> None:
        super().__init__()
        self.origin = (node, output)
        self._fetch = fetch
        self._expected = 0
        self.closing: dict[str, Any] = {}  # the data of the last chunk
        self.samples = 0  # array rows delivered in all attempts together
        self._told = _RepeatableOutput()
        self._skip = 0  # array rows that this attempt must still skip

    def feed_chunk(self, chunk: Chunk) -> None:
        """Handle a chunk of the current attempt. Raises ``SequenceGap`` if an earlier one was lost."""
        if self.ended:
            return
        if chunk.seq != self._expected:
            raise SequenceGap(f"{chunk.output} of node {chunk.node}: chunk {chunk.seq}, expected {self._expected}")
        self._expected += 1
        try:
            self._add_new(chunk)
        except StageFailed as error:
            self.fail(error)
        if chunk.last:
            self.ended, self.closing = True, chunk.data
        if self.ended or self.consumer is None:
            self.wake_reader()

    def _add_new(self, chunk: Chunk) -> None:
        if chunk.handle is not None or chunk.inline is not None:
            self._add_rows(chunk)
        elif not chunk.empty:
            fresh = self._told.skip_repeated(chunk.data)
            if fresh is chunk.data or any(fresh.values()):
                self.add_item(JoinedText(fresh, chunk.cuts) if chunk.cuts and fresh is chunk.data else Item(fresh))
        if chunk.last and (self._skip or self._told.is_missing):
            raise StageFailed("another executor ended the answer earlier, so it cannot be resumed: retry the request")

    def _add_rows(self, chunk: Chunk) -> None:
        if chunk.inline is not None:
            array = np.array(unpack_tensor(chunk.inline))
        else:
            array = self._fetch(chunk.handle)  # type: ignore[arg-type]
        data = chunk.data
        if RESUMED_AT in data:
            data = dict(data)
            self._skip = max(0, self.samples - data.pop(RESUMED_AT))
            if not len(array):
                return
        skip_count = min(self._skip, len(array))
        self._skip -= skip_count
        if len(array) > skip_count or not len(array):
            self.samples += len(array) - skip_count
            self.add_item(Item(data, array[skip_count:]))

    def restart(self) -> None:
        """Expect the output again, because the invocation restarts elsewhere."""
        self._expected = 0
        self._skip = self.samples
        self._told.restart()

    def progress(self) -> dict[str, Any]:
        """Return the client's progress, from which a node can resume.

        It consists of lists of numbers, and the number of rows of arrays.
        """
        state: dict[str, Any] = self._told.number_lists()
        return {**state, "rows": self.samples} if self.samples else state


#: Items that are ready together, with the names of their streams.
Batch = list[tuple[str, Item]]


async def merge_streams(
    streams: Mapping[str, ItemStream], add_batch: Callable[[Batch], object] = bool
) -> AsyncIterator[Batch]:
    """Yield the ready items of several streams, in turn; ``add_batch`` gets them before that."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake_merger() -> None:
        if not waiter.done():
            waiter.set_result(None)

    for stream in streams.values():
        stream.notify = wake_merger
    left = dict(streams)
    try:
        while left:
            batch = [(name, item) for name, stream in left.items() for item in stream.take_ready()]
            if any(stream.ended for stream in left.values()):
                left = {name: stream for name, stream in left.items() if not stream.is_exhausted}
            if batch:
                add_batch(batch)
                yield batch
            elif left:
                await waiter
                waiter = loop.create_future()
    finally:
        for stream in streams.values():
            stream.stop()
