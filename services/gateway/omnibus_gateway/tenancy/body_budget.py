"""Budget of request bodies: their minimum rate, their bytes in memory, and turns to copy large ones.

A body counts from its first byte until its request is answered, because it is in memory for so long. Small bodies are
free, so that large ones never block them.
"""

import asyncio
from contextvars import ContextVar

from omnibus.errors import Overloaded, TooSlow
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus_gateway.tenancy import tenant as tenants
from omnibus_gateway.tenancy.external_slots import TenantSlots
from omnibus_gateway.tenancy.tenant import Tenant

#: Bytes of a body that do not count.
UNCOUNTED_BYTES = 64 << 10
#: Bytes of a body that waits for its turn to be copied, and bytes per second of those that have one. Copying, searching
#: and storing 8 MiB blocks the event loop for about 15 ms; many bodies at a time would block all other requests.
LARGE_BYTES, TURN_BYTES_PER_SECOND = 1 << 20, 100e6
#: Seconds after which a client may retry a body without room.
_RETRY_AFTER_SECONDS = 1.0


class BodyBudget:
    """Bytes of bodies that one gateway holds; a tenant may use at most half of them."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.used = 0
        self._used_by: dict[str, int] = {}
        self._turns = TenantSlots(1)

    def check_capacity(self, tenant: Tenant, nbytes: int) -> None:
        """Raise ``Overloaded`` if there is no room for ``nbytes`` more of ``tenant``."""
        limit = self.settings.bodies
        share = limit if tenant.key is None else limit // 2
        if self.used + nbytes > limit or self._used_by.get(tenant.name, 0) + nbytes > share:
            GATEWAY.rejection_counter("", "bodies").inc()
            raise Overloaded(
                f"Request bodies of {self.used} bytes are in memory, the limit is {limit} (OMNIBUS_GATEWAY_BODIES): "
                "try again later.",
                retry_after=_RETRY_AFTER_SECONDS,
                reason="bodies",
            )

    def add_bytes(self, tenant: Tenant, nbytes: int) -> None:
        """Count ``nbytes`` for ``tenant``; a negative number releases them."""
        self.used += nbytes
        self._used_by[tenant.name] = self._used_by.get(tenant.name, 0) + nbytes
        if not self._used_by[tenant.name]:
            del self._used_by[tenant.name]

    async def take_turn(self, tenant: Tenant, nbytes: int) -> None:
        """Wait until a large body of ``nbytes`` may be copied. Tenants take turns; others run in between."""
        if nbytes >= LARGE_BYTES:
            await self._turns.acquire(tenant.name)
            asyncio.get_running_loop().call_later(nbytes / TURN_BYTES_PER_SECOND, self._turns.release, tenant.name)


class Upload:
    """Body of one request in progress.

    ``seconds`` is the time that the body took to arrive; a ``whole`` one is complete already."""

    def __init__(self, budget: BodyBudget, whole: bool = False) -> None:
        self.whole = whole
        self.seconds = 0.0
        self._budget = budget
        self._counted = 0
        self._tenant = tenants.current_tenant()

    def count_bytes(self, before: int, now: int) -> None:
        """Count a body that grew from ``before`` to ``now`` bytes. Raises ``Overloaded``."""
        more = max(0, now - UNCOUNTED_BYTES) - max(0, before - UNCOUNTED_BYTES)
        if more:
            self._budget.check_capacity(self._tenant, more)
            self._budget.add_bytes(self._tenant, more)
            self._counted += more

    def check_declared_size(self, nbytes: int) -> None:
        """Reject a body that will not fit before it is read. Raises ``Overloaded``."""
        if nbytes > UNCOUNTED_BYTES:
            self._budget.check_capacity(self._tenant, nbytes - UNCOUNTED_BYTES)

    async def take_turn(self, nbytes: int) -> None:
        """See ``BodyBudget.take_turn``."""
        await self._budget.take_turn(self._tenant, nbytes)

    def release(self) -> None:
        """Release all bytes, because the request ended."""
        if self._counted:
            self._budget.add_bytes(self._tenant, -self._counted)
            self._counted = 0
        self.seconds = 0.0

    def start_clock(self) -> "UploadClock":
        return UploadClock(self._budget.settings)


class UploadClock:
    """Clock of one body that arrives in pieces: detects one that is too slow."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._pause = settings.body_pause
        self._rate = settings.body_rate
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._end = self._began + settings.deadline

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    @property
    def next_deadline(self) -> float:
        """Event loop time by which the next piece must arrive."""
        return min(self._clock() + self._pause, self._end)

    def check_rate(self, nbytes: int, timer: asyncio.Timeout) -> None:
        """Reschedule ``timer`` for the next piece. Raises ``TooSlow`` if ``nbytes`` are too few."""
        seconds = self.elapsed_seconds
        if seconds > self._pause and nbytes < seconds * self._rate:
            raise self.too_slow_error()
        until, set_for = self.next_deadline, timer.when()
        # Not each time: pieces may be as small as a byte.
        if set_for is None or until - set_for > self._pause / 10:
            timer.reschedule(until)

    def too_slow_error(self) -> TooSlow:
        return TooSlow(
            "The request body arrived too slowly: it must not pause for "
            f"{self._pause:g} s, arrive at less than {self._rate} bytes a second, or outlast the deadline."
        )


_UPLOAD: ContextVar[Upload | None] = ContextVar("upload", default=None)


def begin_upload(budget: BodyBudget, whole: bool = False) -> Upload:
    """Count the next body that this task reads in ``budget``."""
    upload = Upload(budget, whole)
    _UPLOAD.set(upload)
    return upload


def current_upload() -> Upload:
    """Return the body of the current request; without one, an uncounted one."""
    return _UPLOAD.get() or Upload(BodyBudget(GatewaySettings()))


def upload_seconds() -> float:
    """Return the upload seconds of the current request; its deadline includes them."""
    upload = _UPLOAD.get()
    return upload.seconds if upload is not None else 0.0
