"""One connection to the sidecar: requests by number, one-way frames, one write per turn of the loop.

Reads of other nodes' tensors by mirrors in this node's arena.
"""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable
from math import prod
from typing import cast

import msgspec

from omnibus.errors import OmnibusError, ProblemDetails, ProtocolError, Retryable, from_problem
from omnibus.tensors.handle import ITEMSIZE, Handle
from omnibus.tensors.protocol import (
    FrameReader,
    PullRequest,
    Retention,
    SidecarFrame,
    Verb,
    Welcome,
    away_error,
    encode_block,
    encode_frame,
    encode_tag,
    encode_text,
    refusal_error,
)

#: Seconds for the sidecar's answer, in addition to the request's own wait.
ANSWER_TIMEOUT_SECONDS = 5.0
#: Longest delay of frames that free memory, so that they share writes: each write of a client wakes the sidecar.
LAZY_SECONDS = 0.02
_SPARE_VERBS = frozenset({Verb.SPARE, Verb.NO_SPARE, Verb.RECALL_SPARES})


def _ignore(frame: SidecarFrame) -> None:
    """Ignore ``frame``."""


class SidecarLink(asyncio.Protocol):
    """The client's end of the socket. Build it with ``SidecarLink.open``.

    ``lost`` is called once, when an opened link is gone and every pending request has failed.
    """

    def __init__(self, socket_path: str) -> None:
        self.lost: Callable[[OmnibusError], None] | None = None
        #: Handles frames about spare blocks.
        self.on_spare: Callable[[SidecarFrame], None] = _ignore
        self._node = ""  # the sidecar's, if there are others
        self._path = socket_path
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._pending: dict[int, asyncio.Future[SidecarFrame]] = {}
        self._texts: dict[int, list[bytes]] = {}
        self._last = 0
        self._out: list[bytes] = []
        self._is_flush_due = False  # at the end of this turn
        self._lazy: asyncio.TimerHandle | None = None
        self._error: OmnibusError | None = None
        self._received = self._loop.time()
        self._silent = False

    @classmethod
    async def open(cls, socket_path: str, owner: str, timeout: float) -> tuple["SidecarLink", Welcome]:
        """Connect and send the greeting within ``timeout`` seconds.

        Raises ``Retryable``, and ``ProtocolError`` for a process of another user, who could read all tensors.
        """
        name, link = encode_tag(owner), cls(socket_path)
        try:
            async with asyncio.timeout(timeout):
                transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: link, socket_path)
                _check_peer(transport.get_extra_info("socket"), socket_path)
                answer = await link.call(SidecarFrame(Verb.HELLO, text=name), timeout)
            welcome = msgspec.json.decode(answer.text, type=Welcome)
            link._node = welcome.node if welcome.pulls else ""
            return link, welcome
        except (OSError, msgspec.DecodeError) as error:
            link.close()
            raise Retryable(f"no sidecar answers at {socket_path} ({error!r}); is it running?") from error
        except BaseException:
            link.close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received = self._loop.time()
        self._silent = False
        try:
            for frame in self._reader.feed(data):
                self._on_answer(frame)
        except ProtocolError as error:
            self._error = error
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._error or self._closed_error())
        self._pending.clear()
        if self.lost is not None:
            self.lost(self._error or self._closed_error())

    def close(self) -> None:
        """Send queued frames and close the socket."""
        if self._transport is not None:
            self._flush_frames()
            self._transport.close()

    def send(self, frame: bytes) -> None:
        """Queue an encoded frame without an answer. If the sidecar is gone, it is dropped, as all leases are."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_frames)
        self._out.append(frame)

    def send_lazily(self, frame: bytes) -> None:
        """Queue an encoded frame for the next write, within ``LAZY_SECONDS``."""
        if not self._is_flush_due and self._lazy is None:
            self._lazy = self._loop.call_later(LAZY_SECONDS, self._flush_frames)
        self._out.append(frame)

    async def call(self, frame: SidecarFrame, timeout: float, body: bytes = b"") -> SidecarFrame:
        """Send ``frame`` and wait ``timeout`` seconds for its answer; JSON is returned whole, as ``text``.

        With ``body``, JSON that may be longer than a frame, only the verb of ``frame`` is sent, as often as needed.
        Raises ``Retryable`` without an answer or a connection. It raises at once while the sidecar is silent. The
        request that detected the silence is still pending, and its answer ends the silence. A cancelled call withdraws
        its request, and releases memory that was granted too late.
        """
        if self._transport is None:
            raise self._closed_error()
        if self._silent:
            raise self._timeout_error(timeout)
        self._last = number = (self._last + 1) & 0xFFFF_FFFF
        self.send(encode_text(number, body, Verb(frame.verb)) if body else encode_frame(frame._replace(request=number)))
        if not self._pending:
            # A single request is written now: waiting for the end of this turn would cost a turn. Several share one
            # write.
            self._flush_frames()
        future: asyncio.Future[SidecarFrame] = self._loop.create_future()
        self._pending[number] = future
        timer = self._loop.call_later(timeout, self._on_timeout, future, timeout)
        try:
            return await future
        except BaseException:
            self._withdraw_request(number, future)
            raise
        finally:
            timer.cancel()

    def _on_answer(self, frame: SidecarFrame) -> None:
        if frame.verb in _SPARE_VERBS:
            self.on_spare(frame)
            return
        if frame.verb == Verb.TEXT:
            whole = self._join_text(frame)
            if whole is None:
                return
            frame = whole
        future = self._pending.pop(frame.request, None)
        if future is not None and not future.done():
            future.set_result(frame)
        else:
            self._give_back(frame)

    def _withdraw_request(self, number: int, future: asyncio.Future[SidecarFrame]) -> None:
        if number in self._pending:
            self.send(encode_frame(SidecarFrame(Verb.CANCEL, number)))
        elif not future.cancelled() and future.exception() is None:
            # The answer and the cancellation arrived in the same turn of the loop.
            self._give_back(future.result())

    def _give_back(self, frame: SidecarFrame) -> None:
        if frame.verb == Verb.GRANTED:
            self.send(encode_block(Verb.DISCARD, frame.block, frame.generation))
        elif frame.verb == Verb.PULLED and frame.readers:
            self.send(encode_block(Verb.RELEASE, frame.block, frame.generation))

    def _join_text(self, frame: SidecarFrame) -> SidecarFrame | None:
        pieces = self._texts.setdefault(frame.request, [])
        pieces.append(frame.text)
        if frame.nbytes:
            return None
        return frame._replace(text=b"".join(self._texts.pop(frame.request)))

    def _on_timeout(self, future: asyncio.Future[SidecarFrame], timeout: float) -> None:
        if future.done():
            return
        future.set_exception(self._timeout_error(timeout))
        if self._received > self._loop.time() - timeout:
            return
        # The sidecar answers no client: other requests need not wait as long again.
        self._silent = True
        for other in self._pending.values():
            if not other.done():
                other.set_exception(self._timeout_error(timeout))

    def _timeout_error(self, timeout: float) -> Retryable:
        return away_error(f"the sidecar at {self._path} did not answer within {timeout:.1f} s; retry later", self._node)

    def _closed_error(self) -> Retryable:
        return away_error(f"the connection to the sidecar at {self._path} is gone; retry once it is back", self._node)

    def _flush_frames(self) -> None:
        out, self._out = self._out, []
        self._is_flush_due = False
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None
        if out and self._transport is not None:
            self._transport.write(b"".join(out))


def _check_peer(connection: socket.socket, path: str) -> None:
    """Raise ``ProtocolError`` unless this user or root listens at ``path``.

    Pass if the kernel does not support the check.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    layout = struct.Struct("3i")  # struct ucred: process, user, group
    _, user, _ = layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size))
    if user not in (0, os.geteuid()):
        raise ProtocolError(f"the sidecar at {path} runs as user {user}, not as {os.geteuid()}: start it as this one")


#: Longest wait for memory for a mirror.
ROOM_SECONDS = 5.0
#: Rows of a tensor, from the first to the one after the last.
Rows = tuple[int, int]


class MirrorReads:
    """This client's open reads of other nodes' tensors, by handle."""

    def __init__(self) -> None:
        self._open: dict[Handle, list[Handle]] = {}
        self._invocations: dict[str, set[Handle]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def find(self, handle: Handle) -> Handle | None:
        """Return the handle of the mirror of ``handle`` with an open read."""
        reads = self._open.get(handle)
        return reads[-1] if reads else None

    def add(self, handle: Handle, mirror: Handle, invocation: str) -> None:
        """Add a read of ``handle``, by ``mirror``, until ``invocation`` ends."""
        self._open.setdefault(handle, []).append(mirror)
        self._invocations.setdefault(invocation, set()).add(handle)

    def end_invocation(self, invocation: str) -> None:
        """Remove all reads of ``invocation``."""
        for handle in self._invocations.pop(invocation, ()):
            self._open.pop(handle, None)

    def pop(self, handle: Handle) -> Handle | None:
        """End one read of ``handle``; returns the handle of its mirror, or None without a read."""
        reads = self._open.get(handle)
        if not reads:
            return None
        mirror = reads.pop()
        if not reads:
            del self._open[handle]
        return mirror

    def clear(self) -> None:
        """Remove all reads: the sidecar is gone, and all mirrors with it."""
        self._open.clear()
        self._invocations.clear()


def pull_request(handle: Handle, rows: Rows | None, *, begins: bool, invocation: str, deadline: float) -> PullRequest:
    """Return the request for ``rows`` of ``handle``, or for all. Raises ``ProtocolError`` for missing rows."""
    start, stop = 0, handle.nbytes
    if rows is not None:
        row = prod(handle.shape[1:]) * ITEMSIZE[handle.dtype]
        start, stop = rows[0] * row, rows[1] * row
    if not 0 <= start <= stop <= handle.nbytes:
        raise ProtocolError(f"tensor {handle.id} of shape {handle.shape} has no rows {rows}")
    wait = max(min(ROOM_SECONDS, deadline - time.time()), 0.0)
    return PullRequest(
        handle.node, handle.id, handle.generation, handle.key, handle.nbytes, start, stop, begins, invocation,
        deadline, wait,
    )  # fmt: skip


async def pull_tensor(link: SidecarLink, request: PullRequest, handle: Handle, arena: str, node: str) -> Handle:
    """Send ``request`` to the sidecar; returns the handle of the mirror on ``node``, in ``arena``.

    Raises ``NodeUnreachable``, ``StaleHandle``, ``ArenaFull`` and ``DeadlineExceeded``.
    """
    seconds = max(request.deadline - time.time(), 0.0) + ANSWER_TIMEOUT_SECONDS
    answer = await link.call(SidecarFrame(Verb.PULL), seconds, msgspec.json.encode(request))
    if answer.verb == Verb.PULLED:
        return msgspec.structs.replace(
            handle, id=answer.block, node=node, arena=arena, offset=answer.offset, generation=answer.generation, key=0
        )
    if answer.verb == Verb.TEXT:
        raise _problem_error(answer.text)
    raise refusal_error(answer, handle.nbytes, request.wait)


def decline_text(handle: Handle, retention: Retention = Retention.NONE) -> bytes:
    """Return frames that decline a read of ``handle``, or change its retention."""
    request = PullRequest(handle.node, handle.id, handle.generation, handle.key, retention=retention)
    return encode_text(0, msgspec.json.encode(request), Verb.DECLINE)


def _problem_error(text: bytes) -> OmnibusError:
    try:
        return from_problem(msgspec.json.decode(text, type=ProblemDetails))
    except msgspec.DecodeError as error:
        return ProtocolError(f"the sidecar answered a pull with another message: {error}")
