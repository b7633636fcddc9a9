"""Data connections with a UCX lane: how two sidecars agree on one, and transfers over it.

The connection carries everything except the bytes, and lives as long as the lane: losing one ends both. When one side
gives up, the other sees that at once, even if UCX does not. No side waits longer for a piece than the limit without
progress.

Both sides hold memory as with TCP. A holds its block until UCX has sent all of it and B has sent DONE, or until its
lane is closed. A network card that reads A's memory directly may continue for a moment longer. KEPT never confirms such
bytes, and B trusts no bytes without KEPT. B's memory is not granted again before its lane is closed. Ranges of blocks
to which rows are still added are sent in the same way: a complete row does not change.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from secrets import randbits
from typing import Any, NamedTuple

from omnibus.errors import NodeUnreachable, OmnibusError, ProtocolError
from omnibus.tensors.peer_protocol import (
    MAX_TEXT_BYTES,
    PeerFrame,
    PeerVerb,
    PullStatus,
    UcxAddress,
    decode_ucx_address,
)
from omnibus_sidecar.peers.links import SMALL_BYTES, LinkPool
from omnibus_sidecar.peers.stream import (
    PeerStream,
    Progress,
    make_progress,
    read_frame,
    read_text,
    write_frame,
    write_text,
)
from omnibus_sidecar.peers.ucx import TAG_BITS, UcxDeclined, UcxFailure, UcxLane, UcxTransport


class LaneLink(NamedTuple):
    """A data connection with its lane."""

    stream: PeerStream
    lane: UcxLane

    def abort(self) -> None:
        """Close both. Memory that was lent to the lane is free after ``close_lane``."""
        self.stream.abort()
        self.lane.abort()


class LanePulls:
    """Large pulls from one node over UCX, as long as that works."""

    def __init__(
        self,
        node: tuple[str, int],
        transport: UcxTransport,
        limit: int,
        stall_seconds: float,
        dial: Callable[[], Awaitable[PeerStream]],
    ) -> None:
        """Create the pool of connections, opened by ``dial``.

        ``node`` is the name and boot of the peer, ``limit`` the most connections.
        """
        self._node = node
        self._transport = transport
        self._stall_seconds = stall_seconds
        self._dial = dial
        self._pool: LinkPool[LaneLink] = LinkPool(limit, self._open_link)

    async def fetch(self, get: PeerFrame, target: memoryview, reads: int) -> PullStatus | None:
        """Fill ``target`` with the range of GET; None if TCP must do it.

        After None, nothing writes to ``target``. Small pulls use TCP, which is faster than the agreement of two lanes
        on a transfer.
        """
        transport = self._transport
        if get.nbytes <= SMALL_BYTES or not transport.is_usable(self._node):
            return None
        try:
            status = await self._transfer_twice(get, target, reads)
        except NodeUnreachable:  # not a failure of UCX; TCP will report the reason
            return None
        except (OSError, OmnibusError) as error:
            transport.pause(self._node, error)
            return None
        if status == PullStatus.OK:
            transport.pulled_bytes[self._node[0]] += get.nbytes
        return status

    def close_idle(self) -> None:
        """Close the idle connections."""
        self._pool.close_idle()

    async def _transfer_twice(self, get: PeerFrame, target: memoryview, reads: int) -> PullStatus:
        """Transfer; retry once if that breaks, because the other node ends a lane with its invocation."""
        try:
            return await self._transfer(get, target, reads)
        except (TimeoutError, UcxDeclined):  # nothing broke
            raise
        except OSError:
            return await self._transfer(get, target, reads, fresh=True)

    async def _transfer(self, get: PeerFrame, target: memoryview, reads: int, fresh: bool = False) -> PullStatus:
        link = await self._pool.acquire(fresh)
        try:
            async with asyncio.timeout(self._stall_seconds) as limit:
                status = await receive_range(link, get, target, reads, make_progress(limit, self._stall_seconds))
        except BaseException:
            try:
                await close_lane(link.lane)
            finally:
                self._pool.discard(link)
            raise
        self._pool.release(link)
        return status

    async def _open_link(self) -> LaneLink:
        try:
            stream = await self._dial()
        except (OSError, OmnibusError) as error:
            raise NodeUnreachable(str(error), node=self._node[0]) from error
        try:
            async with asyncio.timeout(self._stall_seconds):
                return LaneLink(stream, await offer_lane(stream, self._transport))
        except BaseException:
            stream.abort()
            raise


async def offer_lane(stream: PeerStream, transport: UcxTransport) -> UcxLane:
    """Agree on a lane with the dialled node. Raises ``UcxDeclined`` if it has no UCX, or another version."""
    lane = transport.open_lane()
    try:
        if len(lane.address) > MAX_TEXT_BYTES // 2:
            raise UcxFailure("UCX uses too many network devices: name fewer in UCX_NET_DEVICES")
        await write_text(stream, PeerVerb.UCX, UcxAddress(transport.version, lane.address))
        frame = await read_frame(stream)
        if frame.verb != PeerVerb.UCX:
            raise ProtocolError(f"got verb {frame.verb} instead of an address of UCX")
        answer = decode_ucx_address(await read_text(stream, frame.nbytes))
        if not answer.address:
            raise UcxDeclined(f"it uses {f'UCX {answer.version}' if answer.version else 'no UCX'}")
        lane.connect(answer.address)
    except BaseException:
        lane.abort()
        raise
    return lane


async def answer_offer(stream: PeerStream, frame: PeerFrame, transport: UcxTransport | None) -> UcxLane | None:
    """Answer the frame ``UCX`` of a node that dialled; None if the connection uses TCP only."""
    offer = decode_ucx_address(await read_text(stream, frame.nbytes))
    if transport is None or offer.version != transport.version or not offer.address:
        await write_text(stream, PeerVerb.UCX, UcxAddress("" if transport is None else transport.version))
        return None
    lane = transport.open_lane()
    try:
        lane.connect(offer.address)
        await write_text(stream, PeerVerb.UCX, UcxAddress(transport.version, lane.address))
    except BaseException:
        lane.abort()
        raise
    return lane


async def receive_range(
    link: LaneLink, get: PeerFrame, target: memoryview, reads: int, progress: Progress
) -> PullStatus:
    """Fill ``target`` with the range of GET, and report ``reads`` as over.

    ``reads`` is a number of expected reads.
    """
    stream, lane = link
    get = get._replace(tag=randbits(TAG_BITS) | 1)  # 0 means no tag

    async def receive() -> None:
        await lane.read_into(target, get.tag, progress)
        await write_frame(stream, PeerFrame(PeerVerb.DONE, get.request, reads=reads))

    await write_frame(stream, get)
    head = await read_frame(stream)
    if (head.verb, head.request, head.nbytes) != (PeerVerb.HEAD, get.request, get.nbytes):
        raise ProtocolError(f"got verb {head.verb} instead of the head of a transfer")
    if head.status == PullStatus.OK:
        reply = await _watch_stream(stream, receive())
        if (reply.verb, reply.request) != (PeerVerb.KEPT, get.request):
            raise ProtocolError(f"got verb {reply.verb} instead of the end of a transfer")
    return PullStatus(head.status)


async def send_range(lane: UcxLane, stream: PeerStream, source: memoryview, tag: int, progress: Progress) -> PeerFrame:
    """Send ``source``; returns the peer's reply after UCX has sent all of it."""
    return await _watch_stream(stream, lane.send_range(source, tag, progress))


async def close_lane(lane: UcxLane) -> None:
    """Close ``lane``, even if the task is cancelled: only then may its memory be granted again."""
    closing = asyncio.ensure_future(lane.close())
    cancellation: asyncio.CancelledError | None = None
    while not closing.done():
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def _watch_stream(stream: PeerStream, work: Coroutine[Any, Any, None]) -> PeerFrame:
    """Return the next frame of ``stream`` after ``work`` completes; both end when one fails or ``stream`` closes."""
    try:
        async with asyncio.TaskGroup() as group:
            frame = group.create_task(read_frame(stream))
            group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return frame.result()
