"""Limits of one key: requests per second and at a time, and GPU-seconds per second; this gateway's part of them."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil, floor

from omnibus.api_key import KeyRecord
from omnibus.errors import Overloaded
from services.gateway.tenancy import metrics
from services.gateway.tenancy.token_bucket import TokenBucket

#: Seconds of its GPU-seconds that a key may use at once.
BURST_SECONDS = 10.0
#: Key of the scope under which a WebSocket has the limits of its client's key: each response counts by itself.
KEY_LIMITS = "omnibus.key_limits"


class Allowance:
    """One key at this gateway, which is one of ``gateways``.

    ``inflight`` counts requests, ``deferred`` work that goes on after its request. ``revoked`` is set when the key is.
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
        """The record was changed, or gateways came or went."""
        if record is self._record and gateways == self._gateways:
            return
        self._record, self._gateways = record, gateways
        self._requests.resize(*self._request_rate(), now)
        self._seconds.resize(*self._gpu_rate(), now)
        self.wake_waiting()

    def has_room(self, starts_work: bool) -> bool:
        """Return whether one more request may be at work; with ``starts_work`` deferred work counts as well."""
        busy = self.inflight + (self.deferred if starts_work else 0)
        return not self._record.concurrent or busy < ceil(self._record.concurrent / self._gateways)

    def check_room(self, starts_work: bool) -> None:
        """Raises ``Overloaded`` where there is no room."""
        if not self.has_room(starts_work):
            raise Overloaded(
                f"this key may have {self._record.concurrent} requests at a time, work in the background included: "
                "wait for one of them",
                reason="concurrent",
            )

    def start_request(self, now: float, starts_work: bool = True) -> None:
        """One more request. Raises ``Overloaded`` that names the limit.

        One that does not ``starts_work``, as a look at a job, does not wait for what goes on in the background.
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
        """Wait until one more may be at work."""
        while not self.has_room(starts_work=True):
            self._room.clear()
            await self._room.wait()

    def wake_waiting(self) -> None:
        """There may be room for who waits."""
        self._room.set()

    def revoke(self) -> None:
        """The key is not valid any more: stop all that goes on under it."""
        self.revoked.set()
        for stop in list(self._stops):
            stop()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` when the key is revoked while the block lasts; at once if it is already."""
        self._stops.add(stop)
        try:
            if self.revoked.is_set():
                stop()
            yield
        finally:
            self._stops.discard(stop)

    def rate_headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """Response headers that tell the key's limit on requests, how many are left, and when none will be used."""
        if not self._record.rate:
            return []
        most, left, seconds = self.rate_state(now)
        told = (("limit", f"{most}"), ("remaining", f"{left}"), ("reset", f"{seconds:.3f}s"))
        return [(f"x-ratelimit-{name}-requests".encode(), value.encode()) for name, value in told]

    def rate_state(self, now: float) -> tuple[int, int, float]:
        """Requests that may be sent at once, those of them that are left, and seconds until all are there again."""
        left, seconds = self._requests.state(now)
        return floor(self._request_rate()[1]), max(0, floor(left)), seconds

    def check_gpu_seconds(self, now: float) -> None:
        """Raises ``Overloaded`` while its GPU-seconds are used up."""
        if self._record.gpu_seconds and (wait := self._seconds.wait_seconds(0.0, now)):
            raise Overloaded(
                f"this key may use {self._record.gpu_seconds:g} GPU-seconds per second and has used more: wait",
                retry_after=wait,
                reason="gpu_seconds",
            )

    def use_gpu_seconds(self, seconds: float, now: float) -> None:
        """GPU-seconds were used, or are expected to be; negative ones are given back."""
        if self._record.gpu_seconds:
            self._seconds.take_tokens(seconds, now)

    def _request_rate(self) -> tuple[float, float]:
        rate = max(1e-9, self._record.rate / self._gateways)
        return rate, max(1.0, self._record.burst / self._gateways or rate)

    def _gpu_rate(self) -> tuple[float, float]:
        rate = max(1e-9, self._record.gpu_seconds / self._gateways)
        return rate, rate * BURST_SECONDS


class RateLimits:
    """The allowances of all keys that were used here; ``gateways`` says how many gateways there are."""

    def __init__(self, gateways: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._gateways = gateways
        self._clock = clock
        self._known: dict[str, Allowance] = {}
        self._records: Mapping[str, KeyRecord] = {}

    def key_allowance(self, record: KeyRecord) -> Allowance:
        """The allowance of a key, with its limits as they are now."""
        record = self._records.get(record.sha256, record)
        found = self._known.get(record.sha256)
        if found is None:
            found = self._known[record.sha256] = Allowance(record, self._gateways(), self._clock())
        found.update_limits(record, self._gateways(), self._clock())
        return found

    @contextmanager
    def limit_request(self, record: KeyRecord, starts_work: bool = True) -> Iterator[None]:
        """One request of a key, while it lasts. Raises ``Overloaded``."""
        allowance = self.key_allowance(record)
        try:
            allowance.start_request(self._clock(), starts_work)
        except Overloaded as error:  # before it is known for which model it is
            metrics.count_refused(record.tenant, error.reason, "")
            raise
        try:
            yield
        finally:
            allowance.end_request()

    def rate_headers(self, record: KeyRecord) -> list[tuple[bytes, bytes]]:
        """Response headers about a key's limits; none where it has no limit on requests."""
        return self.key_allowance(record).rate_headers(self._clock()) if record.rate else []

    def rate_state(self, record: KeyRecord) -> tuple[int, int, float]:
        """The state of a key's limit on requests, which it has to have."""
        return self.key_allowance(record).rate_state(self._clock())

    def update_keys(self, records: Mapping[str, KeyRecord]) -> None:
        """These keys are valid from now on, with these limits: what goes on under others stops."""
        self._records = records
        now = self._clock()
        for hash, each in list(self._known.items()):
            if hash in records:
                each.update_limits(records[hash], self._gateways(), now)
            else:
                del self._known[hash]
                each.revoke()
