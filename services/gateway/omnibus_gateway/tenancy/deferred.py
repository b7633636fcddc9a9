"""Work that continues after its request: batches, videos and background responses.

It belongs to the API key of that request. The key's limits apply to it, the key is charged for it, and it stops when
the key is revoked. Records of earlier builds name no key: their work runs for its tenant as long as the tenant has a
key.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omnibus.errors import KeyRevoked, Retryable
from omnibus_gateway.tenancy.key_store import KeyStore
from omnibus_gateway.tenancy.log_budget import LogBudget
from omnibus_gateway.tenancy.rate_limits import Allowance, RateLimits
from omnibus_gateway.tenancy.tenant import Tenant


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
