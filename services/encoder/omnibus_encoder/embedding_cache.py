"""Embeddings by content: each is computed once for all concurrent requests, and the latest are kept.

The cache keeps arrays of this process, not blocks of the arena. A block belongs to an invocation and its deadline, and
blocks kept here would be missing for requests. A hit costs one copy into the arena.

Keys of embeddings: a SHA-256 of all that an embedding depends on.

That is the digest of the file, the salt of those that share the result, and the encoder.

Parts of media that were encoded before: when an audio clip grows, only its end is new.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from omnibus.checkpoints.gguf_header import find_projectors, is_gguf
from omnibus.errors import StageUnavailable
from omnibus.metrics import ENCODER
from omnibus_models.contract import MediaEncoder, Prepared

P = TypeVar("P")

#: Bytes that an entry counts for in addition to its array.
ENTRY_OVERHEAD_BYTES = 1024


class EncoderResult(NamedTuple):
    """Output of an encoder for one item. All receivers share it, so neither part may be changed."""

    meta: dict[str, Any]
    embeds: np.ndarray


class _Flight(Generic[P]):
    """A computation in progress, and the number of waiting callers."""

    __slots__ = ("read", "task", "waiting")

    def __init__(self) -> None:
        self.task: asyncio.Task[EncoderResult]
        self.read = asyncio.Event()  # the bytes of the item are no longer needed
        self.waiting = 0


class EmbeddingCache(Generic[P]):
    """At most ``limit`` bytes of results of ``component``; the least recently used are evicted first.

    ``work`` computes a result from the value that ``read`` returned.
    """

    def __init__(self, limit: int, work: Callable[[P], Awaitable[EncoderResult]], component: str) -> None:
        self.limit = limit
        self.bytes = 0
        self._work = work
        self._component = component
        self._kept: OrderedDict[bytes, EncoderResult] = OrderedDict()
        self._flights: dict[bytes, _Flight[P]] = {}
        self._counts = dict.fromkeys(("hits", "misses", "coalesced", "evicted"), 0)

    async def find(self, key: bytes) -> EncoderResult | None:
        """Return the result of ``key`` if cached or being computed, else None.

        Raises as ``get`` does.
        """
        result, flight = self._kept.get(key), self._flights.get(key)
        if result is not None:
            self._kept.move_to_end(key)
            self._count_event("hits")
            return result
        if flight is not None:
            self._count_event("coalesced")
            return await self._await_flight(key, flight)
        return None

    def peek(self, key: bytes) -> EncoderResult | None:
        """Return the result of ``key`` if it is cached. Nothing is counted: on a miss the caller computes it."""
        result = self._kept.get(key)
        if result is not None:
            self._kept.move_to_end(key)
        return result

    def store(self, key: bytes, result: EncoderResult) -> None:
        """Keep ``result`` under ``key``, unless it is larger than the whole cache."""
        size = _result_bytes(result)
        if size > self.limit or key in self._kept:
            return
        result.embeds.setflags(write=False)
        self._kept[key] = result
        self.bytes += size
        while self.bytes > self.limit:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= _result_bytes(oldest)
            self._count_event("evicted")
        ENCODER.cache_gauge(self._component).set(self.bytes)

    async def get(self, key: bytes, read: Callable[[], Awaitable[P]]) -> EncoderResult:
        """Return the result of ``key``, computing it if necessary.

        ``read`` may use the caller's memory: ``get`` returns only after ``read`` has ended. If ``read`` or ``work``
        raises, every waiting caller receives the error, and nothing is kept.
        """
        result = await self.find(key)
        if result is not None:
            return result
        self._count_event("misses")
        flight = self._flights[key] = _Flight()
        flight.task = asyncio.get_running_loop().create_task(self._compute_result(key, flight, read))
        flight.task.add_done_callback(lambda _: self._end_flight(key, flight))  # also if cancelled before its start
        try:
            return await self._await_flight(key, flight)
        finally:
            await _wait_uncancelled(flight.read)

    async def close(self) -> None:
        """Stop all computations; callers that wait for them receive ``StageUnavailable``."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stats(self) -> dict[str, int]:
        """Return counts since the start, current items and bytes, and the limit."""
        return {**self._counts, "items": len(self._kept), "bytes": self.bytes, "limit": self.limit}

    async def _await_flight(self, key: bytes, flight: _Flight[P]) -> EncoderResult:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not flight.task.cancelled():
                raise
            raise StageUnavailable("the encoder was closed; send the request again") from None
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._flights.pop(key, None)  # later callers start a new computation
                flight.task.cancel()

    async def _compute_result(self, key: bytes, flight: _Flight[P], read: Callable[[], Awaitable[P]]) -> EncoderResult:
        try:
            try:
                item = await read()
            finally:
                flight.read.set()
            result = await self._work(item)
            result.embeds.setflags(write=False)
            self.store(key, result)
            return result
        finally:
            self._end_flight(key, flight)

    def _end_flight(self, key: bytes, flight: _Flight[P]) -> None:
        flight.read.set()
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _count_event(self, event: str) -> None:
        self._counts[event] += 1
        ENCODER.result_counter(self._component, event).inc()


def _result_bytes(result: EncoderResult) -> int:
    return int(result.embeds.nbytes) + ENTRY_OVERHEAD_BYTES


async def _wait_uncancelled(event: asyncio.Event) -> None:
    """Wait for ``event``, even when cancelled: a thread reads memory that the caller would release."""
    was_cancelled = False
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        raise asyncio.CancelledError


#: Larger files of a checkpoint count by size and time; smaller ones, such as configurations, by their content.
_MAX_HASHED_FILE_BYTES = 1 << 20


class EncoderIdentity:
    """Makes the keys of one encoder.

    Results are stored under digests of bytes that were read here. A digest in a request is only looked up: a wrong one
    finds the result of that digest, and never changes it.
    """

    def __init__(self, component: str, family: str, checkpoint: Path, device: str, dtype: str) -> None:
        self._begun = sha256()
        for part in (family, component, device, dtype, *_checkpoint_revision(checkpoint)):
            _hash_part(self._begun, part.encode())

    def item_key(self, content: bytes, modality: str, salt: str, alone: bool = True) -> bytes:
        """Return 32 bytes, equal for media of equal ``content``, modality, salt and ``alone``.

        ``content`` is the SHA-256 of the media's bytes.
        """
        hasher = self._begun.copy()
        for part in (modality, salt, str(alone)):
            _hash_part(hasher, part.encode())
        hasher.update(content)
        return hasher.digest()


def _hash_part(hasher: Any, part: bytes) -> None:
    """Hash ``part`` after its length.

    Different lists of parts then never have the same bytes.
    """
    hasher.update(len(part).to_bytes(8, "big"))
    hasher.update(part)


def _checkpoint_revision(checkpoint: Path) -> Iterable[str]:
    """Yield texts that identify a version of a checkpoint, without reading weights."""
    root = checkpoint.parent if is_gguf(checkpoint) else checkpoint
    whole = [checkpoint, *find_projectors(root)] if is_gguf(checkpoint) else checkpoint.rglob("*")
    for path in sorted(file for file in whole if file.is_file()):
        about = path.stat()
        content = (
            sha256(path.read_bytes()).hexdigest() if about.st_size <= _MAX_HASHED_FILE_BYTES else str(about.st_mtime_ns)
        )
        yield f"{path.relative_to(root)}\n{about.st_size}\n{content}"


#: The modality of the keys of parts; no file has it.
_PART = "part of "


class SaltedItem(NamedTuple):
    """A prepared item, and the ``salt`` of those that share its results."""

    item: Prepared
    salt: str


class PartEncoder:
    """Encodes items of ``model`` with ``encode``, reusing parts that ``results`` contains.

    The key of a part is the digest of its features, from which its rows are computed. Features at the beginning may
    therefore depend on later content: features that differ make a different part.
    """

    def __init__(
        self,
        model: MediaEncoder,
        identity: EncoderIdentity,
        results: EmbeddingCache[SaltedItem],
        encode: Callable[[Prepared], Awaitable[EncoderResult]],
    ) -> None:
        self._model = model
        self._identity = identity
        self._results = results
        self._encode = encode
        self.reused = 0  # parts

    def find_keys(self, salted_item: SaltedItem, parts: Sequence[Prepared]) -> list[bytes]:
        """Return the keys of all ``parts`` but the last, which may be incomplete."""
        modality = _PART + salted_item.item.modality
        return [self._identity.item_key(_digest(part), modality, salted_item.salt) for part in parts[:-1]]

    async def encode_missing(self, item: Prepared, parts: Sequence[Prepared], keys: Sequence[bytes]) -> EncoderResult:
        """Return the result of ``item``, which is cut into ``parts``."""
        results = [self._results.peek(key) for key in keys]
        missing = [part for part, result in zip(parts, [*results, None], strict=True) if result is None]
        new_result = await self._encode(self._model.join_parts(missing))
        self.reused += len(parts) - len(missing)
        rows = iter(np.split(new_result.embeds, np.cumsum([part.meta["n_tokens"] for part in missing])[:-1]))
        embeds = []
        for key, part_result in zip(keys, results, strict=True):
            if part_result is None:
                part_result = EncoderResult({}, next(rows).copy())
                self._results.store(key, part_result)
            embeds.append(part_result.embeds)
        return EncoderResult({"modality": item.modality, **item.meta}, np.concatenate([*embeds, next(rows)]))


def _digest(part: Prepared) -> bytes:
    """Return the digest of all inputs to the rows of ``part``."""
    hasher = sha256()
    for name, value in sorted(part.features.items()):
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        hasher.update(value.contiguous().view(torch.uint8).numpy().data)
    return hasher.digest()
