"""Spare blocks, with which a producer writes without waiting for its sidecar.

A client that needs a size for the second time within ``IDLE_SECONDS`` requests spare blocks of that size class. Its
next tensor of the class is written into one of them, and one frame identifies and seals it. More are requested when
half of them are used. Spares that are unused for ``IDLE_SECONDS``, or recalled by the sidecar, are returned.

Size classes have four steps an octave, as those of jemalloc. A spare is at most a quarter larger than its tensor, and
the sidecar frees the excess.

Memory for one tensor, for its producer.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from math import inf, isfinite, prod
from typing import NamedTuple, Protocol

import numpy as np

from omnibus.errors import ProtocolError
from omnibus.tensors.handle import ITEMSIZE, Handle
from omnibus.tensors.protocol import SidecarFrame, Verb, encode_block, encode_frame


class GrantedBlock(NamedTuple):
    """A block that the sidecar granted; ``key`` as in ``Handle``."""

    id: int
    generation: int
    offset: int
    key: int


class Producer(Protocol):
    """The client that was granted a block."""

    node: str

    def seal(self, handle: Handle) -> None: ...

    def discard(self, handle: Handle) -> None: ...


class Block:
    """Memory that its producer fills. ``array`` is writable until ``seal`` or ``discard``.

    ``handle`` may be sent before the block is sealed (a tensor that grows row by row).
    """

    __slots__ = ("_client", "array", "handle")

    def __init__(self, client: Producer, handle: Handle, array: np.ndarray) -> None:
        self._client = client
        self.handle = handle
        self.array = array

    def seal(self) -> Handle:
        """Mark all bytes as written: from now on the tensor survives its producer."""
        self._client.seal(self.handle)
        return self.handle

    def discard(self) -> None:
        """Release the memory without sending it."""
        self._client.discard(self.handle)


class BlockMemory(Protocol):
    """The arena of a block."""

    name: str

    def writable_array(self, handle: Handle) -> np.ndarray: ...


def make_block(
    client: Producer, arena: BlockMemory, grant: GrantedBlock, nbytes: int, shape: tuple[int, ...], dtype: str
) -> Block:
    """Return the first ``nbytes`` of a granted block as a tensor."""
    block, generation, offset, key = grant
    handle = Handle(block, client.node, arena.name, offset, nbytes, dtype, shape, generation, key)
    return Block(client, handle, arena.writable_array(handle))


def check_request(shape: tuple[int, ...], dtype: str, readers: int, deadline: float, wait: float) -> int:
    """Return the bytes of such a tensor. Raises ``ProtocolError`` for an unsupported dtype, or numbers out of range."""
    size = ITEMSIZE.get(dtype)
    if size is None:
        raise ProtocolError(f"an array of {dtype!r} cannot be sent; convert it to one of {sorted(ITEMSIZE)}")
    if any(extent < 0 for extent in shape):
        raise ProtocolError(f"a tensor cannot have the shape {shape}")
    if not (0 <= readers < 1 << 16 and isfinite(deadline) and isfinite(wait)):
        raise ProtocolError(f"{readers} readers, deadline {deadline} or wait {wait} is out of range")
    return prod(shape) * size


#: Seconds after which unused spares are returned.
IDLE_SECONDS = 5.0
#: Seconds without further requests after the sidecar had none.
_REFUSED_SECONDS = 0.25
#: Bytes of the largest tensor with spares. Writing a larger one takes longer than the wait. An arena that must grow for
#: spares may do so with small pages, which are slower to write.
MAX_SPARE_BYTES = 4 << 20
#: Most spares of a class, by the bytes of its blocks.
_MOST = ((64 << 10, 16), (1 << 20, 4), (MAX_SPARE_BYTES, 2))
_UNIT_BITS, _STEPS = 6, 4


def size_class(nbytes: int) -> int:
    """Return the number, from 1, of the smallest size class that fits ``nbytes``."""
    units = max(nbytes + (1 << _UNIT_BITS) - 1 >> _UNIT_BITS, _STEPS)
    octave = max((units - 1).bit_length() - 3, 0)
    return octave * _STEPS - (-units >> octave) - _STEPS + 1


def class_bytes(number: int) -> int:
    """Return the size of the blocks of size class ``number``."""
    octave, step = divmod(number - 1, _STEPS)
    return _STEPS + step << octave + _UNIT_BITS


class _SizeClass:
    """The spares of one size: ``wanted`` is their number, ``requested`` those that the sidecar has not granted yet."""

    __slots__ = ("free", "number", "refused_until", "requested", "used", "wanted")

    def __init__(self, number: int) -> None:
        self.number = number
        self.free: list[GrantedBlock] = []
        self.requested = 0
        self.wanted = 0
        self.used = -inf  # in the loop's seconds
        self.refused_until = -inf

    @property
    def most(self) -> int:
        nbytes = class_bytes(self.number)
        return next(count for limit, count in _MOST if nbytes <= limit)


class SparePool:
    """The spares of one connection; ``send`` sends encoded frames to the sidecar in order."""

    def __init__(self, send: Callable[[bytes], None], loop: AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._classes: dict[int, _SizeClass] = {}
        self._timer: TimerHandle | None = None

    def take(self, nbytes: int) -> GrantedBlock | None:
        """Return a spare for a tensor of ``nbytes``, or None; request more when few are left."""
        if nbytes > MAX_SPARE_BYTES:
            return None
        now, number = self._loop.time(), size_class(nbytes)
        size = self._classes.get(number)
        if size is None:
            size = self._classes[number] = _SizeClass(number)
        spare = size.free.pop() if size.free else None
        if spare is None and now - size.used < IDLE_SECONDS:
            size.wanted = min(size.wanted + 1, size.most)
        size.used = now
        if len(size.free) + size.requested < (size.wanted + 1) // 2 and now >= size.refused_until:
            # After the frame of this tensor, whose block is then no longer a spare.
            self._loop.call_soon(self._request_spares, size)
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._return_idle)
        return spare

    def on_frame(self, frame: SidecarFrame) -> None:
        """Handle a frame of the sidecar: it grants a spare, has none, or recalls all."""
        if frame.verb == Verb.RECALL_SPARES:
            self._pause_requests()
            self._return_all()
            return
        size = self._classes.get(frame.request)
        if size is None:  # idle since it was requested
            if frame.verb == Verb.SPARE:
                self._send(encode_block(Verb.DISCARD, frame.block, frame.generation))
            return
        size.requested = max(size.requested - 1, 0)
        if frame.verb == Verb.SPARE:
            size.free.append(GrantedBlock(frame.block, frame.generation, frame.offset, frame.nbytes))
        else:
            size.refused_until = self._loop.time() + _REFUSED_SECONDS

    def close(self) -> None:
        """End with the connection, after which the sidecar frees all spares."""
        self._classes.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _request_spares(self, size: _SizeClass) -> None:
        count = size.wanted - len(size.free) - size.requested
        if count <= 0 or self._classes.get(size.number) is not size:
            return
        size.requested += count
        nbytes = class_bytes(size.number)
        self._send(encode_frame(SidecarFrame(Verb.REQUEST_SPARES, size.number, count, nbytes=nbytes)))

    def _pause_requests(self) -> None:
        until = self._loop.time() + _REFUSED_SECONDS
        for size in self._classes.values():
            size.refused_until = until

    def _return_all(self) -> None:
        for size in self._classes.values():
            self._return_spares(size)

    def _return_spares(self, size: _SizeClass) -> None:
        for spare in size.free:
            self._send(encode_block(Verb.DISCARD, spare.id, spare.generation))
        size.free.clear()

    def _return_idle(self) -> None:
        """Return the spares that were unused lately; check the others again later."""
        oldest = self._loop.time() - IDLE_SECONDS
        for size in [size for size in self._classes.values() if size.used <= oldest]:
            self._return_spares(size)
            del self._classes[size.number]
        self._timer = self._loop.call_later(IDLE_SECONDS, self._return_idle) if self._classes else None
