"""Budget of request bodies: their minimum rate, their bytes in memory, and turns to copy large ones.

A body counts from its first byte until its request is answered, because it is in memory for so long. Small bodies are
free, so that large ones never block them.

Slots for work outside executors, which no tenant can block.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from itertools import count

from omnibus.errors import Overloaded, TooSlow
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus_gateway.tenancy import tenant as tenants
from omnibus_gateway.tenancy.tenant import Tenant

#: Part of the slots that one tenant may hold.
_MAX_TENANT_SHARE = 1 / 4


class TenantSlots:
    """``slots``, of which a named tenant holds at most a quarter.

    The tenant with the fewest slots is next; of equals, the one whose last turn was longest ago. While others wait, a
    tenant waits for at most one turn of each of them. A named tenant may have ``queue`` requests that wait.
    """

    def __init__(self, slots: int, queue: int = 0) -> None:
        self._slots = slots
        self._free = slots
        self._queue = queue
        self._turns = count()
        self._last: dict[str, int] = {}  # turn of each tenant that is here
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot during the block. Raises ``Overloaded`` if too many of ``tenant`` wait."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot, which ``release`` frees. Raises as ``hold``."""
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(tenant, deque())
        if tenant and self._queue and sum(not each.done() for each in waiting) >= self._queue:
            raise Overloaded(f"{self._queue} requests of this tenant wait here: try again later", retry_after=1.0)
        waiting.append(turn)
        self._admit_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment as its timeout
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Free a slot that ``tenant`` holds."""
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
            if tenant not in self._waiting:
                self._last.pop(tenant, None)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._free and (ready := [name for name in self._waiting if self._held[name] < self._tenant_limit(name)]):
            name = min(ready, key=lambda each: (self._held[each], self._last.get(each, -1)))
            turns = self._waiting[name]
            turn = turns.popleft()
            if not turns:
                del self._waiting[name]
            if not turn.done():  # not cancelled
                self._free -= 1
                self._held[name] += 1
                self._last[name] = next(self._turns)
                turn.set_result(None)

    def _tenant_limit(self, tenant: str) -> int:
        return max(1, int(self._slots * _MAX_TENANT_SHARE)) if tenant else self._slots


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
