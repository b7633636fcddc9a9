"""Put, view and release tensors of this node without copying them.

    client = await TensorClient.connect("/run/omnibus/sidecar.sock", owner="encoder-0", node="n1")

    block = await client.allocate((576, 3584), "bfloat16", invocation=id, deadline=time.time() + 30)
    encode_into(block.array)            # written in place
    send(block.seal())                  # the handle travels

    array = client.view(handle)         # another process: the same bytes, read-only
    use(array)
    client.release(handle)              # ``array`` must not be used from here on
    client.end(id)                      # the invocation is over: let go of everything of it

A transfer costs one round trip at most, the allocation, and none where the client has a spare block of that size
(``omnibus.tensors.spares``); all else is one-way and shares its writes. All calls
belong to the thread of the event loop; the arrays may be filled and read in any thread. A deadline is
in ``time.time()`` seconds. When a block is free: ``omnibus.tensors.ledger``.
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
from omnibus.tensors.block import Block, GrantedBlock, check_request, make_block
from omnibus.tensors.handle import Handle
from omnibus.tensors.link import ANSWER_TIMEOUT_SECONDS, SidecarLink
from omnibus.tensors.memory import MappingObserver
from omnibus.tensors.mirrors import MirrorReads, Rows, decline_text, pull_request, pull_tensor
from omnibus.tensors.protocol import Retention, SidecarFrame, Verb, Welcome, encode_block, encode_frame, encode_tag
from omnibus.tensors.refusals import away_error, refusal_error
from omnibus.tensors.spares import MAX_SPARE_BYTES, SparePool

log = logging.getLogger(__name__)

#: Pause before the first and the longest pause before a later attempt to reconnect, in seconds.
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
        """Greet the sidecar and map its arena.

        Raises ``Retryable`` when no sidecar answers within ``timeout`` seconds, ``ProtocolError`` when it
        speaks another version or serves another node. A later loss of the sidecar is repaired by the
        client itself; until then calls raise ``Retryable``.
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
        """Wait until the sidecar is back. Raises ``Retryable`` after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._back.wait()
        except TimeoutError:
            raise self._away_error() from None

    async def close(self) -> None:
        """Leave the sidecar: what this client has open is freed. Arrays in use keep their memory."""
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
        """Call ``observer`` with the arena's mappings: at once, and those of each arena that takes its place."""
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
        """Memory for a tensor of ``shape`` and ``dtype`` (an int is that many bytes).

        ``readers`` (0 to 65535) is how many reads are expected: 0 is freed when sealed. ``wait`` is how
        long, in seconds, to queue for memory. ``bfloat16`` is shown as ``uint16`` words.

        Raises ``TooLarge`` at once when the arena could never hold it, ``ArenaFull`` after ``wait``,
        ``DeadlineExceeded`` when the deadline passed or the invocation ended, ``Retryable`` without
        sidecar, ``ProtocolError`` for a dtype that may not travel or a request that makes no sense.
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
        granted = GrantedBlock(answer.block, answer.generation, answer.offset, answer.nbytes)
        return make_block(self, arena, granted, nbytes, shape, dtype)

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
        """Copy ``array`` into the arena once and seal it. Raises as ``allocate`` does.

        ``dtype="bfloat16"`` declares that ``uint16`` words are bfloat16 numbers; any other dtype is the
        array's own.
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
        # No pause from here to the frame: it seals as well, and no recall finds the spare half written.
        np.copyto(block.array, array, casting="equiv")
        self._use_spare(block.handle, tag, readers, deadline, is_sealed=True)
        return block.handle

    def _take_spare(self, nbytes: int, shape: tuple[int, ...], dtype: str, deadline: float) -> Block | None:
        """A spare for a tensor of ``nbytes``, if there is one."""
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
        """The tensor of ``handle``, read-only and without a copy; valid until ``release`` or ``end_invocation``.

        Each call counts as one read and asks for one ``release``, but for a tensor of another node: ``open_tensor``
        has begun its read. Raises ``StaleHandle`` when the memory
        was freed, ``ProtocolError`` when the handle is malformed, ``Retryable`` without sidecar or when
        the tensor is on another node.
        """
        mirror = None if handle.node == self.node else self._mirrors.find(handle)
        if mirror is not None:  # its read has begun
            return self._require_link()[1].view(mirror)
        link, arena = self._require_arena(handle)
        array = arena.view(handle)
        link.send(encode_block(Verb.HOLD, handle.id, handle.generation))
        return array

    def is_local(self, handle: Handle) -> bool:
        """Return whether ``view`` shows the tensor of ``handle``: others are pulled by ``open_tensor`` first."""
        return handle.node == self.node

    async def open_tensor(
        self, handle: Handle, rows: Rows | None = None, *, invocation: str, deadline: float
    ) -> np.ndarray:
        """Begin a read as ``view`` does, wherever the tensor is; one of another node is pulled here first.

        Of a tensor that still grows only ``rows`` are pulled, and what ``extend_read`` asks for later. ``invocation``
        is whose end frees the copy. Raises as ``view`` does, and ``NodeUnreachable``, ``ArenaFull`` and
        ``DeadlineExceeded``.
        """
        if self.is_local(handle):
            return self.view(handle)
        mirror = await self._pull(handle, rows, begins=True, invocation=invocation, deadline=deadline)
        self._mirrors.add(handle, mirror, invocation)
        return self._require_link()[1].view(mirror)

    async def extend_read(self, handle: Handle, rows: Rows, *, invocation: str, deadline: float) -> None:
        """Pull more ``rows`` of a tensor whose read is open. Raises as ``open_tensor`` does."""
        if not self.is_local(handle):
            await self._pull(handle, rows, begins=False, invocation=invocation, deadline=deadline)

    def seal(self, handle: Handle) -> None:
        """The producer has written everything (``Block.seal``)."""
        self._send_verb(Verb.SEAL, handle)

    def release(self, handle: Handle) -> None:
        """This read is over, as the sidecar learns a moment later; without a ``view`` before it, it is declined."""
        mirror = handle if handle.node == self.node else self._mirrors.pop(handle)
        if mirror is not None and self._link is not None:
            send = self._link.send_lazily if mirror.nbytes <= MAX_SPARE_BYTES else self._link.send
            send(encode_block(Verb.RELEASE, mirror.id, mirror.generation))
        elif self._link is not None and self._welcome is not None and self._welcome.pulls:
            self._link.send(decline_text(handle))

    def retain(self, handle: Handle) -> None:
        """In the place of a read, let the tensor live on until its invocation ends or others need its memory.

        Raises as ``view`` does, but for a tensor of another node, of which it is not known whether it is still there.
        """
        if not self.is_local(handle):
            link, _ = self._require_link()
            link.send(decline_text(handle, Retention.RETAIN))
            return
        link, _ = self._require_arena(handle)
        link.send(encode_block(Verb.RETAIN, handle.id, handle.generation))

    def drop(self, handle: Handle) -> None:
        """Undo ``retain``: the tensor may be freed as soon as nobody reads it."""
        if self.is_local(handle):
            self._send_verb(Verb.DROP, handle)
        elif self._link is not None:
            self._link.send(decline_text(handle, Retention.DROP))

    def check_handle(self, handle: Handle) -> None:
        """Raise as ``view`` does, without reading. Of a tensor of another node it is not known here: none is raised."""
        if self.is_local(handle):
            self._require_arena(handle)[1].verify_handle(handle)

    def discard(self, handle: Handle) -> None:
        """The producer takes its tensor back, sealed or not: nobody can begin to read it."""
        self._send_verb(Verb.DISCARD, handle)

    def extend(self, handle: Handle, deadline: float) -> None:
        """Give the tensor another deadline, in ``time.time()`` seconds."""
        self._send_verb(Verb.EXTEND, handle, deadline)

    def end_invocation(self, invocation: str) -> None:
        """The invocation is over and this process has stopped working on it. Ending twice is harmless.

        Everything of it that nobody else has open is free a moment later.
        """
        self._mirrors.end_invocation(invocation)
        if self._link is not None:
            self._link.send(encode_frame(SidecarFrame(Verb.END, text=encode_tag(invocation))))

    async def stats(self) -> dict[str, Any]:
        """The sidecar's counters."""
        return msgspec.json.decode(await self._request_json(Verb.STATS), type=dict[str, Any])

    async def ledger(self) -> list[dict[str, Any]]:
        """The oldest thousand leases, for people who debug."""
        return msgspec.json.decode(await self._request_json(Verb.LEDGER), type=list[dict[str, Any]])

    async def _request_json(self, verb: Verb) -> bytes:
        link, _ = self._require_link()
        return (await link.call(SidecarFrame(verb), ANSWER_TIMEOUT_SECONDS)).text

    def _send_verb(self, verb: Verb, handle: Handle, deadline: float = 0.0) -> None:
        # Without a sidecar there is nothing to tell: its end has freed everything.
        if self._link is not None:
            self._link.send(encode_block(verb, handle.id, handle.generation, deadline))

    def _require_arena(self, handle: Handle) -> tuple[SidecarLink, Arena]:
        """The connection to the arena that ``handle`` is of."""
        link, arena = self._require_link()
        if handle.node != self.node:
            raise Retryable(
                f"tensor {handle.id} is on node {handle.node!r} and this is {self.node!r}: it has to be pulled first"
            )
        if handle.arena != arena.name:
            raise ProtocolError(f"handle {handle.id} names arena {handle.arena!r}; this node's is {arena.name!r}")
        return link, arena

    async def _pull(
        self, handle: Handle, rows: Rows | None, *, begins: bool, invocation: str, deadline: float
    ) -> Handle:
        """The handle of a mirror of ``handle`` in this arena, with ``rows`` of it."""
        link, arena = self._require_link()
        if self._welcome is None or not self._welcome.pulls:
            raise NodeUnreachable(
                f"tensor {handle.id} is on node {handle.node!r} and the sidecar of {self.node!r} does not pull: "
                "set OMNIBUS_SIDECAR_HOST on all nodes, or run producer and consumer on one",
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
        return away_error(f"the sidecar at {self._path} is away; this client reconnects by itself", node)

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
