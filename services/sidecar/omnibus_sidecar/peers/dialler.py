"""Connections to other sidecars: pools of links, pings, and transfers to this arena.

They run on the loop of the peers' thread. A peer is dialled on first use, then pinged every ``ping_seconds``. The
kernel detects peers that are gone, but not frozen ones. When a peer stops responding, its transfers end.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from omnibus.errors import NodeUnreachable, OmnibusError, ProtocolError
from omnibus.tensors.peer_protocol import COPIED, PeerFrame, PeerVerb, PullStatus
from omnibus_sidecar.peers.handshake import CONTROL, DATA, PeerIdentity, greet_listener
from omnibus_sidecar.peers.lanes import LanePulls
from omnibus_sidecar.peers.links import SMALL_BYTES, LinkPool
from omnibus_sidecar.peers.plain_stream import open_stream
from omnibus_sidecar.peers.stream import ArenaBytes, PeerStream, make_progress, read_frame, write_frame
from omnibus_sidecar.peers.thread import PeerThread, current_task
from omnibus_sidecar.peers.ucx import UcxTransport
from omnibus_sidecar.settings import PeerConfig

log = logging.getLogger(__name__)


class PeerAddress(NamedTuple):
    """Address of a sidecar; ``boot`` differs after each of its starts."""

    host: str
    port: int
    boot: int


class Peer:
    """One other node, as long as its sidecar runs."""

    def __init__(
        self,
        node: str,
        address: PeerAddress,
        config: PeerConfig,
        own: PeerIdentity,
        arena: ArenaBytes,
        thread: PeerThread,
        on_loss: "Callable[[Peer], None]",
        ucx: UcxTransport | None = None,
    ) -> None:
        """Create the peer; ``on_loss`` is called once, when it becomes unusable."""
        self.node = node
        self.address = address
        self._config = config
        self._own = own
        self._arena = arena
        self._thread = thread
        self._lost = on_loss
        self._transfers: set[asyncio.Task[object]] = set()
        self._failure: NodeUnreachable | None = None
        self._ready: asyncio.Future[PeerStream] = asyncio.get_running_loop().create_future()
        dial = partial(self._dial, DATA)
        self._bulk = LinkPool(config.links, dial)
        self._small = LinkPool(1, dial)
        self._lanes = (
            None if ucx is None else LanePulls((node, address.boot), ucx, config.links, config.stall_seconds, dial)
        )
        self._control = thread.spawn(self._keep_control())

    async def fetch(self, get: PeerFrame, target: memoryview, reads: int) -> PullStatus:
        """Fill ``target`` with the range of GET, and report ``reads`` as over.

        ``reads`` is a number of expected reads. Raises ``NodeUnreachable``. A broken connection is retried once,
        because the error does not show if the block is gone or only the connection.
        """
        task = current_task()
        self._transfers.add(task)
        try:
            await asyncio.shield(self._ready)
            if self._lanes is not None and (status := await self._lanes.fetch(get, target, reads)) is not None:
                return status
            for attempt in range(2):
                try:
                    return await self._transfer(get, target, reads, fresh=attempt > 0)
                except OSError as error:
                    if attempt or isinstance(error, TimeoutError):
                        raise
            raise AssertionError
        except (OSError, TimeoutError, OmnibusError) as error:
            raise self._failure or self._unreachable_error(error) from error
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            self._transfers.discard(task)

    async def send_over(self, over: PeerFrame) -> None:
        """Report reads that are over without a transfer. Raises ``NodeUnreachable``."""
        try:
            await write_frame(await asyncio.shield(self._ready), over)
        except OSError as error:
            raise self._unreachable_error(error) from error

    def close(self) -> None:
        """Stop using this peer."""
        self._control.cancel()

    async def _transfer(self, get: PeerFrame, target: memoryview, reads: int, fresh: bool) -> PullStatus:
        pool = self._small if get.nbytes <= SMALL_BYTES else self._bulk
        stream = await pool.acquire(fresh)
        try:
            status = await self._receive(stream, get, target, reads)
        except BaseException:
            pool.discard(stream)
            raise
        pool.release(stream)
        return status

    async def _receive(self, stream: PeerStream, get: PeerFrame, target: memoryview, reads: int) -> PullStatus:
        stall = self._config.stall_seconds
        async with asyncio.timeout(stall) as limit:
            progress = make_progress(limit, stall)
            await write_frame(stream, get._replace(reads=COPIED))
            head = await read_frame(stream)
            if (head.verb, head.request, head.nbytes) != (PeerVerb.HEAD, get.request, get.nbytes):
                raise ProtocolError(f"got verb {head.verb} instead of the head of a transfer")
            if head.status == PullStatus.OK:
                await stream.read_into(target, progress)
                await write_frame(stream, PeerFrame(PeerVerb.DONE, get.request, reads=reads))
                if head.reads != COPIED:
                    await _expect_kept(stream, get)
        return PullStatus(head.status)

    async def _dial(self, purpose: str) -> PeerStream:
        async with asyncio.timeout(self._config.connect_seconds):
            stream = await open_stream(self.address[:2], self._own.tls_client, self._arena)
            try:
                listener = await greet_listener(stream, self._own, self.node, purpose)
                if listener.boot != self.address.boot:
                    raise ProtocolError(f"the sidecar of node {self.node!r} has restarted")
            except BaseException:
                stream.abort()
                raise
        return stream

    async def _keep_control(self) -> None:
        """Open the control connection, and ping the peer until it fails."""
        stream: PeerStream | None = None
        error: BaseException | None = None
        try:
            stream = await self._dial(CONTROL)
            self._ready.set_result(stream)
            await self._exchange_pings(stream)
        except (OSError, OmnibusError) as failure:
            error = failure
        finally:
            self._end(error)
            if stream is not None:
                stream.abort()

    async def _exchange_pings(self, stream: PeerStream) -> None:
        number = 0
        while True:
            async with asyncio.timeout(self._config.stall_seconds):
                await write_frame(stream, PeerFrame(PeerVerb.PING, number))
                pong = await read_frame(stream)
            if (pong.verb, pong.request) != (PeerVerb.PONG, number):
                raise ProtocolError(f"got verb {pong.verb} instead of a pong")
            number += 1
            await asyncio.sleep(self._config.ping_seconds)

    def _end(self, error: BaseException | None) -> None:
        self._failure = self._unreachable_error(error)
        log.warning("%s", self._failure)
        if not self._ready.done():
            self._ready.set_exception(self._failure)
            self._ready.exception()  # marks it as retrieved: there may be no waiter
        for task in self._transfers:
            task.cancel()
        self._bulk.close_idle()
        self._small.close_idle()
        if self._lanes is not None:
            self._lanes.close_idle()
        self._lost(self)

    def _unreachable_error(self, error: BaseException | None) -> NodeUnreachable:
        reason = (
            "it does not respond"
            if isinstance(error, TimeoutError)
            else str(error)
            if error
            else "the connection is closed"
        )
        return NodeUnreachable(
            f"node {self.node!r} at {self.address.host}:{self.address.port} is unreachable: {reason}", node=self.node
        )


async def _expect_kept(stream: PeerStream, get: PeerFrame) -> None:
    reply = await read_frame(stream)
    if (reply.verb, reply.request) != (PeerVerb.KEPT, get.request):
        raise ProtocolError(f"got verb {reply.verb} instead of the end of a transfer")
