"""UCX through ``ucxx``: the bytes of large pulls, by RDMA if the network has it.

It runs on the loop of the peers' thread. A *lane* is a worker of UCX with one endpoint, as a data connection is a
socket, and belongs to one data connection. UCX has no thread here and does not spin. Its file descriptor wakes the
loop, which makes UCX progress until it is idle.

Memory is safe by the same rule as with TCP: memory lent to a lane may be used again only after ``close``. A cancelled
receive is not over if UCX has begun to fill it: the other side continues to write. Closing the endpoint by force ends
it. All requests of its worker then complete, at once or when the network card is done, and nothing is written or read
any more. No two lanes share a worker, so closing one ends no transfer of another. It also guarantees that the endpoints
of both sides belong to each other.
"""

import asyncio
import ctypes
import logging
import math
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Any

from omnibus.errors import Fatal
from omnibus_sidecar.peers.stream import Progress

log = logging.getLogger(__name__)

#: Transfers are sent in pieces of this size, a few at a time: each piece is progress, which UCX does not report itself.
PIECE_BYTES = 1 << 20
_PIECES_AT_ONCE = 4
#: Seconds for which a node is read over TCP after UCX failed.
PAUSE_SECONDS = 60.0
TAG_BITS = 64
#: Steps of UCX after which other work of the loop has its turn.
_MAX_STEPS = 64
#: Seconds after which UCX has a turn without a signal: some of its events do not show at the descriptor.
_LOOK_SECONDS = 0.05
_CLOSE_LOOK_SECONDS = 0.001
_SLOW_CLOSE_SECONDS = 5.0


class UcxFailure(ConnectionError):
    """UCX cannot carry these bytes; TCP must."""


class UcxDeclined(UcxFailure):
    """The other node does not use this UCX until its sidecar restarts."""


class UcxTransport:
    """UCX of this process, configured by ``UCX_*``, and its recent failures."""

    def __init__(self) -> None:
        """Start UCX. Raises ``Fatal`` without ``ucxx``, or if UCX finds no usable network."""
        try:
            from ucxx import get_ucx_version
            from ucxx._lib import arr, libucxx
        except (ImportError, OSError, RuntimeError) as error:
            raise Fatal(
                "OMNIBUS_SIDECAR_TRANSPORT=ucx needs ucxx, which cannot be imported "
                f"({error}): pip install 'omnibus-serve[ucx]'"
            ) from error
        self.version = ".".join(map(str, get_ucx_version()))
        #: Bytes received over UCX, and failed transfers, by node.
        self.pulled_bytes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.api, self.array = libucxx, arr.Array
        self._paused: dict[tuple[str, int], float] = {}
        features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)  # no others: memory is never accessed by address
        try:
            self._context = libucxx.UCXContext({}, features)
            probe = self.open_lane()
        except (libucxx.UCXError, RuntimeError, OSError) as error:
            raise Fatal(
                f"UCX {self.version} does not start ({error}): check UCX_TLS and UCX_NET_DEVICES, or set "
                "OMNIBUS_SIDECAR_TRANSPORT=tcp"
            ) from error
        probe.abort()

    def open_lane(self) -> "UcxLane":
        """Return a lane that is not connected yet. Raises ``UcxFailure``."""
        try:
            return UcxLane(self, self.api.UCXWorker(self._context))
        except (self.api.UCXError, RuntimeError) as error:
            raise UcxFailure(f"UCX cannot create a worker: {error}") from error

    def is_usable(self, node: tuple[str, int]) -> bool:
        """Return True if ``node`` (name and boot) may use UCX now."""
        return self._paused.get(node, 0.0) <= time.monotonic()

    def pause(self, node: tuple[str, int], error: BaseException) -> None:
        """Read ``node`` over TCP for a while; permanently if it has declined."""
        name, _ = node
        self._paused = {other: until for other, until in self._paused.items() if other[0] != name}
        if isinstance(error, UcxDeclined):
            self._paused[node] = math.inf
            log.info("node %s is read over TCP: %s", name, error)
            return
        self.failures[name] += 1
        self._paused[node] = time.monotonic() + PAUSE_SECONDS
        reason = "no byte arrived" if isinstance(error, TimeoutError) else error
        log.warning("node %s is read over TCP for %.0f s, because UCX failed: %s", name, PAUSE_SECONDS, reason)


class UcxLane:
    """One UCX worker and endpoint, for one transfer at a time."""

    def __init__(self, transport: UcxTransport, worker: Any) -> None:
        self._api, self._array = transport.api, transport.array
        self._worker = worker
        self._endpoint: Any = None
        self._pending: dict[asyncio.Future[None], Any] = {}
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.Handle | None = None
        self._closed = False
        worker.init_blocking_progress_mode()
        self._descriptor: int = worker.epoll_file_descriptor
        self._loop.add_reader(self._descriptor, self._advance)
        #: The address by which another worker connects to this one.
        self.address: bytes = worker.address.tobytes()

    def connect(self, address: bytes) -> None:
        """Connect to the lane of another node. Raises ``UcxFailure``; a node that is gone shows later."""
        try:
            remote = self._api.UCXAddress.create_from_buffer(address)
            self._endpoint = self._worker.create_endpoint_from_worker_address(remote, True)
        except (self._api.UCXError, RuntimeError) as error:
            raise UcxFailure(f"UCX cannot connect: {error}") from error

    async def send_range(self, source: memoryview, tag: int, progress: Progress) -> None:
        """Send ``source`` under ``tag``. Returns when UCX no longer reads it. Raises ``UcxFailure``."""
        await self._move("tag_send", source, tag, progress)

    async def read_into(self, target: memoryview, tag: int, progress: Progress) -> None:
        """Fill ``target`` with the bytes that the other side sends under ``tag``. Raises ``UcxFailure``."""
        await self._move("tag_recv", target, tag, progress)

    def abort(self) -> None:
        """End the current transfer, if any. Its memory may be in use until ``close`` returns."""
        if self._closed:
            return
        if self._endpoint is not None:
            self._endpoint.close_blocking()  # by force, without waiting for the peer
        self._advance()
        if not self._pending:
            self._destroy()

    async def close(self) -> None:
        """End the current transfer. After this returns, UCX uses none of the memory that was lent to this lane.

        Waits as long as necessary: losing memory that may still be written to is better than granting it again.
        """
        began, was_logged = time.monotonic(), False
        self.abort()
        while not self._closed:
            await asyncio.sleep(_CLOSE_LOOK_SECONDS)
            self._advance()
            if not self._pending:
                self._destroy()
            elif not was_logged and time.monotonic() - began > _SLOW_CLOSE_SECONDS:
                was_logged = True
                log.error("UCX does not release the memory of a transfer that is over: it remains leased")

    async def _move(self, operation: str, view: memoryview, tag: int, progress: Progress) -> None:
        waiting: deque[asyncio.Future[None]] = deque()
        for number, start in enumerate(range(0, len(view), PIECE_BYTES)):
            if len(waiting) == _PIECES_AT_ONCE:
                await waiting.popleft()
                progress()
            piece, name = view[start : start + PIECE_BYTES], (tag + number) % (1 << TAG_BITS)
            waiting.append(self._begin(operation, piece, name))
        while waiting:
            await waiting.popleft()
            progress()

    def _begin(self, operation: str, piece: memoryview, tag: int) -> "asyncio.Future[None]":
        if self._endpoint is None:
            raise UcxFailure("the lane is closed")
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            self._pending[future] = getattr(self._endpoint, operation)(self._array(piece), self._api.UCXXTag(tag))
        except (self._api.UCXError, RuntimeError) as error:
            raise UcxFailure(f"UCX: {error}") from error
        self._advance()
        return future

    def _advance(self) -> None:
        """Let UCX progress until it is idle or out of steps.

        When idle, it wakes the loop later. Otherwise it has its next turn at once.
        """
        if self._closed:
            return
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        busy = self._progress()
        self._settle()
        if busy:
            self._turn = self._loop.call_soon(self._advance)
        elif self._pending:
            self._turn = self._loop.call_later(_LOOK_SECONDS, self._advance)

    def _progress(self) -> bool:
        """Return True if there is more to do."""
        for _ in range(_MAX_STEPS):
            if not self._worker.progress_once():
                self._worker.progress()  # also ends the requests of a broken endpoint
                return not self._worker.arm()
        return True

    def _settle(self) -> None:
        for future, request in list(self._pending.items()):
            if request.completed:
                del self._pending[future]
                if not future.done():
                    _set_outcome(future, request, self._api.UCXError)

    def _destroy(self) -> None:
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        if self._turn is not None:
            self._turn.cancel()
        if self._endpoint is not None:
            _forget_cancelled(self._endpoint)
        # In a separate thread: a worker is destroyed only after all messages that were never received, from any sender.
        parts = [self._endpoint, self._worker]
        self._endpoint = self._worker = None
        threading.Thread(target=parts.clear, name="ucx-close", daemon=True).start()


def _set_outcome(future: "asyncio.Future[None]", request: Any, error_type: type[Exception]) -> None:
    try:
        request.check_error()
    except error_type as error:
        future.set_exception(UcxFailure(f"UCX: {error}"))
    else:
        future.set_result(None)


def _forget_cancelled(endpoint: Any) -> None:
    """Release requests that were in progress when ``endpoint`` was closed.

    ucxx 0.52 keeps them with the endpoint, which they keep alive in turn: its worker would remain, with nine open
    files. It looks through them, and drops those that are over, only when it counts them. Python has no name for that
    call.
    """
    with suppress(OSError, AttributeError):
        count = _ucxx_library()._ZNK4ucxx8Endpoint16getCancelingSizeEv
        count.argtypes, count.restype = [ctypes.c_void_p], ctypes.c_size_t
        count(endpoint.ucxx_ptr)


def _ucxx_library() -> ctypes.CDLL:
    """Return the library that ucxx has loaded already."""
    return ctypes.CDLL("libucxx.so", mode=ctypes.RTLD_GLOBAL)
