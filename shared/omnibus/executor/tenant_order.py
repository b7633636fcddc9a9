"""Order of tenants at one engine: the one with the least service is next. Pure state: no clock.

Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996) of computed work, by tenant. A tenant that arrives, or
returns, starts at the place of the one that was served last: a pause earns nothing. While two tenants both have work,
their services, divided by their weights, differ by a bounded amount. It is at most the largest piece of each, divided
by its weight. If all work is of one tenant, or of none, the order is that of arrival or of due times.
"""

from collections.abc import Mapping
from typing import NamedTuple

from omnibus.bus.messages import TENANT_HEADER

#: Tenants that are kept before those that are not ahead are dropped.
_MAX_TENANTS = 1024


class TenantShare(NamedTuple):
    """Tenant of some work, and its weight; an empty name means no tenant."""

    name: str = ""
    weight: float = 1.0


#: Work without a tenant.
NO_TENANT = TenantShare()


class TenantOrder:
    """Service of one engine by tenant, in any unit, divided by weight."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._now = 0.0  # service of the tenant that was served last, before that

    def rank(self, share: TenantShare) -> float:
        """Return the service of ``share``; the least is next."""
        return max(self._now, self._served.get(share.name, 0.0))

    def charge(self, share: TenantShare, size: float) -> None:
        """Charge ``share`` for work of ``size`` that starts now."""
        if not share.name and not self._served:
            return  # there are no tenants
        self._now = self.rank(share)
        self._served[share.name] = self._now + size / share.weight
        if len(self._served) > _MAX_TENANTS:
            self._served = {name: finish_time for name, finish_time in self._served.items() if finish_time > self._now}


def read_tenant(headers: Mapping[str, str] | None) -> TenantShare:
    """Return the tenant in the ``headers`` of a message."""
    weight, _, name = (headers or {}).get(TENANT_HEADER, "").partition(" ")
    try:
        return TenantShare(name, max(1e-6, float(weight))) if name else NO_TENANT
    except ValueError:
        return NO_TENANT
