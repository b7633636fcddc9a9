"""Tenant of the request that is being handled: known from its API key on, wherever its work is done."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import NamedTuple

from omnibus.api_key import KeyRecord


class Tenant(NamedTuple):
    """Tenant that sends a request.

    ``name`` is empty where no keys are required, and for the operator; ``key`` is the one sent. Its requests wait in
    the line ``queue``, by default the one of its name.
    """

    name: str = ""
    weight: float = 1.0
    key: KeyRecord | None = None
    queue: str = ""

    def owns(self, name: str) -> bool:
        """Return whether what belongs to tenant ``name`` is this one's; the operator's is everything."""
        return not self.name or name == self.name

    def salt(self, common: str, isolate: bool) -> str:
        """Return the salt that separates what is kept of this tenant's media from that of other tenants."""
        if not self.name or not isolate:
            return common
        return sha256(f"{len(common)}:{common}:{self.name}".encode()).hexdigest()[:32]


NOBODY = Tenant()
_current: ContextVar[Tenant] = ContextVar("tenant", default=NOBODY)


def current_tenant() -> Tenant:
    """The tenant of the request that is being handled."""
    return _current.get()


@contextmanager
def acting_as(tenant: Tenant) -> Iterator[None]:
    """Handle all work inside the ``with`` block for ``tenant``, tasks that are begun there included."""
    token = _current.set(tenant)
    try:
        yield
    finally:
        _current.reset(token)
