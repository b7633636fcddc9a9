"""Limits of one key: requests per second and at a time, and GPU-seconds per second; this gateway's part of them."""

import time
from collections.abc import Callable, Iterator
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
    """One key at this gateway, which is one of ``gateways``."""

    def __init__(self, record: KeyRecord, gateways: int, now: float) -> None:
        self.inflight = 0
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

    def start_request(self, now: float) -> None:
        """One more request. Raises ``Overloaded`` that names the limit."""
        record = self._record
        if record.concurrent and self.inflight >= ceil(record.concurrent / self._gateways):
            raise Overloaded(
                f"this key may have {record.concurrent} requests at a time: wait for one of them", reason="concurrent"
            )
        if record.rate:
            if wait := self._requests.wait_seconds(1.0, now):
                raise Overloaded(
                    f"this key may send {record.rate:g} requests per second: wait", retry_after=wait, reason="rate"
                )
            self._requests.take_tokens(1.0, now)
        self.inflight += 1

    def end_request(self) -> None:
        self.inflight -= 1

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

    def key_allowance(self, record: KeyRecord) -> Allowance:
        found = self._known.get(record.sha256)
        if found is None:
            found = self._known[record.sha256] = Allowance(record, self._gateways(), self._clock())
        found.update_limits(record, self._gateways(), self._clock())
        return found

    @contextmanager
    def limit_request(self, record: KeyRecord) -> Iterator[None]:
        """One request of a key, while it lasts. Raises ``Overloaded``."""
        allowance = self.key_allowance(record)
        try:
            allowance.start_request(self._clock())
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

    def retain_keys(self, hashes: set[str]) -> None:
        """Forget keys that are none any more."""
        for gone in [hash for hash, each in self._known.items() if hash not in hashes and not each.inflight]:
            del self._known[gone]
