"""Frames between a tensor client and its node's sidecar: pure encoding, no sockets.

Every frame is ``FRAME_BYTES`` long, in both directions, little-endian. The first 16 bytes have the same meaning in all
versions, so that other versions can read a refusal.

    0   magic u16 | verb u8 | length of text u8 | request u32
    8   version u16 | readers u16 | unused 4
    16  block u64 | generation u64 | nbytes u64 | offset u64
    48  deadline f64, wall-clock seconds | wait f64, seconds
    64  text, 64 bytes: owner (HELLO), invocation (ALLOCATE, END), one piece of JSON (TEXT, PULL, DECLINE)

Only HELLO, ALLOCATE, STATS, LEDGER and PULL are answered, each exactly once and in any order; the answer repeats
``request``.

Spare blocks are granted ahead of need (``omnibus.tensors.spares``), if Welcome has ``spares``. REQUEST_SPARES has a
size class in ``request``, its bytes in ``nbytes``, and their number in ``readers``. Each is answered by SPARE, laid out
as GRANTED, or by NO_SPARE. USE_SPARE identifies one, with all fields of ALLOCATE, and ``offset`` 1 if it is also
sealed. With RECALL_SPARES, the sidecar asks the client to DISCARD unused ones.

JSON is sent in several frames, whose ``nbytes`` is the number of bytes in later frames: answers as TEXT,
``PullRequest`` as PULL or DECLINE. PULLED has ``readers`` 1 if it started a read. A pull that fails is answered by TEXT
with a ``ProblemDetails``.

Errors for a sidecar that refuses, and for one that is unreachable.
"""

from collections.abc import Iterator
from enum import IntEnum
from math import isfinite
from struct import Struct
from typing import NamedTuple

import msgspec

from omnibus.errors import (
    ArenaFull,
    DeadlineExceeded,
    NodeUnreachable,
    OmnibusError,
    ProtocolError,
    Retryable,
    TooLarge,
)

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
