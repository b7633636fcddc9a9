"""Work that continues after its request: batches, videos and background responses.

It belongs to the API key of that request. The key's limits apply to it, the key is charged for it, and it stops when
the key is revoked. Records of earlier builds name no key: their work runs for its tenant as long as the tenant has a
key.

Budget of each tenant in a log that all share: events of responses and sessions, or records.

A log keeps a number of bytes for a number of seconds, and drops its oldest messages first. A tenant above its share
would push out messages of others. So each gateway gives a tenant its part of the share, as a bucket that fills in this
time.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omnibus.errors import KeyRevoked, Overloaded, Retryable
from omnibus_gateway.tenancy.rate_limits import Allowance, RateLimits, TokenBucket
from omnibus_gateway.tenancy.tenant import KeyStore, Tenant


class LogBudget:
    """Of ``nbytes`` in ``seconds``, ``share`` for each tenant at all ``gateways``; off by default."""

    def __init__(
        self,
        nbytes: float = 0.0,
        seconds: float = 1.0,
        share: float = 1.0,
        gateways: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = nbytes * min(1.0, share)
        self._seconds = seconds
        self._gateways = gateways
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def wait_seconds(self, tenant: str) -> float:
        """Return the seconds until ``tenant`` may write; 0 if it has not written its share."""
        bucket = self._bucket(tenant)
        return 0.0 if bucket is None else bucket.wait_seconds(1.0, self._clock())

    def check_room(self, tenant: str) -> None:
        """Raise ``Overloaded`` if ``tenant`` has written its share of events."""
        if wait := self.wait_seconds(tenant):
            raise Overloaded(
                "your responses and sessions have written as many events as their log keeps for one tenant. Wait, or "
                "request a response that is neither streamed nor in the background",
                retry_after=wait,
                reason="events",
            )

    def count(self, tenant: str, nbytes: int) -> None:
        """Count ``nbytes`` that ``tenant`` has written."""
        bucket = self._bucket(tenant)
        if bucket is not None:
            bucket.take_tokens(nbytes, self._clock())

    def _bucket(self, tenant: str) -> TokenBucket | None:
        if not tenant or self._most <= 0:
            return None
        now, most = self._clock(), self._most / self._gateways()
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = TokenBucket(most / self._seconds, most, now)
        bucket.resize(most / self._seconds, most, now)
        return bucket


class DeferredWork:
    """Finds the tenants of such work, and stops it; without ``keys`` nothing is checked."""

    def __init__(
        self, keys: KeyStore | None = None, limits: RateLimits | None = None, events: LogBudget | None = None
    ) -> None:
        #: The bytes of events that each tenant may write.
        self.events = events or LogBudget()
        self._keys = keys
        self._limits = limits

    def find_tenant(self, name: str, weight: float, key: str) -> Tenant:
        """Return the tenant ``name`` with the current key of SHA-256 ``key``.

        Raises ``KeyRevoked``, and ``Retryable`` while this gateway has not read the keys yet.
        """
        if self._keys is None or not name:
            return Tenant(name, weight)
        if not self._keys.is_loaded:
            raise Retryable("this gateway has not read the API keys yet")
        record = self._keys.records.get(key)
        if record is not None and record.tenant == name:
            return Tenant(name, record.weight, record)
        if key or all(each.tenant != name for each in self._keys.records.values()):
            raise revoked_error()
        return Tenant(name, weight)

    @contextmanager
    def counted(self, tenant: Tenant) -> Iterator[None]:
        """Count work as one of its key's requests while the block runs."""
        allowance = self._allowance(tenant)
        if allowance is None:
            yield
            return
        allowance.deferred += 1
        try:
            yield
        finally:
            allowance.deferred -= 1
            allowance.wake_waiting()

    async def wait_turn(self, tenant: Tenant) -> None:
        """Wait until the key of ``tenant`` may run another request."""
        allowance = self._allowance(tenant)
        if allowance is not None:
            await allowance.wait_room()

    def check_room(self, tenant: Tenant) -> None:
        """Raise ``Overloaded`` while the key of ``tenant`` is at its limit."""
        allowance = self._allowance(tenant)
        if allowance is not None:
            allowance.check_room(starts_work=True)

    async def wait_revoked(self, tenant: Tenant) -> None:
        """Return when the key of ``tenant`` is revoked."""
        allowance = self._allowance(tenant)
        await (allowance.revoked if allowance is not None else asyncio.Event()).wait()

    @contextmanager
    def stopped_by(self, tenant: Tenant, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` if the key of ``tenant`` is revoked during the block."""
        allowance = self._allowance(tenant)
        if allowance is None:
            yield
            return
        with allowance.stopped_by(stop):
            yield

    def _allowance(self, tenant: Tenant) -> Allowance | None:
        if self._limits is None or tenant.key is None:
            return None
        return self._limits.key_allowance(tenant.key)


def revoked_error() -> KeyRevoked:
    """Return the error of work whose key was revoked."""
    return KeyRevoked("the API key under which this was requested has been revoked: send it again with a valid key")
