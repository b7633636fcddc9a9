"""Limits that one session is held to: bytes that it holds, events in a second, and what its key says of its rate."""

import asyncio
import time
from collections.abc import Callable

from services.gateway.realtime.response_events import Event
from services.gateway.tenancy.body_budget import current_upload
from services.gateway.tenancy.rate_limits import RateLimits
from services.gateway.tenancy.tenant import current_tenant

#: Events that a client may send in a second; more wait.
MAX_EVENTS_PER_SECOND = 1000


class HeldBytes:
    """Bytes that a session holds, counted with the bodies of requests."""

    def __init__(self) -> None:
        self._upload = current_upload()
        self._held = 0

    def count_bytes(self, more: int) -> None:
        """Raises ``Overloaded``."""
        self._upload.count_bytes(self._held, self._held + more)
        self._held += more


class EventPace:
    """Lets other clients go on between two events, and makes one wait that sends too many."""

    def __init__(self) -> None:
        self._count = 0
        self._begin = time.monotonic()

    async def wait(self) -> None:
        """One event was handled."""
        self._count += 1
        now = time.monotonic()
        if now - self._begin >= 1.0:
            self._count, self._begin = 0, now
        over = self._count >= MAX_EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, self._begin + 1.0 - now) if over else 0)


def rate_limit_events(limits: RateLimits | None) -> Callable[[], list[Event]]:
    """Limits of the client's key as events have them; none where it has no limit on requests."""
    key = current_tenant().key

    def describe() -> list[Event]:
        if limits is None or key is None or not key.rate:
            return []
        most, left, seconds = limits.rate_state(key)
        return [{"name": "requests", "limit": most, "remaining": left, "reset_seconds": seconds}]

    return describe
