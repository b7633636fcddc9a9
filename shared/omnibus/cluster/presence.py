"""Status of other services, from their events on the bus: ready executors, and the plan that each gateway follows."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.cluster.desired import ExecutorKind
from omnibus.errors import BusUnavailable, ProtocolError

#: Seconds without a word after which an executor does not count as ready: some heartbeats.
LOST_AFTER_SECONDS = 3.0


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
        await bus.subscribe(subjects.event_subject(subjects.EXECUTOR), self._on_status)
        await bus.subscribe(
            subjects.event_subject(subjects.GONE), lambda delivery: self._on_gone(delivery.data.decode())
        )
        bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

    def ready_ids(self) -> set[str]:
        """Return the ids of the executors that are ready now."""
        return {status.id for status in self._ready_statuses()}

    def count_ready(self, kind: ExecutorKind) -> int:
        """Return the number of executors of ``kind`` that are ready now."""
        return sum(
            (status.model, status.option) == kind[:2] and status.origin in ("", kind.origin)
            for status in self._ready_statuses()
        )

    def count_present(self) -> dict[ExecutorKind, int]:
        """Return the number of executors of each kind that have not ended yet: the ready and the draining ones."""
        found: dict[ExecutorKind, int] = {}
        for status in (*self._ready_statuses(), *_recent_statuses(self._draining)):
            kind = ExecutorKind(status.model, status.option, status.origin)
            found[kind] = found.get(kind, 0) + 1
        return found

    def count_missing(self, wanted: Mapping[ExecutorKind, int]) -> dict[ExecutorKind, int]:
        """Return the number of ready executors of each kind that has fewer of them than ``wanted``."""
        found = {kind: self.count_ready(kind) for kind in wanted}
        return {kind: count for kind, count in found.items() if count < wanted[kind]}

    async def wait_for_kinds(self, wanted: Mapping[ExecutorKind, int], seconds: float) -> bool:
        """Return whether as many as ``wanted`` of each kind are ready within ``seconds``."""
        return await self._wait_until(lambda: not self.count_missing(wanted), seconds)

    async def wait_for(self, executors: Collection[str], seconds: float) -> bool:
        """Return whether all ``executors`` are ready within ``seconds``."""
        return await self._wait_until(lambda: self.ready_ids().issuperset(executors), seconds)

    async def _wait_until(self, true: Callable[[], bool], seconds: float) -> bool:
        return await _wait_until(self._news, true, seconds)

    def _ready_statuses(self) -> list[ExecutorStatus]:
        return _recent_statuses(self._known)

    def _on_status(self, delivery: Delivery) -> None:
        try:
            status = messages.decode_status(delivery.data)
        except ProtocolError:
            return  # of another build; gateways say so in their logs
        now = time.monotonic()
        if status.state == "draining":
            self._draining[status.id] = (status, now)
            if self._known.pop(status.id, None) is not None:
                self._notify_change()
            return
        if status.state != "ready":
            self._on_gone(status.id)
            return
        known = self._known.get(status.id)
        self._known[status.id] = (status, now)
        if known is None or known[0].origin != status.origin or known[1] <= now - LOST_AFTER_SECONDS:
            self._notify_change()

    def _on_gone(self, executor: str) -> None:
        known, draining = self._known.pop(executor, None), self._draining.pop(executor, None)
        if known is not None or draining is not None:
            self._notify_change()

    def _notify_change(self) -> None:
        self._news.set()
        self._tell()


class GatewayPlans:
    """Follows which plan each gateway goes by, from ``listen`` on."""

    def __init__(self) -> None:
        self._plans: dict[str, float] = {}
        self._heard: set[str] = set()
        self._news = asyncio.Event()
        self._bus: Bus | None = None

    async def listen(self, bus: Bus) -> None:
        self._bus = bus
        await bus.subscribe(subjects.event_subject(subjects.GATEWAY), self._on_status)
        self._publish_census()

    async def wait_for_plan(self, created: float, seconds: float) -> bool:
        """Return whether all gateways go by the plan that was made at ``created``, or a newer one, within ``seconds``.

        One that has said nothing by then is forgotten, so that its end costs this time once.
        """
        self._heard.clear()
        self._publish_census()
        if await _wait_until(self._news, lambda: all(plan >= created for plan in self._plans.values()), seconds):
            return True
        for silent in self._plans.keys() - self._heard:
            del self._plans[silent]
        return False

    def _publish_census(self) -> None:
        if self._bus is None:
            return
        with suppress(BusUnavailable):  # whoever is asked cannot be heard either
            self._bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

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


def _recent_statuses(known: Mapping[str, tuple[ExecutorStatus, float]]) -> list[ExecutorStatus]:
    oldest = time.monotonic() - LOST_AFTER_SECONDS
    return [status for status, heard in known.values() if heard > oldest]


async def _wait_until(news: asyncio.Event, true: Callable[[], bool], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while not true():
                news.clear()
                await news.wait()
    except TimeoutError:
        return False
    return True
