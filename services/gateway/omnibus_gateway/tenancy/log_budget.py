"""Budget of each tenant in a log that all share: events of responses and sessions, or records.

A log keeps a number of bytes for a number of seconds, and drops its oldest messages first. A tenant above its share
would push out messages of others. So each gateway gives a tenant its part of the share, as a bucket that fills in this
time.
"""

import time
from collections.abc import Callable

from omnibus.errors import Overloaded
from omnibus_gateway.tenancy.token_bucket import TokenBucket


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
