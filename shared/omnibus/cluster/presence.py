"""Status of other services, from their events on the bus: ready executors, and the plan that each gateway follows."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.cluster.desired import Kind
from omnibus.errors import BusUnavailable, ProtocolError

#: Seconds without a word after which an executor does not count as ready: some heartbeats.
SILENT = 3.0


class ReadyExecutors:
    """Follows the executors' own word from ``listen`` on. One that names no origin stands for any."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ExecutorStatus, float]] = {}
        self._draining: dict[str, tuple[ExecutorStatus, float]] = {}
        self._news = asyncio.Event()
        self._tell: Callable[[], None] = lambda: None

    async def listen(self, bus: Bus, tell: Callable[[], None] | None = None) -> None:
        """``tell`` is called whenever one comes, begins to drain, or goes."""
        self._tell = tell or self._tell
        await bus.subscribe(subjects.event(subjects.EXECUTOR), self._on_status)
        await bus.subscribe(subjects.event(subjects.GONE), lambda delivery: self._gone(delivery.data.decode()))
        bus.publish(subjects.event(subjects.CENSUS), b"{}")

    def ids(self) -> set[str]:
        """Return the ids of the executors that are ready now."""
        return {status.id for status in self._ready()}

    def count(self, kind: Kind) -> int:
        """Return the number of executors of ``kind`` that are ready now."""
        return sum(
            (status.model, status.option) == kind[:2] and status.origin in ("", kind.origin) for status in self._ready()
        )

    def there(self) -> dict[Kind, int]:
        """Return the number of executors of each kind that have not ended yet: the ready and the draining ones."""
        found: dict[Kind, int] = {}
        for status in (*self._ready(), *_recent(self._draining)):
            kind = Kind(status.model, status.option, status.origin)
            found[kind] = found.get(kind, 0) + 1
        return found

    def missing(self, wanted: Mapping[Kind, int]) -> dict[Kind, int]:
        """Return the number of ready executors of each kind that has fewer of them than ``wanted``."""
        found = {kind: self.count(kind) for kind in wanted}
        return {kind: count for kind, count in found.items() if count < wanted[kind]}

    async def wait(self, wanted: Mapping[Kind, int], seconds: float) -> bool:
        """Return whether as many as ``wanted`` of each kind are ready within ``seconds``."""
        return await self._until(lambda: not self.missing(wanted), seconds)

    async def wait_for(self, executors: Collection[str], seconds: float) -> bool:
        """Return whether all ``executors`` are ready within ``seconds``."""
        return await self._until(lambda: self.ids().issuperset(executors), seconds)

    async def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        return await _until(self._news, true, seconds)

    def _ready(self) -> list[ExecutorStatus]:
        return _recent(self._known)

    def _on_status(self, delivery: Delivery) -> None:
        try:
            status = messages.decode_status(delivery.data)
        except ProtocolError:
            return  # of another build; gateways say so in their logs
        now = time.monotonic()
        if status.state == "draining":
            self._draining[status.id] = (status, now)
            if self._known.pop(status.id, None) is not None:
                self._said()
            return
        if status.state != "ready":
            self._gone(status.id)
            return
        known = self._known.get(status.id)
        self._known[status.id] = (status, now)
        if known is None or known[0].origin != status.origin or known[1] <= now - SILENT:
            self._said()

    def _gone(self, executor: str) -> None:
        known, draining = self._known.pop(executor, None), self._draining.pop(executor, None)
        if known is not None or draining is not None:
            self._said()

    def _said(self) -> None:
        self._news.set()
        self._tell()


class Gateways:
    """Follows which plan each gateway goes by, from ``listen`` on."""

    def __init__(self) -> None:
        self._plans: dict[str, float] = {}
        self._heard: set[str] = set()
        self._news = asyncio.Event()
        self._bus: Bus | None = None

    async def listen(self, bus: Bus) -> None:
        self._bus = bus
        await bus.subscribe(subjects.event(subjects.GATEWAY), self._on_status)
        self._ask()

    async def follow(self, created: float, seconds: float) -> bool:
        """Return whether all gateways go by the plan that was made at ``created``, or a newer one, within ``seconds``.

        One that has said nothing by then is forgotten, so that its end costs this time once.
        """
        self._heard.clear()
        self._ask()
        if await _until(self._news, lambda: all(plan >= created for plan in self._plans.values()), seconds):
            return True
        for silent in self._plans.keys() - self._heard:
            del self._plans[silent]
        return False

    def _ask(self) -> None:
        if self._bus is None:
            return
        with suppress(BusUnavailable):  # whoever is asked cannot be heard either
            self._bus.publish(subjects.event(subjects.CENSUS), b"{}")

    def _on_status(self, delivery: Delivery) -> None:
        try:
            status = messages.decode_gateway(delivery.data)
        except ProtocolError:
            return
        self._heard.add(status.id)
        if status.state == "ready":
            self._plans[status.id] = status.created
        else:
            self._plans.pop(status.id, None)
        self._news.set()


def _recent(known: Mapping[str, tuple[ExecutorStatus, float]]) -> list[ExecutorStatus]:
    oldest = time.monotonic() - SILENT
    return [status for status, heard in known.values() if heard > oldest]


async def _until(news: asyncio.Event, true: Callable[[], bool], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while not true():
                news.clear()
                await news.wait()
    except TimeoutError:
        return False
    return True
