"""Bytes of events that tenants write to the log of responses and sessions, which all tenants share.

The log keeps so many bytes for so many seconds, and its oldest messages leave first: a tenant that writes more than its
share would push out events of others. Each gateway gives a tenant its part of the share, as a bucket that fills in
this time.
"""

import time
from collections.abc import Callable

from omnibus.errors import Overloaded
from services.gateway.tenancy.token_bucket import TokenBucket


class LogBudget:
    """Of ``nbytes`` in ``seconds``, ``share`` for each tenant at all ``gateways``; nothing is counted by default."""

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

    def check_room(self, tenant: str) -> None:
        """Raises ``Overloaded`` where ``tenant`` has written its share."""
        bucket = self._bucket(tenant)
        if bucket is not None and (wait := bucket.wait_seconds(1.0, self._clock())):
            raise Overloaded(
                "your responses and sessions have written as many events as their log keeps for one tenant: wait, or "
                "ask for a response that is neither streamed nor made in the background",
                retry_after=wait,
                reason="events",
            )

    def count(self, tenant: str, nbytes: int) -> None:
        """``tenant`` has written ``nbytes``."""
        bucket = self._bucket(tenant)
        if bucket is not None:
            bucket.take_tokens(nbytes, self._clock())

    def _bucket(self, tenant: str) -> TokenBucket | None:
        if not tenant or self._most <= 0:
            return None
        now, most = self._clock(), self._most / self._gateways()
        found = self._buckets.get(tenant)
        if found is None:
            found = self._buckets[tenant] = TokenBucket(most / self._seconds, most, now)
        found.resize(most / self._seconds, most, now)
        return found
