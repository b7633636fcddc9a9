"""Files of this gateway for other gateways, and replies to them."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from omnibus.bus import Bus, Delivery, media_messages, subjects
from omnibus.bus.media_messages import MediaAnswer, MediaPart, MediaQuery, MediaRead
from omnibus.errors import BadRequest, NotFound, OmnibusError
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle

log = logging.getLogger(__name__)

#: Bytes of one part: each transfer takes this much of the arena on both nodes.
PART_BYTES = 1 << 20
#: Seconds until an unread part is freed.
PART_SECONDS = 10.0
#: Parts that are read from the disk at the same time.
_MAX_READS = 4
_encode = msgspec.json.Encoder().encode


class KeptFile(NamedTuple):
    """A file on this gateway's disk, and its metadata.

    The first ``nbytes`` of it count; -1 means all.
    """

    path: Path
    about: Mapping[str, Any] = {}
    nbytes: int = -1


class FileSource(NamedTuple):
    """Files of one kind by their names; ``remove`` returns True if there was one.

    Names arrive from other gateways, so both functions must ensure that no other name becomes a path.
    """

    locate: Callable[[str], Awaitable[KeptFile | None]]
    remove: Callable[[str], Awaitable[bool]] | None = None


class FileResponder:
    """Answers other gateways on ``omnibus.media`` and ``omnibus.media.<gateway>``."""

    def __init__(self, gateway: str, bus: Bus, tensors: TensorClient, sources: Mapping[str, FileSource]) -> None:
        self._gateway = gateway
        self._bus = bus
        self._tensors = tensors
        self._sources = sources
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._parts = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: list[Callable[[], Awaitable[None]]] = []

    async def startup(self) -> None:
        own = subjects.media_subject(self._gateway)
        for subject, answer in ((subjects.MEDIA, self._answer_query), (own, self._answer_read)):
            self._unsubscribe.append(await self._bus.subscribe(subject, self._start_answer(answer)))

    async def shutdown(self) -> None:
        while self._unsubscribe:
            await self._unsubscribe.pop()()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_answer(self, answer: Callable[[Delivery], Awaitable[None]]) -> Callable[[Delivery], None]:
        async def answer_safely(delivery: Delivery) -> None:
            try:
                await answer(delivery)
            except OmnibusError as error:
                log.warning("no answer to a gateway on %s: %s", delivery.subject, error)

        def on_delivery(delivery: Delivery) -> None:
            task = asyncio.get_running_loop().create_task(answer_safely(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return on_delivery

    async def _answer_query(self, delivery: Delivery) -> None:
        query = media_messages.decode_query(delivery.data)
        if query.gateway != self._gateway and delivery.reply:
            answer = await self._find_file(query)
            self._bus.publish(delivery.reply, _encode(answer or MediaAnswer(self._gateway)))

    async def _find_file(self, query: MediaQuery) -> MediaAnswer | None:
        source = self._sources.get(query.kind)
        if source is None:
            return None
        if query.remove:
            was_removed = source.remove is not None and await source.remove(query.name)
            return MediaAnswer(self._gateway, nbytes=0) if was_removed else None
        kept_file = await source.locate(query.name)
        if kept_file is None:
            return None
        try:
            status = await asyncio.to_thread(kept_file.path.stat)
        except OSError:  # it was removed meanwhile
            return None
        nbytes = status.st_size if kept_file.nbytes < 0 else kept_file.nbytes
        return MediaAnswer(self._gateway, nbytes, file_version(status), dict(kept_file.about))

    async def _answer_read(self, delivery: Delivery) -> None:
        read = media_messages.decode_read(delivery.data)
        try:
            part = MediaPart(handle=await self._load_part(read))
        except OmnibusError as error:
            part = MediaPart(problem=error.to_problem())
        if delivery.reply:
            self._bus.publish(delivery.reply, _encode(part))

    async def _load_part(self, read: MediaRead) -> Handle:
        """Return bytes of a file as a sealed tensor with one reader. Raises ``NotFound``, and as ``allocate`` does."""
        if not (0 < read.nbytes <= PART_BYTES and read.offset >= 0):
            raise BadRequest(
                f"cannot read {read.nbytes} bytes from {read.offset}: at most {PART_BYTES} are read at once"
            )
        source = self._sources.get(read.kind)
        kept_file = await source.locate(read.name) if source is not None else None
        if kept_file is None:
            raise NotFound(f"{read.name[:80]} is no longer kept here")
        invocation = f"media-{self._gateway}-{next(self._parts)}"
        async with self._reads:
            block = await self._tensors.allocate(
                read.nbytes, invocation=invocation, deadline=time.time() + PART_SECONDS, readers=1
            )
            try:
                await asyncio.to_thread(_read_part, kept_file.path, read, block.array)
            except BaseException:
                block.discard()
                raise
            return block.seal()


def file_version(status: os.stat_result) -> str:
    """Return a text that changes when another file replaces this one."""
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}"


def _read_part(path: Path, read: MediaRead, into: np.ndarray) -> None:
    """Fill ``into``; raises ``NotFound`` unless the file is the one that was found."""
    try:
        with open(path, "rb", buffering=0) as file:
            same = file_version(os.fstat(file.fileno())) == read.version
            if same and os.preadv(file.fileno(), [into.data], read.offset) == read.nbytes:
                return
    except OSError as error:
        raise NotFound(f"{read.name[:80]} is no longer kept here") from error
    raise NotFound(f"{read.name[:80]} is not what it was when it was found")
