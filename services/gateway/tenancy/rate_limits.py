"""Limits of one key: requests per second and at a time, and GPU-seconds per second; this gateway's part of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from omnibus.api_key import KeyRecord
from omnibus.errors import Overloaded
from services.gateway.tenancy import metrics
from services.gateway.tenancy.token_bucket import Bucket

#: Seconds of its GPU-seconds that a key may use at once.
AT_ONCE = 10.0


class Allowance:
    """One key at this gateway, which is one of ``gateways``."""

    def __init__(self, record: KeyRecord, gateways: int, now: float) -> None:
        self.inflight = 0
        self._record = record
        self._gateways = gateways
        self._requests = Bucket(*self._rate(), now)
        self._seconds = Bucket(*self._gpu(), now)

    def follow(self, record: KeyRecord, gateways: int, now: float) -> None:
        """The record was changed, or gateways came or went."""
        if record is self._record and gateways == self._gateways:
            return
        self._record, self._gateways = record, gateways
        self._requests.resize(*self._rate(), now)
        self._seconds.resize(*self._gpu(), now)

    def enter(self, now: float) -> None:
        """One more request. Raises ``Overloaded`` that names the limit."""
        record = self._record
        if record.concurrent and self.inflight >= ceil(record.concurrent / self._gateways):
            raise Overloaded(
                f"this key may have {record.concurrent} requests at a time: wait for one of them", reason="concurrent"
            )
        if record.rate:
            if wait := self._requests.wait(1.0, now):
                raise Overloaded(
                    f"this key may send {record.rate:g} requests per second: wait", retry_after=wait, reason="rate"
                )
            self._requests.take(1.0, now)
        self.inflight += 1

    def leave(self) -> None:
        self.inflight -= 1

    def check(self, now: float) -> None:
        """Raises ``Overloaded`` while its GPU-seconds are used up."""
        if self._record.gpu_seconds and (wait := self._seconds.wait(0.0, now)):
            raise Overloaded(
                f"this key may use {self._record.gpu_seconds:g} GPU-seconds per second and has used more: wait",
                retry_after=wait,
                reason="gpu_seconds",
            )

    def use(self, seconds: float, now: float) -> None:
        """GPU-seconds were used, or are expected to be; negative ones are given back."""
        if self._record.gpu_seconds:
            self._seconds.take(seconds, now)

    def _rate(self) -> tuple[float, float]:
        rate = max(1e-9, self._record.rate / self._gateways)
        return rate, max(1.0, self._record.burst / self._gateways or rate)

    def _gpu(self) -> tuple[float, float]:
        rate = max(1e-9, self._record.gpu_seconds / self._gateways)
        return rate, rate * AT_ONCE


class Limits:
    """The allowances of all keys that were used here; ``gateways`` says how many gateways there are."""

    def __init__(self, gateways: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._gateways = gateways
        self._clock = clock
        self._known: dict[str, Allowance] = {}

    def of(self, record: KeyRecord) -> Allowance:
        found = self._known.get(record.sha256)
        if found is None:
            found = self._known[record.sha256] = Allowance(record, self._gateways(), self._clock())
        found.follow(record, self._gateways(), self._clock())
        return found

    @contextmanager
    def inside(self, record: KeyRecord) -> Iterator[None]:
        """One request of a key, while it lasts. Raises ``Overloaded``."""
        allowance = self.of(record)
        try:
            allowance.enter(self._clock())
        except Overloaded as error:  # before it is known for which model it is
            metrics.refused(record.tenant, error.reason, "")
            raise
        try:
            yield
        finally:
            allowance.leave()

    def keep(self, hashes: set[str]) -> None:
        """Forget keys that are none any more."""
        for gone in [hash for hash, each in self._known.items() if hash not in hashes and not each.inflight]:
            del self._known[gone]
