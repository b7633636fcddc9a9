"""Tenant of the current request and its work, from the API key."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import NamedTuple

from omnibus.api_key import KeyRecord


class Tenant(NamedTuple):
    """Tenant that sends a request.

    ``name`` is empty if no keys are required, and for the operator; ``key`` is the one sent. Its requests wait in the
    line ``queue``, by default the one of its name.
    """

    name: str = ""
    weight: float = 1.0
    key: KeyRecord | None = None
    queue: str = ""

    def owns(self, name: str) -> bool:
        """Return True if this tenant owns the data of tenant ``name``; the operator owns everything."""
        return not self.name or name == self.name

    def salt(self, common: str, isolate: bool) -> str:
        """Return the salt that separates this tenant's cached media from other tenants'."""
        if not self.name or not isolate:
            return common
        return sha256(f"{len(common)}:{common}:{self.name}".encode()).hexdigest()[:32]


NOBODY = Tenant()
_current: ContextVar[Tenant] = ContextVar("tenant", default=NOBODY)


def current_tenant() -> Tenant:
    """Return the tenant of the current request."""
    return _current.get()


@contextmanager
def acting_as(tenant: Tenant) -> Iterator[None]:
    """Run the block for ``tenant``, including tasks that begin there."""
    token = _current.set(tenant)
    try:
        yield
    finally:
        _current.reset(token)
