"""This gateway's part of a key's limits: request rate, concurrency and GPU-seconds.

Token bucket that fills at a steady rate. Pure state: the caller passes the clock.

Number of gateways, by which each divides a tenant's limits.

A limit is divided by the gateways with recent heartbeats. Together they allow no more than the limit, rounded up to one
request each. A tenant gets all of it if its requests are spread evenly, and a G-th if it uses one of G gateways. After
a gateway dies, its part is unused for ``GATEWAY_ABSENT_SECONDS``. After one joins, there is one part too many for one
heartbeat.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil, floor

from omnibus.api_key import KeyRecord
from omnibus.bus.heartbeats import GATEWAY_ABSENT_SECONDS
from omnibus.bus.messages import GatewayStatus
from omnibus.cluster.presence import PresenceTracker
from omnibus.errors import Overloaded
from omnibus_gateway.tenancy.fair_queue import count_refused


class TokenBucket:
    """Bucket that fills by ``rate`` a second up to ``most``. One ``take_tokens`` may overdraw it."""

    __slots__ = ("_at", "_level", "_most", "_rate")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._level = most
        self._at = now

    def resize(self, rate: float, most: float, now: float) -> None:
        """Change the rate; the level stays, as far as it fits."""
        self._fill(now)
        self._rate, self._most = rate, most
        self._level = min(self._level, most)

    def wait_seconds(self, need: float, now: float) -> float:
        """Return the seconds until ``need`` is available; 0 if it is now."""
        self._fill(now)
        return max(0.0, (min(need, self._most) - self._level) / self._rate)

    def state(self, now: float) -> tuple[float, float]:
        """Return the level (negative if overdrawn) and the seconds until full."""
        self._fill(now)
        return self._level, (self._most - self._level) / self._rate

    def take_tokens(self, amount: float, now: float) -> None:
        """Take ``amount``; a negative amount is returned to the bucket."""
        self._fill(now)
        self._level = min(self._most, self._level - amount)

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(now, self._at)


#: Seconds of its GPU-seconds that a key may use at once.
BURST_SECONDS = 10.0
#: Key of the scope with the limits of a WebSocket's key: each response counts separately.
KEY_LIMITS = "omnibus.key_limits"


class Allowance:
    """One key at this gateway, which is one of ``gateways``.

    ``inflight`` counts requests, ``deferred`` work that continues after its request. ``revoked`` is set when the key
    is revoked.
    """

    def __init__(self, record: KeyRecord, gateways: int, now: float) -> None:
        self.inflight = 0
        self.deferred = 0
        self.revoked = asyncio.Event()
        self._stops: set[Callable[[], None]] = set()
        self._room = asyncio.Event()
        self._record = record
        self._gateways = gateways
        self._requests = TokenBucket(*self._request_rate(), now)
        self._seconds = TokenBucket(*self._gpu_rate(), now)

    def update_limits(self, record: KeyRecord, gateways: int, now: float) -> None:
        """Apply a changed record, or a changed number of gateways."""
        if record is self._record and gateways == self._gateways:
            return
        self._record, self._gateways = record, gateways
        self._requests.resize(*self._request_rate(), now)
        self._seconds.resize(*self._gpu_rate(), now)
        self.wake_waiting()

    def has_room(self, starts_work: bool) -> bool:
        """Return True if one more request may run; with ``starts_work`` deferred work counts as well."""
        busy = self.inflight + (self.deferred if starts_work else 0)
        return not self._record.concurrent or busy < ceil(self._record.concurrent / self._gateways)

    def check_room(self, starts_work: bool) -> None:
        """Raise ``Overloaded`` if there is no room."""
        if not self.has_room(starts_work):
            raise Overloaded(
                f"this key may have {self._record.concurrent} requests at a time, work in the background included: "
                "wait for one of them",
                reason="concurrent",
            )

    def start_request(self, now: float, starts_work: bool = True) -> None:
        """Count one more request. Raises ``Overloaded`` with the limit.

        A request that does not ``starts_work``, such as a status query, ignores background work.
        """
        record = self._record
        self.check_room(starts_work)
        if record.rate:
            if wait := self._requests.wait_seconds(1.0, now):
                raise Overloaded(
                    f"this key may send {record.rate:g} requests per second: wait", retry_after=wait, reason="rate"
                )
            self._requests.take_tokens(1.0, now)
        self.inflight += 1

    def end_request(self) -> None:
        self.inflight -= 1
        self.wake_waiting()

    async def wait_room(self) -> None:
        """Wait until one more request may run."""
        while not self.has_room(starts_work=True):
            self._room.clear()
            await self._room.wait()

    def wake_waiting(self) -> None:
        """Wake the waiters, because there may be room."""
        self._room.set()

    def revoke(self) -> None:
        """Stop all work of the key, which is no longer valid."""
        self.revoked.set()
        for stop in list(self._stops):
            stop()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` if the key is revoked during the block; at once if it already is."""
        self._stops.add(stop)
        try:
            if self.revoked.is_set():
                stop()
            yield
        finally:
            self._stops.discard(stop)

    def rate_headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return response headers: the request limit, its remainder and its reset."""
        if not self._record.rate:
            return []
        most, left, seconds = self.rate_state(now)
        limits = (("limit", f"{most}"), ("remaining", f"{left}"), ("reset", f"{seconds:.3f}s"))
        return [(f"x-ratelimit-{name}-requests".encode(), value.encode()) for name, value in limits]

    def rate_state(self, now: float) -> tuple[int, int, float]:
        """Return the maximum burst, the remaining requests and the seconds until full."""
        left, seconds = self._requests.state(now)
        return floor(self._request_rate()[1]), max(0, floor(left)), seconds

    def check_gpu_seconds(self, now: float) -> None:
        """Raise ``Overloaded`` while its GPU-seconds are used up."""
        if self._record.gpu_seconds and (wait := self._seconds.wait_seconds(0.0, now)):
            raise Overloaded(
                f"this key may use {self._record.gpu_seconds:g} GPU-seconds per second and has used more: wait",
                retry_after=wait,
                reason="gpu_seconds",
            )

    def use_gpu_seconds(self, seconds: float, now: float) -> None:
        """Charge GPU-seconds that are used or expected; negative ones are refunded."""
        if self._record.gpu_seconds:
            self._seconds.take_tokens(seconds, now)

    def _request_rate(self) -> tuple[float, float]:
        rate = max(1e-9, self._record.rate / self._gateways)
        return rate, max(1.0, self._record.burst / self._gateways or rate)

    def _gpu_rate(self) -> tuple[float, float]:
        rate = max(1e-9, self._record.gpu_seconds / self._gateways)
        return rate, rate * BURST_SECONDS


class RateLimits:
    """Allowances of all keys that were used here; ``gateways`` returns the number of gateways."""

    def __init__(self, gateways: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._gateways = gateways
        self._clock = clock
        self._known: dict[str, Allowance] = {}
        self._records: Mapping[str, KeyRecord] = {}

    def key_allowance(self, record: KeyRecord) -> Allowance:
        """Return the allowance of a key, with its current limits."""
        record = self._records.get(record.sha256, record)
        allowance = self._known.get(record.sha256)
        if allowance is None:
            allowance = self._known[record.sha256] = Allowance(record, self._gateways(), self._clock())
        allowance.update_limits(record, self._gateways(), self._clock())
        return allowance

    @contextmanager
    def limit_request(self, record: KeyRecord, starts_work: bool = True) -> Iterator[None]:
        """Count a request of a key during the block. Raises ``Overloaded``."""
        allowance = self.key_allowance(record)
        try:
            allowance.start_request(self._clock(), starts_work)
        except Overloaded as error:  # its model is not known yet
            count_refused(record.tenant, error.reason, "")
            raise
        try:
            yield
        finally:
            allowance.end_request()

    def rate_headers(self, record: KeyRecord) -> list[tuple[bytes, bytes]]:
        """Return response headers with a key's limits; empty without a request limit."""
        return self.key_allowance(record).rate_headers(self._clock()) if record.rate else []

    def rate_state(self, record: KeyRecord) -> tuple[int, int, float]:
        """Return the state of a key's request limit, which must exist."""
        return self.key_allowance(record).rate_state(self._clock())

    def update_keys(self, records: Mapping[str, KeyRecord]) -> None:
        """Replace the valid keys and their limits: work of other keys stops."""
        self._records = records
        now = self._clock()
        for hash, each in list(self._known.items()):
            if hash in records:
                each.update_limits(records[hash], self._gateways(), now)
            else:
                del self._known[hash]
                each.revoke()


class GatewayPeers:
    """All gateways, including this one; pass events of ``subjects.GATEWAY`` to ``handle_status``."""

    def __init__(self, me: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._me = me
        self._others = PresenceTracker[bool](GATEWAY_ABSENT_SECONDS, clock)

    def handle_status(self, status: GatewayStatus) -> None:
        if status.state == "gone":
            self._others.remove(status.id)
        elif status.id != self._me:
            self._others.record(status.id, True)

    @property
    def count(self) -> int:
        """Number of gateways, at least 1."""
        return 1 + len(self._others.entries())
