"""Digests of executors' heartbeats: the gateway that publishes them, and their readers.

See ``omnibus.bus.relays``. A reader that misses the digests of a relay reads the heartbeats themselves for a while,
which takes effect before the executors count as silent.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.heartbeats import (
    DIGEST_SECONDS,
    DIGEST_SILENT_SECONDS,
    GATEWAY_ABSENT_SECONDS,
    RELAY_ABSENT_SECONDS,
    RELAY_ANNOUNCE_SECONDS,
    WHOLE_STATUS_SECONDS,
)
from omnibus.bus.messages import ExecutorStatus, GatewayStatus
from omnibus.bus.relays import MAX_DIRECT_READERS, MAX_RELAYS, Heartbeat, RelayStatus, decode_digest, encode_digests
from omnibus.errors import OmnibusError, ProtocolError
from omnibus.service import until_cancelled

log = logging.getLogger(__name__)

#: Seconds for which a reader reads heartbeats after it missed a digest: the executors find another relay in less.
_DIRECT_SECONDS = 2 * RELAY_ABSENT_SECONDS
#: Seconds by which a check for digests may be late. A busy reader of heartbeats would only become busier.
_MAX_LATE_SECONDS = 0.1
#: Seconds for which digests cannot bring back an executor that another process saw to end.
_TOMBSTONE_SECONDS = 1.0
#: Executors of a relay from which on it looks for those that have left.
_MIN_TOLD = 1024
#: Executors of which the last heartbeat is remembered.
_MAX_REMEMBERED = 1 << 16


class StatusFilter:
    """Last statuses: finds those in digests that are older than what their executors have told everybody since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: OrderedDict[str, ExecutorStatus] = OrderedDict()
        self._gone: dict[str, float] = {}

    def note_direct(self, status: ExecutorStatus) -> None:
        """Record a status that its executor published to all."""
        self._gone.pop(status.id, None)
        self._last[status.id] = status
        self._last.move_to_end(status.id)
        if len(self._last) > _MAX_REMEMBERED:
            self._last.popitem(last=False)

    def note_gone(self, executor: str) -> None:
        """Record that ``executor`` has ended, as another process saw."""
        now = self._clock()
        self._gone = {id: at for id, at in self._gone.items() if now - at < _TOMBSTONE_SECONDS} | {executor: now}

    def is_old(self, status: ExecutorStatus) -> bool:
        """Return whether ``status`` of a digest is outdated; records it otherwise."""
        if self._gone and self._clock() - self._gone.get(status.id, -_TOMBSTONE_SECONDS) < _TOMBSTONE_SECONDS:
            return True
        last = self._last.get(status.id)
        if last is not None and status.beat <= last.beat:
            return True
        self._last[status.id] = status
        return False

    def find_status(self, beat: Heartbeat) -> ExecutorStatus | None:
        """Return the status of an executor with its heartbeat; None if its last one is unknown, or that it ended."""
        last = self._last.get(beat.id)
        return beat.update_status(last) if last is not None and last.state != "gone" else None


class DigestReader:
    """Passes the statuses of digests to ``handler``, and those of heartbeats while a relay is silent."""

    def __init__(self, bus: Bus, handler: Callable[[ExecutorStatus], None], fresh: StatusFilter) -> None:
        self._bus = bus
        self._handler = handler
        self._filter = fresh
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._direct: asyncio.Task[None] | None = None
        self._direct_until = 0.0

    async def listen(self) -> Callable[[], Awaitable[None]]:
        """Start to read. Returns a function that ends it."""
        unsubscribe = await self._bus.subscribe(subjects.event_subject(subjects.DIGEST), self._on_digest)

        async def stop() -> None:
            await unsubscribe()
            for timer in self._timers.values():
                timer.cancel()
            if self._direct is not None:
                await until_cancelled(self._direct)

        return stop

    @property
    def is_direct(self) -> bool:
        """True while it reads heartbeats."""
        return self._direct is not None and not self._direct.done()

    def _on_digest(self, delivery: Delivery) -> None:
        try:
            digest = decode_digest(delivery.data)
        except ProtocolError as error:
            log.warning("%s", error)
            return
        if (timer := self._timers.pop(digest.relay, None)) is not None:
            timer.cancel()
        if not digest.last:
            self._await_digest(digest.relay)
        for status in digest.statuses:
            self._handle_status(status)
        for beat in digest.beats:
            if (known := self._filter.find_status(beat)) is not None:
                self._handle_status(known)

    def _handle_status(self, status: ExecutorStatus) -> None:
        if not self._filter.is_old(status):
            self._handler(status)

    def _await_digest(self, relay: str) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + DIGEST_SILENT_SECONDS
        self._timers[relay] = loop.call_at(due, self._on_silence, relay, due)

    def _on_silence(self, relay: str, due: float) -> None:
        del self._timers[relay]
        if asyncio.get_running_loop().time() - due > _MAX_LATE_SECONDS:  # this process paused: digests are unread
            self._await_digest(relay)
            return
        log.info("no digest of gateway %s: reading heartbeats for %.0f s", relay, _DIRECT_SECONDS)
        self._direct_until = time.monotonic() + _DIRECT_SECONDS
        if not self.is_direct:
            self._direct = asyncio.get_running_loop().create_task(self._read_heartbeats())

    async def _read_heartbeats(self) -> None:
        with suppress(OmnibusError):  # the bus reconnects, and executors find no relay then
            unsubscribe = await self._bus.subscribe(subjects.heartbeat_subject("*"), self._on_heartbeat)
            try:
                while (left := self._direct_until - time.monotonic()) > 0:  # noqa: ASYNC110 it moves
                    await asyncio.sleep(left)
            finally:
                await unsubscribe()

    def _on_heartbeat(self, delivery: Delivery) -> None:
        with suppress(ProtocolError):  # its relay reports it
            self._handle_status(messages.decode_status(delivery.data))


class HeartbeatRelay:
    """Publishes digests if this gateway is one of the first by id, and there are many.

    ``handle_gateway`` gets the status of all gateways, also of this one. Gateways of earlier builds cannot read
    digests: while one is present, relays stop.
    """

    def __init__(self, gateway: str, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self._gateway = gateway
        self._bus = bus
        self._clock = clock
        self._readers: dict[str, tuple[bool, float]] = {}
        self._statuses: list[bytes] = []
        self._beats: list[bytes] = []
        self._told: dict[str, tuple[ExecutorStatus, float]] = {}  # the last whole ones, and when
        self._told_limit = _MIN_TOLD
        self._announced = -RELAY_ANNOUNCE_SECONDS
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._task: asyncio.Task[None] | None = None
        #: True while executors send heartbeats here.
        self.is_active = False

    def startup(self) -> None:
        """Publish digests whenever this gateway is a relay."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def shutdown(self) -> None:
        if self._task is not None:
            await until_cancelled(self._task)
        if self.is_active:
            self.is_active = False
            with suppress(OmnibusError):  # without a bus, the silence says the same
                self._announce("gone")
                self._publish_received(last=True)
        if self._unsubscribe is not None:
            await self._unsubscribe()

    def handle_gateway(self, status: GatewayStatus) -> None:
        if status.state == "ready":
            self._readers[status.id] = (status.digests, self._clock())
        else:
            self._readers.pop(status.id, None)

    def is_elected(self) -> bool:
        """Return whether this gateway is to be a relay."""
        oldest = self._clock() - GATEWAY_ABSENT_SECONDS
        self._readers = {id: reader for id, reader in self._readers.items() if reader[1] > oldest}
        readers = self._readers
        if len(readers) <= MAX_DIRECT_READERS or not all(reads for reads, _ in readers.values()):
            return False
        return self._gateway in sorted(readers)[:MAX_RELAYS]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(DIGEST_SECONDS)
            if not self._bus.connected:
                continue
            try:
                await self._publish()
            except OmnibusError as error:  # executors choose another relay, or none
                log.warning("no digest of heartbeats: %s", error)

    async def _publish(self) -> None:
        elected = self.is_elected()
        if elected and self._unsubscribe is None:
            self._unsubscribe = await self._bus.subscribe(subjects.heartbeat_subject(self._gateway), self._on_heartbeat)
        if elected and self._clock() - self._announced >= RELAY_ANNOUNCE_SECONDS:
            self._announced = self._clock()
            self._announce("ready")
        elif self.is_active and not elected:
            self._announce("gone")
        if elected or self.is_active or self._statuses or self._beats:
            self._publish_received(last=not elected)
        self.is_active = elected

    def _publish_received(self, last: bool) -> None:
        statuses, beats, self._statuses, self._beats = self._statuses, self._beats, [], []
        for digest in encode_digests(self._gateway, statuses, beats, self._bus.max_body, last):
            self._bus.publish(subjects.event_subject(subjects.DIGEST), digest)

    def _announce(self, state: str) -> None:
        self._bus.publish(
            subjects.event_subject(subjects.RELAY), msgspec.json.encode(RelayStatus(self._gateway, state))
        )

    def _on_heartbeat(self, delivery: Delivery) -> None:
        try:
            status = messages.decode_status(delivery.data)
        except ProtocolError as error:
            log.warning("%s", error)
            return
        beat, now = Heartbeat.from_status(status), self._clock()
        told, told_at = self._told.get(status.id, (None, 0.0))
        if told is not None and now - told_at < WHOLE_STATUS_SECONDS and beat.update_status(told) == status:
            self._beats.append(msgspec.json.encode(beat))
        else:
            self._told[status.id] = (status, now)
            self._statuses.append(delivery.data)
            self._forget_silent(now)

    def _forget_silent(self, now: float) -> None:
        """Forget the executors that do not send heartbeats here any more, once there are many of them."""
        if len(self._told) > self._told_limit:
            self._told = {id: told for id, told in self._told.items() if now - told[1] < 2 * WHOLE_STATUS_SECONDS}
            self._told_limit = 2 * len(self._told) + _MIN_TOLD
