"""Reads of other nodes' tensors by mirrors in this node's arena."""

import time
from math import prod

import msgspec

from omnibus.errors import OmnibusError, ProblemDetails, ProtocolError, from_problem
from omnibus.tensors.handle import ITEMSIZE, Handle
from omnibus.tensors.link import ANSWER_TIMEOUT_SECONDS, SidecarLink
from omnibus.tensors.protocol import PullRequest, Retention, SidecarFrame, Verb, encode_text, refusal_error

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
