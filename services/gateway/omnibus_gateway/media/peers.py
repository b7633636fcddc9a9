"""Files of other gateways: found by a query to all of them, and read part by part through the arenas.

The bytes move as tensors do. The gateway that has them puts a part into the arena of its node, and the sidecars pull it
to the reading node. Gateways on one node work in the same way. Content with a digest is verified before use:
``omnibus_gateway.media.blob_store`` and ``files``.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count
from typing import cast

import msgspec

from omnibus.bus import Bus, media_messages, subjects
from omnibus.bus.heartbeats import GATEWAY_HEARTBEAT_SECONDS
from omnibus.bus.media_messages import MediaAnswer, MediaQuery, MediaRead
from omnibus.errors import DeadlineExceeded, NotFound, OmnibusError, Overloaded, ProtocolError, TooLarge, from_problem
from omnibus.tensors.client import TensorClient
from omnibus_gateway.media.peer_files import PART_BYTES, PART_SECONDS

log = logging.getLogger(__name__)

#: Seconds in which gateways must answer a query. A silent gateway counts as one without the file.
ANSWER_SECONDS = 1.0
#: Most concurrent queries and transfers of one gateway, and seconds that others wait for their turn.
_MAX_QUERIES, _MAX_TRANSFERS, _TURN_SECONDS = 16, 4, 10.0
_encode = msgspec.json.Encoder().encode


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
