"""Long-lived connections of one gateway: their limits, and their end when it stops."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from omnibus.errors import GatewayStopping, Overloaded
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus_gateway.tenancy.rate_limits import RateLimits
from omnibus_gateway.tenancy.tenant import current_tenant, tenant_share


class OpenSockets:
    """Slots for connections, with the limits of realtime sessions. ``one`` and ``many`` name them in errors."""

    def __init__(self, settings: GatewaySettings, one: str, many: str) -> None:
        self._settings = settings
        self._one, self._many = one, many
        self._open: dict[str, int] = {}
        self._stopping = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of open connections."""
        return sum(self._open.values())

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Hold a slot for the current tenant. Raises ``Overloaded`` and ``GatewayStopping``."""
        tenant, limit = current_tenant(), self._settings.realtime_sessions
        if self._stopping.is_set():
            raise GatewayStopping(f"this gateway is stopping: connect again, another gateway will take the {self._one}")
        share = tenant_share(self._settings, limit, tenant.name if tenant.key is not None else "")
        own, tenants = self._open.get(tenant.name, 0), len({*self._open, tenant.name})
        # Even when all slots are taken, a tenant with less than an equal part of them gets one.
        if own >= share or (self.count >= limit and own >= limit // tenants):
            GATEWAY.rejection_counter("", "sessions").inc()
            raise Overloaded(f"the maximum number of {self._many} is open: try again later", reason="sessions")
        self._open[tenant.name] = self._open.get(tenant.name, 0) + 1
        try:
            yield
        finally:
            self._open[tenant.name] -= 1
            if not self._open[tenant.name]:
                del self._open[tenant.name]
            self._closed.set()

    def begin_stop(self) -> None:
        """Reject new connections, and close idle ones: their clients reconnect elsewhere."""
        self._stopping.set()

    async def wait_stop(self) -> None:
        """Wait until the stop begins."""
        await self._stopping.wait()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until none is open, at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.count:
                    self._closed.clear()
                    await self._closed.wait()


async def wait_revoked(limits: RateLimits | None) -> None:
    """Return when the current tenant's key is revoked."""
    key = current_tenant().key
    revoked_event = limits.key_allowance(key).revoked if limits is not None and key is not None else asyncio.Event()
    await revoked_event.wait()


def response_limit(limits: RateLimits | None) -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager that counts a response against the key's limits."""
    key = current_tenant().key
    if limits is None or key is None:
        return nullcontext
    return lambda: limits.limit_request(key)
