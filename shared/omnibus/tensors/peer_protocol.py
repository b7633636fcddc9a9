"""Frames between the sidecars of two nodes, with proofs of a secret: encoding, no sockets.

A *pull* transfers bytes of a block of node A into memory of node B. B dials A, A never dials B. Every frame is
``FRAME_BYTES`` long, little-endian:

    0   magic u16 | version u8 | verb u8 | request u32
    8   block u64 | generation u64 | key u64 | offset u64 | nbytes u64
    48  remaining u32, milliseconds | reads u16 | status u8 | tag u64 | unused 1

HELLO, WELCOME, PROVE, REFUSED and UCX are followed by ``nbytes`` bytes of JSON. HEAD with status ``OK`` is followed by
``nbytes`` bytes of the block, unless GET had a tag.

    B: HELLO(greeting)                      A: WELCOME(greeting, proof) or REFUSED(reason)
    B: PROVE(proof)                         A: READY or REFUSED(reason)

    on data connections, one transfer at a time:
    B: GET(block, range, COPIED)            A: HEAD(status, nbytes, COPIED), the bytes
    B: DONE(reads)

    A copies the bytes into its socket, and holds the block until DONE, or aborts the connection first. So a reader that
    has all of the bytes has those of this block.

    if one of them does not send COPIED, as builds before it:
    B: DONE(reads)                          A: KEPT

    Those builds send pages (``sendfile``) instead of bytes. B trusts them only after KEPT: the bytes in its own socket
    may still be A's memory (over loopback they are).

    before the first transfer of a data connection, if both use UCX:
    B: UCX(version, address)                A: UCX(version, address); with an empty address, all data uses TCP

    afterwards GET has a tag, with which A sends the bytes to B's address. The tag is random and secret for each
    transfer, since any process that reaches B's address can send there. All other frames still use TCP. A holds the
    block until UCX has sent all of it and DONE has arrived, and sends KEPT. The end of a connection also ends its
    endpoint of UCX, on both sides.

    on the one control connection:
    B: PING                                 A: PONG
    B: OVER(block, reads)                   reads that are over without a transfer
    B: RETAIN(block)                        in place of a read, the block outlives its readers
    B: DROP(block)                          the block no longer outlives them

Times are sent as remaining durations, so clocks need not agree.
"""

import hashlib
import hmac
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeVar

import msgspec

from omnibus.errors import ProtocolError

_T = TypeVar("_T")

MAGIC = 0x4F50
VERSION = 1
#: Value of ``reads`` in GET: B needs no KEPT for copied bytes. In HEAD: these are copies, so no KEPT follows.
COPIED = 1
#: Longest JSON after a frame of the handshake.
MAX_TEXT_BYTES = 4096
#: Longest name of a node.
MAX_NODE_CHARS = 200
#: Bits of a block's key: JSON readers keep such a number exact.
KEY_BITS = 53

_LAYOUT = Struct("<HBBIQQQQQIHBQx")
FRAME_BYTES = _LAYOUT.size
_MAX_REMAINING_MS = (1 << 32) - 1


class PeerVerb(IntEnum):
    """Type of a frame between sidecars."""

    HELLO = 1
    WELCOME = 2
    PROVE = 3
    READY = 4
    REFUSED = 5
    GET = 8
    HEAD = 9
    DONE = 10
    OVER = 11
    PING = 12
    PONG = 13
    KEPT = 14
    RETAIN = 15
    DROP = 16
    UCX = 17


class PullStatus(IntEnum):
    """Answer to GET."""

    OK = 0
    #: The block was freed, was never there, or the key is not its own.
    STALE = 1
    #: Its deadline has passed.
    LATE = 2
    #: The range does not lie in the block.
    OUTSIDE = 3


class PeerFrame(NamedTuple):
    """One frame. Fields that a verb does not use are zero; ``remaining`` is in seconds."""

    verb: int
    request: int = 0
    block: int = 0
    generation: int = 0
    key: int = 0
    offset: int = 0
    nbytes: int = 0
    remaining: float = 0.0
    reads: int = 0
    status: int = PullStatus.OK
    tag: int = 0


class PeerGreeting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Introduction of a sidecar: its node, its boot, and a number that was never used before."""

    node: str
    boot: int
    nonce: str
    #: ``control`` or ``data``.
    purpose: str


class PeerWelcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer of the dialled sidecar, with its proof."""

    greeting: PeerGreeting
    proof: str


class UcxAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Address of a UCX worker, for one data connection; empty without one. Other versions use TCP."""

    version: str
    address: bytes = b""


_VERBS = frozenset(int(verb) for verb in PeerVerb)
_STATUSES = frozenset(int(status) for status in PullStatus)
_FOLLOWED_BY_TEXT = frozenset({PeerVerb.HELLO, PeerVerb.WELCOME, PeerVerb.PROVE, PeerVerb.REFUSED, PeerVerb.UCX})


def encode_peer_frame(frame: PeerFrame) -> bytes:
    """Return ``frame`` as ``FRAME_BYTES`` bytes."""
    verb, request, block, generation, key, offset, nbytes, remaining, reads, status, tag = frame
    milliseconds = min(max(int(remaining * 1000), 0), _MAX_REMAINING_MS)
    return _LAYOUT.pack(
        MAGIC, VERSION, verb, request, block, generation, key, offset, nbytes, milliseconds, reads, status, tag
    )


def encode_peer_text(verb: PeerVerb, body: object) -> bytes:
    """Return a frame of the handshake and its JSON."""
    text = msgspec.json.encode(body)
    return encode_peer_frame(PeerFrame(verb, nbytes=len(text))) + text


def decode_peer_frame(raw: bytes | bytearray | memoryview) -> PeerFrame:
    """Decode the frame in ``raw``, of ``FRAME_BYTES`` bytes. Raises ``ProtocolError`` for other data."""
    magic, version, verb, request, block, generation, key, offset, nbytes, milliseconds, reads, status, tag = (
        _LAYOUT.unpack(raw)
    )
    if magic != MAGIC:
        raise ProtocolError(f"magic {magic:#06x} is not that of a frame between sidecars")
    if version != VERSION:
        raise ProtocolError(
            f"the other sidecar has version {version} of the pull protocol, and this sidecar has {VERSION}; "
            "install the same release of omnibus on all nodes"
        )
    if verb not in _VERBS or status not in _STATUSES:
        raise ProtocolError(f"frame with verb {verb} and status {status}")
    if verb in _FOLLOWED_BY_TEXT and nbytes > MAX_TEXT_BYTES:
        raise ProtocolError(f"a greeting of {nbytes} bytes; {MAX_TEXT_BYTES} are accepted")
    return PeerFrame(verb, request, block, generation, key, offset, nbytes, milliseconds / 1000, reads, status, tag)


def decode_greeting(text: bytes) -> PeerGreeting:
    """Decode the greeting in ``text``. Raises ``ProtocolError`` for other data."""
    return _check_greeting(_decode_text(text, PeerGreeting))


def decode_welcome(text: bytes) -> PeerWelcome:
    """Decode the answer to a greeting in ``text``. Raises ``ProtocolError`` for other data."""
    welcome = _decode_text(text, PeerWelcome)
    _check_greeting(welcome.greeting)
    return welcome


def decode_ucx_address(text: bytes) -> UcxAddress:
    """Decode the address of UCX in ``text``. Raises ``ProtocolError`` for other data."""
    return _decode_text(text, UcxAddress)


def decode_words(text: bytes) -> str:
    """Decode the proof of PROVE or the reason of REFUSED in ``text``. Raises ``ProtocolError`` for other data."""
    return _decode_text(text, str)


def make_proof(secret: bytes, role: str, dialler: PeerGreeting, listener: PeerGreeting) -> str:
    """Return HMAC-SHA256 over both greetings by ``secret``.

    ``role`` (``dialler``, ``listener``) prevents a proof from being sent back as that of the other side.
    """
    return hmac.new(secret, msgspec.json.encode((role, dialler, listener)), hashlib.sha256).hexdigest()


def is_proof(proof: str, secret: bytes, role: str, dialler: PeerGreeting, listener: PeerGreeting) -> bool:
    """Return whether ``proof`` is the one of ``make_proof``, in constant time."""
    return hmac.compare_digest(proof.encode(), make_proof(secret, role, dialler, listener).encode())


def block_key(secret: bytes, block: int, generation: int) -> int:
    """Return the key that other nodes need to read a block.

    Ids and generations are only counters, and can be guessed.
    """
    digest = hashlib.blake2b(b"%d/%d" % (block, generation), digest_size=8, key=secret).digest()
    return int.from_bytes(digest, "little") >> (64 - KEY_BITS)


def _decode_text(text: bytes, type_: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a message of a handshake between sidecars: {error}") from error


def _check_greeting(greeting: PeerGreeting) -> PeerGreeting:
    if not 0 < len(greeting.node) <= MAX_NODE_CHARS or greeting.purpose not in ("control", "data"):
        raise ProtocolError(f"node {greeting.node[:80]!r} cannot ask for {greeting.purpose[:20]!r}")
    return greeting
