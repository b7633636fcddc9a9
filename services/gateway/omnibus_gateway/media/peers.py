"""Files of other gateways: found by a query to all of them, and read part by part through the arenas.

The bytes move as tensors do. The gateway that has them puts a part into the arena of its node, and the sidecars pull it
to the reading node. Gateways on one node work in the same way. Content with a digest is verified before use:
``omnibus_gateway.media.blob_store`` and ``files``.

Files of this gateway for other gateways, and replies to them.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from omnibus.bus import Bus, Delivery, media_messages, subjects
from omnibus.bus.heartbeats import GATEWAY_HEARTBEAT_SECONDS
from omnibus.bus.media_messages import MediaAnswer, MediaPart, MediaQuery, MediaRead
from omnibus.errors import (
    BadRequest,
    DeadlineExceeded,
    NotFound,
    OmnibusError,
    Overloaded,
    ProtocolError,
    TooLarge,
    from_problem,
)
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


#: Seconds in which gateways must answer a query. A silent gateway counts as one without the file.
ANSWER_SECONDS = 1.0
#: Most concurrent queries and transfers of one gateway, and seconds that others wait for their turn.
_MAX_QUERIES, _MAX_TRANSFERS, _TURN_SECONDS = 16, 4, 10.0


class MediaPeers:
    """Reads files of other gateways. ``peer_count`` counts the live ones: no more answers are awaited."""

    def __init__(self, gateway: str, bus: Bus, tensors: TensorClient, peer_count: Callable[[], int]) -> None:
        self._gateway = gateway
        self._bus = bus
        self._tensors = tensors
        self._others = peer_count
        self._started = time.monotonic()
        self._queries = asyncio.Semaphore(_MAX_QUERIES)
        self._transfers = asyncio.Semaphore(_MAX_TRANSFERS)
        self._reads = count()

    async def find(self, kind: str, name: str) -> MediaAnswer | None:
        """Return the answer of the first gateway that has the file; None if there is none. Raises ``Overloaded``."""
        return await self._ask_all(MediaQuery(self._gateway, kind, name))

    async def remove(self, kind: str, name: str) -> bool:
        """Remove a file from its gateway; returns True if there was one. Raises ``Overloaded``."""
        return await self._ask_all(MediaQuery(self._gateway, kind, name, remove=True)) is not None

    async def read(self, kind: str, name: str, limit: int) -> tuple[MediaAnswer, bytes]:
        """Return a whole file of at most ``limit`` bytes. Raises as ``copy`` does, and ``TooLarge``."""
        data = bytearray()

        def start(answer: MediaAnswer) -> None:
            if answer.nbytes > limit:
                raise TooLarge(f"{name[:80]} has {answer.nbytes} bytes at another gateway; at most {limit} are read")
            data.clear()

        answer = await self.copy(kind, name, start, data.extend)
        return answer, bytes(data)

    async def copy(
        self, kind: str, name: str, start: Callable[[MediaAnswer], None], write: Callable[[bytes], object]
    ) -> MediaAnswer:
        """Read a file part by part: calls ``start`` for each gateway that is tried, then ``write``, both in threads.

        Raises ``NotFound`` if no gateway has it, and ``Overloaded``. If the gateway that has it cannot send it, raises
        the reason, such as ``NodeUnreachable``. Errors of ``start`` and ``write`` are raised as well.
        """
        problem: OmnibusError = NotFound(f"no gateway has {name[:80]}")
        tried_gateways: set[str] = set()
        async with _turn(self._transfers):
            while answer := await self._ask_all(MediaQuery(self._gateway, kind, name), tried_gateways):
                await asyncio.to_thread(start, answer)
                try:
                    await self._read_parts(kind, name, answer, write)
                    return answer
                except OmnibusError as error:
                    log.warning("%s of gateway %s was not read: %s", name[:80], answer.gateway, error)
                    problem = error
                    tried_gateways.add(answer.gateway)
        raise problem

    async def _ask_all(self, query: MediaQuery, without: Container[str] = ()) -> MediaAnswer | None:
        """Return the first answer of a gateway that has the file; ends when all have answered."""
        is_settled = time.monotonic() - self._started > 2 * GATEWAY_HEARTBEAT_SECONDS
        missing: float = self._others() if is_settled else math.inf
        if missing < 1:
            return None
        with suppress(TimeoutError, DeadlineExceeded, NotFound):
            async with _turn(self._queries), asyncio.timeout(ANSWER_SECONDS):
                replies = self._bus.request_stream(subjects.MEDIA, _encode(query), ANSWER_SECONDS)
                async with aclosing(cast(AsyncGenerator[bytes, None], replies)):
                    async for data in replies:
                        answer = media_messages.decode_answer(data)
                        if answer.nbytes >= 0 and answer.gateway not in without:
                            return answer
                        missing -= 1
                        if missing < 1:
                            return None
        return None

    async def _read_parts(self, kind: str, name: str, answer: MediaAnswer, write: Callable[[bytes], object]) -> None:
        for offset in range(0, answer.nbytes, PART_BYTES):
            nbytes = min(PART_BYTES, answer.nbytes - offset)
            read = MediaRead(kind, name, answer.version, offset, nbytes)
            await asyncio.to_thread(write, await self._read_part(answer.gateway, read))

    async def _read_part(self, gateway: str, read: MediaRead) -> bytes:
        subject = subjects.media_subject(gateway)
        part = media_messages.decode_part(await self._bus.request(subject, _encode(read), PART_SECONDS))
        if part.problem is not None:
            raise from_problem(part.problem)
        if part.handle is None or part.handle.nbytes != read.nbytes:
            raise ProtocolError(f"gateway {gateway} sent another part of {read.name[:80]} than was requested")
        reader = f"media-{self._gateway}-r{next(self._reads)}"
        try:
            array = await self._tensors.open_tensor(part.handle, invocation=reader, deadline=time.time() + PART_SECONDS)
            return array.tobytes()
        finally:
            self._tensors.release(part.handle)
            self._tensors.end_invocation(reader)


@asynccontextmanager
async def _turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    """Wait for one of a limited number of turns. Raises ``Overloaded`` if that takes too long."""
    try:
        async with asyncio.timeout(_TURN_SECONDS):
            await turns.acquire()
    except TimeoutError:
        raise Overloaded("too many files are read from other gateways: try again") from None
    try:
        yield
    finally:
        turns.release()
