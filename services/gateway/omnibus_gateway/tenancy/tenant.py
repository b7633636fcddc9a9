"""Tenants: the current one of a request, their shares and keys, and their work after a request.

Batches, videos and background responses continue after their request, and belong to its API key. The key's limits apply
to them, the key is charged, and they stop when it is revoked. Records of earlier builds name no key: their work runs
for its tenant as long as the tenant has a key.

Events of responses and sessions, and records, share logs. A log keeps a number of bytes for a number of seconds, and
drops its oldest messages first. A tenant above its share would push out messages of others. So each gateway gives a
tenant its part of the share, as a bucket that fills in this time.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.errors import BadRequest, GatewayStopping, KeyRevoked, Overloaded, Retryable
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, BackgroundPlaces, JobRecord, JobRules, Store, TenantAccount
from omnibus_gateway.tenancy.rate_limits import Allowance, RateLimits, TokenBucket


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


class LogBudget:
    """Of ``nbytes`` in ``seconds``, ``share`` for each tenant at all ``gateways``; off by default."""

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

    def wait_seconds(self, tenant: str) -> float:
        """Return the seconds until ``tenant`` may write; 0 if it has not written its share."""
        bucket = self._bucket(tenant)
        return 0.0 if bucket is None else bucket.wait_seconds(1.0, self._clock())

    def check_room(self, tenant: str) -> None:
        """Raise ``Overloaded`` if ``tenant`` has written its share of events."""
        if wait := self.wait_seconds(tenant):
            raise Overloaded(
                "your responses and sessions have written as many events as their log keeps for one tenant. Wait, or "
                "request a response that is neither streamed nor in the background",
                retry_after=wait,
                reason="events",
            )

    def count(self, tenant: str, nbytes: int) -> None:
        """Count ``nbytes`` that ``tenant`` has written."""
        bucket = self._bucket(tenant)
        if bucket is not None:
            bucket.take_tokens(nbytes, self._clock())

    def _bucket(self, tenant: str) -> TokenBucket | None:
        if not tenant or self._most <= 0:
            return None
        now, most = self._clock(), self._most / self._gateways()
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = TokenBucket(most / self._seconds, most, now)
        bucket.resize(most / self._seconds, most, now)
        return bucket


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
