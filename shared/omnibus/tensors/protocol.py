"""Frames between a tensor client and its node's sidecar, and the spare blocks that they grant ahead of need.

Every frame is ``FRAME_BYTES`` long, in both directions, little-endian. The first 16 bytes have the same meaning in all
versions, so that other versions can read a refusal.

    0   magic u16 | verb u8 | length of text u8 | request u32
    8   version u16 | readers u16 | unused 4
    16  block u64 | generation u64 | nbytes u64 | offset u64
    48  deadline f64, wall-clock seconds | wait f64, seconds
    64  text, 64 bytes: owner (HELLO), invocation (ALLOCATE, END), one piece of JSON (TEXT, PULL, DECLINE)

Only HELLO, ALLOCATE, STATS, LEDGER and PULL are answered, each exactly once and in any order; the answer repeats
``request``. JSON is sent in several frames, whose ``nbytes`` is the number of bytes in later frames: answers as TEXT,
``PullRequest`` as PULL or DECLINE. PULLED has ``readers`` 1 if it started a read. A pull that fails is answered by TEXT
with a ``ProblemDetails``.

With spare blocks, a producer writes without waiting for its sidecar, if Welcome has ``spares``. A client that needs a
size for the second time within ``IDLE_SECONDS`` requests spares of that size class. REQUEST_SPARES has the class in
``request``, its bytes in ``nbytes``, and the number in ``readers``. Each is answered by SPARE, laid out as GRANTED, or
by NO_SPARE. The next tensor of the class is written into a spare, which USE_SPARE identifies, with all fields of
ALLOCATE, and ``offset`` 1 if it is also sealed. More are requested when half of them are used. Spares that are unused
for ``IDLE_SECONDS``, or recalled with RECALL_SPARES, are returned with DISCARD.

Size classes have four steps an octave, as those of jemalloc. A spare is at most a quarter larger than its tensor, and
the sidecar frees the excess.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator
from enum import IntEnum
from math import inf, isfinite, prod
from struct import Struct
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from omnibus.errors import (
    ArenaFull,
    DeadlineExceeded,
    NodeUnreachable,
    OmnibusError,
    ProtocolError,
    Retryable,
    TooLarge,
)
from omnibus.tensors.handle import ITEMSIZE, Handle

MAGIC = 0x4F4D
VERSION = 2
#: Longest owner name or invocation tag, in UTF-8 bytes.
TEXT_BYTES = 64

_LAYOUT = Struct("<HBBIHHxxxxQQQQdd64s")
FRAME_BYTES = _LAYOUT.size


class Verb(IntEnum):
    """Type of a frame: its request or answer."""

    HELLO = 1
    ALLOCATE = 2
    SEAL = 3
    HOLD = 4
    RELEASE = 5
    DISCARD = 6
    EXTEND = 7
    END = 8
    CANCEL = 9
    STATS = 10
    LEDGER = 11
    RETAIN = 12
    DROP = 13
    PULL = 14
    DECLINE = 15
    REQUEST_SPARES = 16
    USE_SPARE = 17

    GRANTED = 32
    FULL = 33
    TOO_LARGE = 34
    LATE = 35
    ENDED = 36
    TEXT = 37
    REFUSED = 38
    PULLED = 39
    SPARE = 40
    NO_SPARE = 41
    RECALL_SPARES = 42


_VERBS = frozenset(int(verb) for verb in Verb)


class SidecarFrame(NamedTuple):
    """One frame. Fields that a verb does not use are zero."""

    verb: int
    request: int = 0
    readers: int = 0
    block: int = 0
    generation: int = 0
    nbytes: int = 0
    offset: int = 0
    deadline: float = 0.0
    wait: float = 0.0
    text: bytes = b""


class Welcome(msgspec.Struct, frozen=True):
    """The answer to HELLO, with the arena to map. ``boot`` differs after every start of the sidecar."""

    node: str
    arena: str
    path: str
    size: int
    boot: int
    #: Whether this sidecar pulls tensors from other nodes.
    pulls: bool = False
    #: Whether it grants spare blocks.
    spares: bool = False


class Retention(IntEnum):
    """Request of a DECLINE to a block's node: to keep it after its readers, or not."""

    NONE = 0
    RETAIN = 1
    DROP = 2


class PullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request for the bytes from ``start`` to ``stop`` of another node's block.

    The block has ``nbytes`` bytes. ``begins`` is true for the first range of a read, which the client ends by one
    RELEASE of the block in PULLED. ``deadline`` is in wall-clock seconds, ``wait`` for memory in seconds. DECLINE uses
    only the first four, and ``retention``.
    """

    node: str
    block: int
    generation: int
    key: int
    nbytes: int = 0
    start: int = 0
    stop: int = 0
    begins: bool = True
    invocation: str = ""
    deadline: float = 0.0
    wait: float = 0.0
    retention: Retention = Retention.NONE


class VersionMismatch(ProtocolError):
    """The peer uses another version of these frames."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the peer has version {version} of the sidecar protocol and this process has {VERSION}; "
            "install the same release of omnibus on the whole node"
        )
        self.version = version


def encode_frame(frame: SidecarFrame) -> bytes:
    """Return ``frame`` as ``FRAME_BYTES`` bytes."""
    verb, request, readers, block, generation, nbytes, offset, deadline, wait, text = frame
    return _LAYOUT.pack(
        MAGIC, verb, len(text), request, VERSION, readers, block, generation, nbytes, offset, deadline, wait, text
    )


def encode_block(verb: Verb, block: int, generation: int, deadline: float = 0.0) -> bytes:
    """Return the frame of a verb with only a block: as ``encode_frame``, at half the cost."""
    return _LAYOUT.pack(MAGIC, verb, 0, 0, VERSION, 0, block, generation, 0, 0, deadline, 0.0, b"")


def encode_text(request: int, body: bytes, verb: Verb = Verb.TEXT) -> bytes:
    """Return ``body`` as frames of ``verb`` for ``request``; at least one."""
    starts = range(0, max(len(body), 1), TEXT_BYTES)
    pieces = ((body[start : start + TEXT_BYTES], max(len(body) - start - TEXT_BYTES, 0)) for start in starts)
    return b"".join(encode_frame(SidecarFrame(verb, request, nbytes=rest, text=piece)) for piece, rest in pieces)


def decode_pull(text: bytes) -> PullRequest:
    """Decode the request in ``text``. Raises ``ProtocolError`` for other data, and for a range outside of the block."""
    try:
        pull = msgspec.json.decode(text, type=PullRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a pull of a tensor: {error}") from error
    if min(pull.block, pull.generation, pull.key, pull.start) < 0 or not pull.start <= pull.stop <= pull.nbytes:
        raise ProtocolError(f"tensor {pull.block} has no bytes from {pull.start} to {pull.stop}")
    if not isfinite(pull.deadline + pull.wait):
        raise ProtocolError(f"deadline {pull.deadline} or wait {pull.wait} is out of range")
    return pull


def encode_tag(text: str) -> bytes:
    """Return ``text`` as the bytes of a frame. Raises ``ProtocolError`` if it is empty or too long."""
    raw = text.encode()
    if not 0 < len(raw) <= TEXT_BYTES:
        raise ProtocolError(f"a name of {len(raw)} bytes cannot be sent to the sidecar; use 1 to {TEXT_BYTES} bytes")
    return raw


class FrameReader:
    """Splits a byte stream into frames."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[SidecarFrame]:
        """Return the frames that ``data`` completes. Raises ``ProtocolError`` at the first invalid one."""
        if self._rest:
            data = self._rest + data
        whole = len(data) - len(data) % FRAME_BYTES
        self._rest = data[whole:]
        return map(_parse_frame, _LAYOUT.iter_unpack(data if not self._rest else data[:whole]))


def _parse_frame(fields: tuple[int, int, int, int, int, int, int, int, int, int, float, float, bytes]) -> SidecarFrame:
    magic, verb, length, request, version, readers, block, generation, nbytes, offset, deadline, wait, text = fields
    if magic != MAGIC:
        raise ProtocolError(f"magic {magic:#06x} is not that of a sidecar frame")
    if version != VERSION:
        raise VersionMismatch(version)
    if verb not in _VERBS or length > TEXT_BYTES or not isfinite(deadline + wait):
        raise ProtocolError(f"frame with verb {verb}, text of {length} bytes, times {deadline} and {wait}")
    return SidecarFrame(verb, request, readers, block, generation, nbytes, offset, deadline, wait, text[:length])


def refusal_error(answer: SidecarFrame, nbytes: int, wait: float) -> OmnibusError:
    """Return the error of an ``answer`` without memory for ``nbytes``; ``wait`` is in seconds."""
    if answer.verb == Verb.TOO_LARGE:
        return TooLarge(f"a tensor of {nbytes} bytes never fits into this arena; its limit is {answer.nbytes} bytes")
    if answer.verb == Verb.FULL:
        if answer.text:
            return ArenaFull(f"no room for {nbytes} bytes within {wait:.2f} s ({answer.text.decode()}); retry later")
        return ArenaFull(
            f"no room for {nbytes} bytes within {wait:.2f} s. {answer.nbytes} bytes are free, "
            f"{answer.offset} in one piece; retry, or give the sidecar a larger arena"
        )
    if answer.verb == Verb.LATE:
        return DeadlineExceeded(f"the deadline passed before {nbytes} bytes were allocated")
    if answer.verb == Verb.ENDED:
        return DeadlineExceeded(f"the invocation ended while it waited for {nbytes} bytes")
    return ProtocolError(f"the sidecar answered an allocation with verb {answer.verb}")


def away_error(message: str, node: str) -> Retryable:
    """Return the error of a sidecar that does not answer.

    With ``node``, its name if there are other nodes, the error allows the work to run on another node.
    """
    return NodeUnreachable(message, node=node) if node else Retryable(message)


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
