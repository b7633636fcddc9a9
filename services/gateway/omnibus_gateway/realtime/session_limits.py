"""Limits of one session: bytes in memory, events per second, and the rate of its API key."""

import asyncio
import time
from collections.abc import Callable

from omnibus_gateway.realtime.response_events import Event
from omnibus_gateway.tenancy.body_budget import current_upload
from omnibus_gateway.tenancy.rate_limits import RateLimits
from omnibus_gateway.tenancy.tenant import current_tenant

#: Maximum events per second of one client; further events wait.
MAX_EVENTS_PER_SECOND = 1000


class HeldBytes:
    """Bytes of one session in memory, counted with the bodies of requests."""

    def __init__(self) -> None:
        self._upload = current_upload()
        self._held = 0

    def count_bytes(self, more: int) -> None:
        """Add ``more`` bytes. Raises ``Overloaded``."""
        self._upload.count_bytes(self._held, self._held + more)
        self._held += more


class EventPace:
    """Yields to other clients after each event, and throttles a fast client."""

    def __init__(self) -> None:
        self._count = 0
        self._begin = time.monotonic()

    async def wait(self) -> None:
        """Count one event, and wait if it is over the limit."""
        self._count += 1
        now = time.monotonic()
        if now - self._begin >= 1.0:
            self._count, self._begin = 0, now
        over = self._count >= MAX_EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, self._begin + 1.0 - now) if over else 0)


def rate_limit_events(limits: RateLimits | None) -> Callable[[], list[Event]]:
    """Return a function that describes the limits of the current key.

    Its result is empty if the key has no limit on requests.
    """
    key = current_tenant().key

    def describe() -> list[Event]:
        if limits is None or key is None or not key.rate:
            return []
        most, left, seconds = limits.rate_state(key)
        return [{"name": "requests", "limit": most, "remaining": left, "reset_seconds": seconds}]

    return describe
