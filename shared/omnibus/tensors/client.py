"""Client to put, view and release tensors of this node without copies.

    client = await TensorClient.connect("/run/omnibus/sidecar.sock", owner="encoder-0", node="n1")

    block = await client.allocate((576, 3584), "bfloat16", invocation=id, deadline=time.time() + 30)
    encode_into(block.array)            # written in place
    send(block.seal())                  # send the handle

    array = client.view(handle)         # another process: the same bytes, read-only
    use(array)
    client.release(handle)              # do not use ``array`` after this
    client.end_invocation(id)           # the invocation is over: release all of its tensors

A transfer costs at most one round trip, for the allocation, and none if the client has a spare block of that size
(``omnibus.tensors.protocol``). All other messages are one-way and share writes. Make all calls in the thread of the
event loop; any thread may fill and read the arrays. A deadline is in ``time.time()`` seconds. For the lifetime of
blocks see ``omnibus.tensors.ledger``.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Self

import msgspec
import numpy as np

from omnibus.errors import NodeUnreachable, OmnibusError, ProtocolError, Retryable
from omnibus.tensors.arena import Arena
from omnibus.tensors.handle import Handle
from omnibus.tensors.link import (
    ANSWER_TIMEOUT_SECONDS,
    MirrorReads,
    Rows,
    SidecarLink,
    decline_text,
    pull_request,
    pull_tensor,
)
from omnibus.tensors.memory import MappingObserver
from omnibus.tensors.protocol import (
    MAX_SPARE_BYTES,
    Block,
    GrantedBlock,
    Retention,
    SidecarFrame,
    SparePool,
    Verb,
    Welcome,
    away_error,
    check_request,
    encode_block,
    encode_frame,
    encode_tag,
    make_block,
    refusal_error,
)

log = logging.getLogger(__name__)

#: Pauses before the first attempt to reconnect, and at most before later ones, in seconds.
BACKOFF_SECONDS = (0.05, 2.0)


class TensorClient:
    """One process's access to the arena of its node. Build it with ``connect``."""

    def __init__(self, socket_path: str, owner: str, node: str, timeout: float) -> None:
        self.node = node
        self.owner = owner
        self._path = socket_path
        self._timeout = timeout
        self._link: SidecarLink | None = None
        self._arena: Arena | None = None
        self._welcome: Welcome | None = None
        self._observer: MappingObserver | None = None
        self._forget_mappings: Callable[[], None] | None = None
        self._spares: SparePool | None = None
        self._mirrors = MirrorReads()
        self._back = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, socket_path: str, owner: str, node: str, *, timeout: float = 5.0) -> Self:
        """Connect to the sidecar and map its arena.

        Raises ``Retryable`` if no sidecar answers within ``timeout`` seconds, ``ProtocolError`` if it has another
        version or serves another node. After a later loss of the sidecar, the client reconnects automatically; until
        then, calls raise ``Retryable``.
        """
        client = cls(socket_path, owner, node, timeout)
        await client._open_link()
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        return self._link is not None

    async def wait_ready(self, timeout: float = 5.0) -> None:
        """Wait until the sidecar is connected again. Raises ``Retryable`` after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._back.wait()
        except TimeoutError:
            raise self._away_error() from None

    async def close(self) -> None:
        """Disconnect from the sidecar, which frees this client's open tensors. Arrays in use keep their memory."""
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if self._link is not None:
            self._link.lost = None
            self._link.close()
            self._link = None
            self._close_spares()
        if self._arena is not None:
            self._close_arena(self._arena)
            self._arena = None
        self._back.clear()

    def observe_mappings(self, observer: MappingObserver) -> None:
        """Call ``observer`` with the mappings of this and each later arena."""
        self._observer = observer
        if self._arena is not None:
            self._forget_mappings = observer(self._arena.mappings())

    async def allocate(
        self,
        shape: int | tuple[int, ...],
        dtype: str = "uint8",
        *,
        invocation: str,
        deadline: float,
        readers: int = 1,
        wait: float = 1.0,
    ) -> Block:
        """Allocate memory for a tensor of ``shape`` and ``dtype``.

        An int as ``shape`` is a number of bytes. ``readers`` (0 to 65535) is the number of expected reads: with 0, it
        is freed when sealed. ``wait`` is the longest time in seconds to queue for memory. ``bfloat16`` is shown as
        ``uint16`` words.

        Raises ``TooLarge`` at once if the arena can never hold it, and ``ArenaFull`` after ``wait``. Raises
        ``DeadlineExceeded`` if the deadline passed or the invocation ended, and ``Retryable`` without a sidecar. Raises
        ``ProtocolError`` for an unsupported dtype or numbers out of range.
        """
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        tag, nbytes = encode_tag(invocation), check_request(extents, dtype, readers, deadline, wait)
        spare = self._take_spare(nbytes, extents, dtype, deadline)
        if spare is None:
            return await self._request_block(nbytes, extents, dtype, tag, deadline, readers, wait)
        self._use_spare(spare.handle, tag, readers, deadline, is_sealed=False)
        return spare

    async def _request_block(
        self, nbytes: int, shape: tuple[int, ...], dtype: str, tag: bytes, deadline: float, readers: int, wait: float
    ) -> Block:
        link, arena = self._require_link()
        wait = max(min(wait, deadline - time.time()), 0.0)
        request = SidecarFrame(Verb.ALLOCATE, 0, readers, 0, 0, nbytes, 0, deadline, wait, tag)
        answer = await link.call(request, wait + ANSWER_TIMEOUT_SECONDS)
        if answer.verb != Verb.GRANTED:
            raise refusal_error(answer, nbytes, wait)
        grant = GrantedBlock(answer.block, answer.generation, answer.offset, answer.nbytes)
        return make_block(self, arena, grant, nbytes, shape, dtype)

    async def put(
        self,
        array: np.ndarray,
        *,
        invocation: str,
        deadline: float,
        readers: int = 1,
        wait: float = 1.0,
        dtype: str | None = None,
    ) -> Handle:
        """Copy ``array`` into the arena once and seal it. Raises the errors of ``allocate``.

        ``dtype="bfloat16"`` declares that ``uint16`` words are bfloat16 numbers; any other dtype must be the array's
        own.
        """
        name = array.dtype.name
        if dtype is not None and dtype != name and (dtype, name) != ("bfloat16", "uint16"):
            raise ProtocolError(f"an array of {name} is not {dtype}; convert it first")
        name, tag = dtype or name, encode_tag(invocation)
        nbytes = check_request(array.shape, name, readers, deadline, wait)
        block = self._take_spare(nbytes, array.shape, name, deadline)
        if block is None:
            block = await self._request_block(nbytes, array.shape, name, tag, deadline, readers, wait)
            np.copyto(block.array, array, casting="equiv")
            return block.seal()
        # Nothing may be awaited before the frame: it also seals, and a recall must not find the spare half written.
        np.copyto(block.array, array, casting="equiv")
        self._use_spare(block.handle, tag, readers, deadline, is_sealed=True)
        return block.handle

    def _take_spare(self, nbytes: int, shape: tuple[int, ...], dtype: str, deadline: float) -> Block | None:
        """Return a spare for a tensor of ``nbytes``, or None."""
        _, arena = self._require_link()
        spare = self._spares.take(nbytes) if self._spares is not None and deadline > time.time() else None
        if spare is None:
            return None
        arena.write_nbytes(spare.offset, nbytes)
        return make_block(self, arena, spare, nbytes, shape, dtype)

    def _use_spare(self, handle: Handle, tag: bytes, readers: int, deadline: float, *, is_sealed: bool) -> None:
        frame = SidecarFrame(
            Verb.USE_SPARE, 0, readers, handle.id, handle.generation, handle.nbytes, int(is_sealed), deadline, text=tag
        )
        self._require_link()[0].send(encode_frame(frame))

    def view(self, handle: Handle) -> np.ndarray:
        """Return the tensor of ``handle``, read-only and without a copy.

        It is valid until ``release`` or ``end_invocation``. Each call counts as one read and requires one ``release``,
        except for a tensor of another node, whose read ``open_tensor`` starts. Raises ``StaleHandle`` if the memory was
        freed, and ``ProtocolError`` for a malformed handle. Raises ``Retryable`` without a sidecar or a local tensor.
        """
        mirror = None if handle.node == self.node else self._mirrors.find(handle)
        if mirror is not None:  # its read has begun
            return self._require_link()[1].view(mirror)
        link, arena = self._require_arena(handle)
        array = arena.view(handle)
        link.send(encode_block(Verb.HOLD, handle.id, handle.generation))
        return array

    def is_local(self, handle: Handle) -> bool:
        """Return whether the tensor of ``handle`` is on this node; ``open_tensor`` first pulls others."""
        return handle.node == self.node

    async def open_tensor(
        self, handle: Handle, rows: Rows | None = None, *, invocation: str, deadline: float
    ) -> np.ndarray:
        """Start a read as ``view`` does; a tensor of another node is pulled first.

        Of a tensor that still grows, only ``rows`` are pulled, and later those of ``extend_read``. The end of
        ``invocation`` frees the copy. Raises the errors of ``view``, and ``NodeUnreachable``, ``ArenaFull`` and
        ``DeadlineExceeded``.
        """
        if self.is_local(handle):
            return self.view(handle)
        mirror = await self._pull(handle, rows, begins=True, invocation=invocation, deadline=deadline)
        self._mirrors.add(handle, mirror, invocation)
        return self._require_link()[1].view(mirror)

    async def extend_read(self, handle: Handle, rows: Rows, *, invocation: str, deadline: float) -> None:
        """Pull more ``rows`` of a tensor whose read is open. Raises the errors of ``open_tensor``."""
        if not self.is_local(handle):
            await self._pull(handle, rows, begins=False, invocation=invocation, deadline=deadline)

    def seal(self, handle: Handle) -> None:
        """Mark the tensor as completely written (``Block.seal``)."""
        self._send_verb(Verb.SEAL, handle)

    def release(self, handle: Handle) -> None:
        """End this read, or decline it without a ``view`` before; the sidecar learns it a moment later."""
        mirror = handle if handle.node == self.node else self._mirrors.pop(handle)
        if mirror is not None and self._link is not None:
            send = self._link.send_lazily if mirror.nbytes <= MAX_SPARE_BYTES else self._link.send
            send(encode_block(Verb.RELEASE, mirror.id, mirror.generation))
        elif self._link is not None and self._welcome is not None and self._welcome.pulls:
            self._link.send(decline_text(handle))

    def retain(self, handle: Handle) -> None:
        """End a read, but retain the tensor for later ones, if memory allows.

        Raises the errors of ``view``, except for a tensor of another node, which may already be gone.
        """
        if not self.is_local(handle):
            link, _ = self._require_link()
            link.send(decline_text(handle, Retention.RETAIN))
            return
        link, _ = self._require_arena(handle)
        link.send(encode_block(Verb.RETAIN, handle.id, handle.generation))

    def drop(self, handle: Handle) -> None:
        """Undo ``retain``: the tensor is freed once it has no readers."""
        if self.is_local(handle):
            self._send_verb(Verb.DROP, handle)
        elif self._link is not None:
            self._link.send(decline_text(handle, Retention.DROP))

    def check_handle(self, handle: Handle) -> None:
        """Raise the errors of ``view`` without reading. A tensor of another node is not checked."""
        if self.is_local(handle):
            self._require_arena(handle)[1].verify_handle(handle)

    def discard(self, handle: Handle) -> None:
        """Discard the producer's tensor, sealed or not: no client can start to read it."""
        self._send_verb(Verb.DISCARD, handle)

    def extend(self, handle: Handle, deadline: float) -> None:
        """Set another deadline of the tensor, in ``time.time()`` seconds."""
        self._send_verb(Verb.EXTEND, handle, deadline)

    def end_invocation(self, invocation: str) -> None:
        """End the invocation, on which this process has stopped. Repeated calls are harmless.

        Its tensors that no other client has open are freed a moment later.
        """
        self._mirrors.end_invocation(invocation)
        if self._link is not None:
            self._link.send(encode_frame(SidecarFrame(Verb.END, text=encode_tag(invocation))))

    async def stats(self) -> dict[str, Any]:
        """Return the sidecar's counters."""
        return msgspec.json.decode(await self._request_json(Verb.STATS), type=dict[str, Any])

    async def ledger(self) -> list[dict[str, Any]]:
        """Return the oldest thousand leases, for debugging."""
        return msgspec.json.decode(await self._request_json(Verb.LEDGER), type=list[dict[str, Any]])

    async def _request_json(self, verb: Verb) -> bytes:
        link, _ = self._require_link()
        return (await link.call(SidecarFrame(verb), ANSWER_TIMEOUT_SECONDS)).text

    def _send_verb(self, verb: Verb, handle: Handle, deadline: float = 0.0) -> None:
        # Without a sidecar nothing need be sent: its end has freed everything.
        if self._link is not None:
            self._link.send(encode_block(verb, handle.id, handle.generation, deadline))

    def _require_arena(self, handle: Handle) -> tuple[SidecarLink, Arena]:
        """Return the connection and the arena of ``handle``."""
        link, arena = self._require_link()
        if handle.node != self.node:
            raise Retryable(
                f"tensor {handle.id} is on node {handle.node!r} and this is {self.node!r}: it must be pulled first"
            )
        if handle.arena != arena.name:
            raise ProtocolError(f"handle {handle.id} names arena {handle.arena!r}; this node's is {arena.name!r}")
        return link, arena

    async def _pull(
        self, handle: Handle, rows: Rows | None, *, begins: bool, invocation: str, deadline: float
    ) -> Handle:
        """Return the handle of a local mirror of ``handle``, with ``rows``."""
        link, arena = self._require_link()
        if self._welcome is None or not self._welcome.pulls:
            raise NodeUnreachable(
                f"tensor {handle.id} is on node {handle.node!r}, and the sidecar of {self.node!r} does not pull. "
                "Set OMNIBUS_SIDECAR_HOST on all nodes, or run producer and consumer on one",
                node=handle.node,
            )
        request = pull_request(handle.validate(), rows, begins=begins, invocation=invocation, deadline=deadline)
        return await pull_tensor(link, request, handle, arena.name, self.node)

    def _require_link(self) -> tuple[SidecarLink, Arena]:
        if self._link is None or self._arena is None:
            raise self._away_error()
        return self._link, self._arena

    def _away_error(self) -> Retryable:
        node = self.node if self._welcome is not None and self._welcome.pulls else ""
        return away_error(f"the sidecar at {self._path} is away; this client reconnects automatically", node)

    async def _open_link(self) -> None:
        link, welcome = await SidecarLink.open(self._path, self.owner, self._timeout)
        try:
            self._map_arena(welcome)
        except (OmnibusError, OSError):
            link.close()
            raise
        if not link.is_alive:
            raise self._away_error()
        link.lost = self._on_lost
        self._link = link
        if welcome.spares:
            self._spares = SparePool(link.send, asyncio.get_running_loop())
            link.on_spare = self._spares.on_frame
        self._back.set()

    def _map_arena(self, welcome: Welcome) -> None:
        if welcome.node != self.node:
            raise ProtocolError(f"the sidecar at {self._path} serves node {welcome.node!r}, not {self.node!r}")
        if welcome == self._welcome:
            return
        arena = Arena.attach(welcome.path, welcome.size)
        if self._arena is not None:
            self._close_arena(self._arena)
        self._arena, self._welcome = arena, welcome
        if self._observer is not None:
            self._forget_mappings = self._observer(arena.mappings())

    def _close_spares(self) -> None:
        if self._spares is not None:
            self._spares.close()
            self._spares = None

    def _close_arena(self, arena: Arena) -> None:
        if self._forget_mappings is not None:
            self._forget_mappings()
            self._forget_mappings = None
        arena.close()

    def _on_lost(self, error: OmnibusError) -> None:
        log.warning("client %r lost its sidecar: %s", self.owner, error)
        self._link = None
        self._close_spares()
        self._mirrors.clear()
        self._back.clear()
        self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect_link())

    async def _reconnect_link(self) -> None:
        pause, longest = BACKOFF_SECONDS
        while self._link is None:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, longest)
            try:
                await self._open_link()
            except (OmnibusError, OSError) as error:
                log.info("client %r cannot reach its sidecar yet: %s", self.owner, error)


#: Longest wait of a service for its sidecar, after which its start fails.
SIDECAR_TIMEOUT_SECONDS = 45.0
_ANSWER_SECONDS = 5.0  # for one attempt
_PAUSE_SECONDS = 0.2
_REPORT_SECONDS = 5.0  # between two log lines


async def connect_when_ready(
    socket_path: str, owner: str, node: str, *, within: float = SIDECAR_TIMEOUT_SECONDS
) -> TensorClient:
    """Return a connected client, as ``TensorClient.connect``, once a sidecar answers.

    Raises ``Retryable`` if none does ``within`` seconds, and the ``ProtocolError`` of ``connect`` at once.
    """
    give_up, report = time.monotonic() + within, time.monotonic()
    while True:
        left = give_up - time.monotonic()
        try:
            return await TensorClient.connect(socket_path, owner, node, timeout=max(min(left, _ANSWER_SECONDS), 0.1))
        except Retryable as error:
            if left <= _PAUSE_SECONDS:
                raise
            if time.monotonic() >= report:
                log.warning("%s; waiting up to %.0f s more for it", error, left)
                report = time.monotonic() + _REPORT_SECONDS
        await asyncio.sleep(_PAUSE_SECONDS)
