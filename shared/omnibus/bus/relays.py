"""Relays: a few gateways that join the heartbeats of many executors into digests.

Each heartbeat that executors publish to all costs one delivery per gateway. With more than ``MAX_DIRECT_READERS``
gateways, up to ``MAX_RELAYS`` of them announce themselves as relays. An executor sends its heartbeats to one of them,
and the relay publishes what it received as a digest, several times a second. Changes of state go to all directly. An
executor without a relay sends heartbeats to all, so a relay that fails costs nothing for long.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import msgspec

from omnibus.bus import Delivery, subjects
from omnibus.bus.heartbeats import RELAY_ABSENT_SECONDS
from omnibus.bus.messages import BatchCounts, ExecutorStatus, decode_message
from omnibus.errors import ProtocolError
from omnibus.graph import WIRE_VERSION, is_addressable

#: Gateways up to which executors send heartbeats to each.
MAX_DIRECT_READERS = 2
#: Relays at the same time: one suffices for the load, the other one for the time when it fails.
MAX_RELAYS = 2
#: Bytes of a digest around its heartbeats and its relay's id.
_DIGEST_OVERHEAD_BYTES = 64


class RelayStatus(msgspec.Struct, frozen=True):
    """Announcement of a relay, for executors."""

    id: str
    state: str = "ready"  # ready | gone
    v: int = WIRE_VERSION


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """The part of an ``ExecutorStatus`` that changes all the time: a sixth of its bytes."""

    id: str
    beat: int
    state: str
    inflight: int
    steps: int
    reconnects: int
    keeps: bool
    busy: tuple[float, ...]
    done: tuple[int, ...]
    memory_bytes: int
    gpu_bytes: int
    batches: tuple[BatchCounts, ...] = ()

    @classmethod
    def from_status(cls, status: ExecutorStatus) -> "Heartbeat":
        return cls(*[getattr(status, name) for name in cls.__struct_fields__])

    def update_status(self, status: ExecutorStatus) -> ExecutorStatus:
        """Return ``status``, an earlier one of the executor, with these values."""
        return msgspec.structs.replace(
            status, **dict(zip(_HEARTBEAT_FIELDS, msgspec.structs.astuple(self), strict=True))
        )


_HEARTBEAT_FIELDS = Heartbeat.__struct_fields__


class StatusDigest(msgspec.Struct, frozen=True):
    """Heartbeats that ``relay`` received since its last digest. ``last`` marks its last one before it stops.

    ``statuses`` are whole: the first one of an executor, one with a change, and one every few seconds. Others are in
    ``beats``.
    """

    relay: str
    statuses: list[ExecutorStatus] = []
    beats: list[Heartbeat] = []
    last: bool = False
    v: int = WIRE_VERSION


_relay = msgspec.json.Decoder(RelayStatus).decode
_digest = msgspec.json.Decoder(StatusDigest).decode


def decode_digest(body: bytes) -> StatusDigest:
    """Decode a digest. Raises ``ProtocolError``."""
    digest: StatusDigest = decode_message(_digest, body, "digest")
    if not all(is_addressable(status.id) for status in digest.statuses):
        raise ProtocolError(f"the digest of {digest.relay[:80]!r} names an executor that cannot be addressed")
    return digest


def encode_digests(
    relay: str, statuses: Sequence[bytes], beats: Sequence[bytes], limit: int, last: bool = False
) -> Iterator[bytes]:
    """Join encoded ``statuses`` and ``beats`` into digests of at most ``limit`` bytes; without any, into one."""
    settings = WIRE_VERSION, msgspec.json.encode(relay), msgspec.json.encode(last)
    head, room = b'{"v":%d,"relay":%b,"last":%b' % settings, limit - _DIGEST_OVERHEAD_BYTES - len(relay)
    parts = [
        b'%b,"%b":[%b]}' % (head, name, b",".join(batch))
        for name, items in ((b"statuses", statuses), (b"beats", beats))
        for batch in _split_items(items, room)
    ]
    yield from parts or [head + b"}"]


def _split_items(items: Sequence[bytes], room: int) -> Iterator[list[bytes]]:
    """Split ``items`` into lists of at most ``room`` bytes."""
    batch: list[bytes] = []
    size = 0
    for item in items:
        if batch and size + len(item) + 1 > room:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item) + 1
    if batch:
        yield batch


class RelayChoice:
    """The relay of one process, from the announcements. Processes are spread over the relays by their ids."""

    def __init__(self, id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._id = id
        self._clock = clock
        self._relays: dict[str, float] = {}

    def handle_announcement(self, delivery: Delivery) -> None:
        """Handle the announcement of a relay. One of another build is ignored."""
        try:
            relay: RelayStatus = decode_message(_relay, delivery.data, "relay announcement")
        except ProtocolError:
            return
        if relay.state == "ready" and is_addressable(relay.id):
            self._relays[relay.id] = self._clock()
        else:
            self._relays.pop(relay.id, None)

    def heartbeat_subject(self) -> str:
        """Return the subject for heartbeats to a relay; empty without one."""
        oldest = self._clock() - RELAY_ABSENT_SECONDS
        relays = [relay for relay, heard in self._relays.items() if heard > oldest]
        if not relays:
            return ""
        return subjects.heartbeat_subject(max(relays, key=lambda relay: crc32(f"{relay}/{self._id}".encode())))
