"""Tenants: the current one of a request, their shares of a gateway and a store, and the API keys in force."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, BackgroundPlaces, JobRecord, JobRules, Store, TenantAccount


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


def tenant_share(settings: GatewaySettings, total: int, tenant: str) -> int:
    """Return the most of ``total`` that ``tenant`` may have; all of it without tenants."""
    return max(1, int(total * settings.tenant_share)) if tenant else total


def tenant_account(settings: GatewaySettings, tenant: str | None = None) -> TenantAccount:
    """Return the store account of ``tenant``, by default of the current one.

    Without keys there is one account, with the room of all the tenants that would fill it.
    """
    name = current_tenant().name if tenant is None else tenant
    most = settings.tenant_bytes if name else int(settings.tenant_bytes / min(1.0, settings.tenant_share))
    return TenantAccount(name, most)


def background_places(settings: GatewaySettings, tenant: str) -> BackgroundPlaces:
    """Return the limits of background responses: of all tenants, and of ``tenant``."""
    return BackgroundPlaces(settings.responses_open, tenant_share(settings, settings.responses_open, tenant))


async def put_counted_job(
    settings: GatewaySettings, store: Store, kind: str, job: JobRecord, most_open: int, most_kept: int
) -> None:
    """Add ``job``, whose request counts toward the bytes of its tenant.

    Raises ``LimitReached``, and ``Overloaded`` if all tenants together, or this one, have too many jobs.
    """
    account, member = tenant_account(settings, job.tenant), f"job:{kind}:{job.id}"
    shares = (tenant_share(settings, each, job.tenant) if job.tenant else 0 for each in (most_open, most_kept))
    await store.reserve(account, member, len(job.request) + OVERHEAD_BYTES, job.expires - job.created)
    try:
        await store.put_job(kind, job, JobRules(most_open, most_kept, *shares))
    except BaseException:
        await store.release(account.name, member)
        raise


log = logging.getLogger(__name__)

#: Seconds between two checks of the file: mounted secrets change while a service runs.
POLL_SECONDS = 1.0


class KeyView(NamedTuple):
    """API keys in force.

    Contains whether requests require a key, the keys, the hashes of those in the file, and whether the store's keys are
    included.
    """

    required: bool
    records: list[KeyRecord]
    of_file: frozenset[str]
    follows_store: bool


class KeyStore:
    """Follows both sources. If one cannot be read, its last keys stay in force."""

    def __init__(
        self, settings: GatewaySettings, store: Store, on_change: Callable[[Mapping[str, KeyRecord]], None]
    ) -> None:
        self._file = Path(settings.keys_file) if settings.keys_file else None
        self._store = store if settings.keys else None
        self._changed = on_change
        self._of_file: dict[str, KeyRecord] = {}
        self._of_store: dict[str, KeyRecord] = {}
        self._seen: tuple[int, int] | None = None
        self.records: dict[str, KeyRecord] = {}
        #: Whether all sources were read: until then, an unknown key may be valid.
        self.is_loaded = self._store is None

    def load_file(self) -> None:
        """Read the file. Raises ``BadRequest``, because a configured file must be readable."""
        if self._file is not None:
            self._of_file = api_key.read_key_file(self._file)
            self._seen = _file_version(self._file)
            self._merge_records()

    async def follow_sources(self) -> None:
        """Follow both sources, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._file is not None:
                group.create_task(self._follow_file(self._file))
            if self._store is not None:
                group.create_task(self._follow_store(self._store))

    def view(self, required: bool) -> KeyView:
        return KeyView(required, list(self.records.values()), frozenset(self._of_file), self._store is not None)

    def find(self, key: str) -> KeyRecord | None:
        return api_key.find_key_record(self.records, key)

    async def _follow_store(self, store: Store) -> None:
        async for records in store.key_changes():
            self._of_store = records
            self._merge_records()
            self.is_loaded = True

    async def _follow_file(self, path: Path) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.reload_file(path)

    def reload_file(self, path: Path) -> None:
        """Read the file again if it has changed."""
        mark = _file_version(path)
        if mark is None or mark == self._seen:
            return
        self._seen = mark
        try:
            self._of_file = api_key.read_key_file(path)
        except BadRequest as error:
            log.error("%s; its former keys stay in force", error)
            return
        self._merge_records()

    def _merge_records(self) -> None:
        """Merge the records of both sources; the file wins for a key in both."""
        self.records = {**self._of_store, **self._of_file}
        self._changed(self.records)
        log.info("%d API keys of %d tenants", len(self.records), len({each.tenant for each in self.records.values()}))


def _file_version(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
