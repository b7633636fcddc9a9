"""Order of tenants at one engine: who has had least of it is next. Pure state: no clock.

Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996) of what is computed, by tenant. A tenant that comes, or comes
back, begins at the place of the one that was served last: a pause earns nothing. While two tenants both have work,
what they have had, divided by their weights, differs at most by the largest piece of each, divided by its weight.
Where all work is of one tenant, or of none, this says nothing, and the order is that of arrival or of due times.
"""

from collections.abc import Mapping
from typing import NamedTuple

from omnibus.bus.messages import TENANT_HEADER

#: Tenants that are remembered before those that are not ahead are forgotten.
_MAX_TENANTS = 1024


class TenantShare(NamedTuple):
    """The tenant that work is for, empty where there are none, and its weight."""

    name: str = ""
    weight: float = 1.0


#: Work of no tenant.
NO_TENANT = TenantShare()


class TenantOrder:
    """Shares of one engine that tenants have had, in any unit, by their weights."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._now = 0.0  # what the tenant that was served last had before

    def rank(self, share: TenantShare) -> float:
        """Return what ``share`` has had; the least is next."""
        return max(self._now, self._served.get(share.name, 0.0))

    def charge(self, share: TenantShare, size: float) -> None:
        """Work of ``size`` begins for ``share``."""
        if not share.name and not self._served:
            return  # there are no tenants
        self._now = self.rank(share)
        self._served[share.name] = self._now + size / share.weight
        if len(self._served) > _MAX_TENANTS:
            self._served = {name: served for name, served in self._served.items() if served > self._now}


def read_tenant(headers: Mapping[str, str] | None) -> TenantShare:
    """The tenant that a message names in its ``headers``."""
    weight, _, name = (headers or {}).get(TENANT_HEADER, "").partition(" ")
    try:
        return TenantShare(name, max(1e-6, float(weight))) if name else NO_TENANT
    except ValueError:
        return NO_TENANT
