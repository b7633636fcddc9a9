"""UCX through ``ucxx``: the bytes of large pulls, by RDMA where the network has it. On the loop of the peers' thread.

A *lane* is a worker of UCX with one endpoint, as a data connection is a socket, and belongs to one data connection. UCX
has no thread here and does not spin: its file descriptor wakes the loop, which lets it move on until nothing moves.

Memory is safe by the same rule as with TCP: whoever lends it to a lane takes it back only after ``close``. A cancelled
receive is not over when UCX has begun to fill it: the other side writes on. What ends it is the endpoint, closed by
force: all requests of its worker then complete, at once or once the network card has let go, and nothing is written
or read any more. A worker is shared by no two lanes, so that closing one ends no transfer of another, and so that the
endpoints of both sides are certain to be each other's.
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
from services.sidecar.peers.stall import Progress

log = logging.getLogger(__name__)

#: A transfer goes in pieces of this size, a few at a time: a piece that arrives is progress, which UCX does not report.
PIECE_BYTES = 1 << 20
_PIECES_AT_ONCE = 4
#: Seconds for which a node is read over TCP after UCX failed.
PAUSE_SECONDS = 60.0
TAG_BITS = 64
#: Steps of UCX after which other work of the loop has its turn.
_MAX_STEPS = 64
#: Seconds after which UCX is given a turn without a sign from it: some of its events do not show at the descriptor.
_LOOK_SECONDS = 0.05
_CLOSE_LOOK_SECONDS = 0.001
_SLOW_CLOSE_SECONDS = 5.0


class UcxFailure(ConnectionError):
    """UCX does not carry these bytes: TCP has to."""


class UcxDeclined(UcxFailure):
    """The other node does not use this UCX, as long as its sidecar runs."""


class UcxTransport:
    """UCX of this process, as ``UCX_*`` of the environment configure it, and the nodes with which it failed lately."""

    def __init__(self) -> None:
        """Raises ``Fatal`` without ``ucxx``, and when UCX finds no network that it may use."""
        try:
            from ucxx import get_ucx_version
            from ucxx._lib import arr, libucxx
        except (ImportError, OSError, RuntimeError) as error:
            raise Fatal(
                "OMNIBUS_SIDECAR_TRANSPORT=ucx needs ucxx, which cannot be imported "
                f"({error}): pip install 'omnibus-serve[ucx]'"
            ) from error
        self.version = ".".join(map(str, get_ucx_version()))
        #: Bytes that came over UCX, and transfers that failed, by node.
        self.pulled_bytes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.api, self.array = libucxx, arr.Array
        self._paused: dict[tuple[str, int], float] = {}
        features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)  # no others: nobody reads or writes memory by address
        try:
            self._context = libucxx.UCXContext({}, features)
            probe = self.open_lane()
        except (libucxx.UCXError, RuntimeError, OSError) as error:
            raise Fatal(
                f"UCX {self.version} does not start: {error}; see UCX_TLS and UCX_NET_DEVICES, or set "
                "OMNIBUS_SIDECAR_TRANSPORT=tcp"
            ) from error
        probe.abort()

    def open_lane(self) -> "UcxLane":
        """A lane that is not connected yet. Raises ``UcxFailure``."""
        try:
            return UcxLane(self, self.api.UCXWorker(self._context))
        except (self.api.UCXError, RuntimeError) as error:
            raise UcxFailure(f"UCX has no worker: {error}") from error

    def is_usable(self, node: tuple[str, int]) -> bool:
        """Return whether ``node``, of this name and boot, may be read over UCX now."""
        return self._paused.get(node, 0.0) <= time.monotonic()

    def pause(self, node: tuple[str, int], error: BaseException) -> None:
        """Read ``node`` over TCP for a while; for good if it has declined."""
        name, _ = node
        self._paused = {other: until for other, until in self._paused.items() if other[0] != name}
        if isinstance(error, UcxDeclined):
            self._paused[node] = math.inf
            log.info("node %s is read over TCP: %s", name, error)
            return
        self.failures[name] += 1
        self._paused[node] = time.monotonic() + PAUSE_SECONDS
        reason = "no byte came" if isinstance(error, TimeoutError) else error
        log.warning("node %s is read over TCP for %.0f s, for UCX failed: %s", name, PAUSE_SECONDS, reason)


class UcxLane:
    """One worker and one endpoint of UCX, for one transfer at a time."""

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
        """Send ``source`` under ``tag``. Returns once UCX does not read it any more. Raises ``UcxFailure``."""
        await self._move("tag_send", source, tag, progress)

    async def read_into(self, target: memoryview, tag: int, progress: Progress) -> None:
        """Fill ``target`` with what the other side sends under ``tag``. Raises ``UcxFailure``."""
        await self._move("tag_recv", target, tag, progress)

    def abort(self) -> None:
        """End what is under way. Memory may be in use until ``close`` returns, unless nothing was under way."""
        if self._closed:
            return
        if self._endpoint is not None:
            self._endpoint.close_blocking()  # by force: it waits for nobody
        self._advance()
        if not self._pending:
            self._destroy()

    async def close(self) -> None:
        """End what is under way. UCX uses none of the memory that was given to this lane once this returns.

        Waits as long as it takes: memory that somebody may still write to is better lost than given to another.
        """
        began, said = time.monotonic(), False
        self.abort()
        while not self._closed:
            await asyncio.sleep(_CLOSE_LOOK_SECONDS)
            self._advance()
            if not self._pending:
                self._destroy()
            elif not said and time.monotonic() - began > _SLOW_CLOSE_SECONDS:
                said = True
                log.error("UCX does not let go of memory of a transfer that is over: it stays leased")

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
        done: asyncio.Future[None] = self._loop.create_future()
        try:
            self._pending[done] = getattr(self._endpoint, operation)(self._array(piece), self._api.UCXXTag(tag))
        except (self._api.UCXError, RuntimeError) as error:
            raise UcxFailure(f"UCX: {error}") from error
        self._advance()
        return done

    def _advance(self) -> None:
        """Let UCX do what it can; then it wakes the loop when there is more, or has its next turn at once."""
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
        """Return whether there is more to do."""
        for _ in range(_MAX_STEPS):
            if not self._worker.progress_once():
                self._worker.progress()  # ends also what an endpoint that broke had under way
                return not self._worker.arm()
        return True

    def _settle(self) -> None:
        for done, request in list(self._pending.items()):
            if request.completed:
                del self._pending[done]
                if not done.done():
                    _set_outcome(done, request, self._api.UCXError)

    def _destroy(self) -> None:
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        if self._turn is not None:
            self._turn.cancel()
        if self._endpoint is not None:
            _forget_cancelled(self._endpoint)
        # In a thread of its own: a worker goes only after all messages that nobody received, whoever sent them.
        parts = [self._endpoint, self._worker]
        self._endpoint = self._worker = None
        threading.Thread(target=parts.clear, name="ucx-close", daemon=True).start()


def _set_outcome(done: "asyncio.Future[None]", request: Any, error_type: type[Exception]) -> None:
    try:
        request.check_error()
    except error_type as error:
        done.set_exception(UcxFailure(f"UCX: {error}"))
    else:
        done.set_result(None)


def _forget_cancelled(endpoint: Any) -> None:
    """Let go of requests that were under way when ``endpoint`` was closed.

    ucxx 0.52 keeps them with the endpoint, which they keep themselves: its worker would stay, with nine open files.
    It looks through them, and forgets those that are over, only when it counts them; Python has no name for that.
    """
    with suppress(OSError, AttributeError):
        count = _ucxx_library()._ZNK4ucxx8Endpoint16getCancelingSizeEv
        count.argtypes, count.restype = [ctypes.c_void_p], ctypes.c_size_t
        count(endpoint.ucxx_ptr)


def _ucxx_library() -> ctypes.CDLL:
    """The library that ucxx has loaded already."""
    return ctypes.CDLL("libucxx.so", mode=ctypes.RTLD_GLOBAL)
