"""Processes known from their events on the bus: ready executors, and the plan of each gateway."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.heartbeats import EXECUTOR_ABSENT_SECONDS
from omnibus.bus.messages import ExecutorStatus, GatewayStatus
from omnibus.cluster.desired import ExecutorKind
from omnibus.errors import BusUnavailable, ProtocolError

Entry = TypeVar("Entry")

_DECODERS: dict[str, Callable[[bytes], Any]] = {
    subjects.EXECUTOR: messages.decode_status,
    subjects.GATEWAY: messages.decode_gateway,
    subjects.LOAD: messages.decode_load,
    subjects.PLAN: messages.decode_plan_event,
    subjects.NODE: messages.decode_node,
    subjects.GONE: lambda data: data.decode(errors="replace"),
}


async def follow_events(
    bus: Bus,
    handlers: Mapping[str, Callable[[Any], None]],
    on_unreadable: Callable[[ProtocolError], None] = lambda error: None,
) -> list[Callable[[], Awaitable[None]]]:
    """Call each handler with the events of its kind. Events are those of ``bus.messages``; for ``GONE``, the executor's
    id.

    ``on_unreadable`` gets the errors of events of another build. Returns functions that end the subscriptions.
    """

    def subscriber(kind: str, handler: Callable[[Any], None]) -> Callable[[Delivery], None]:
        def on_delivery(delivery: Delivery) -> None:
            try:
                event = _DECODERS[kind](delivery.data)
            except ProtocolError as error:
                on_unreadable(error)
            else:
                handler(event)

        return on_delivery

    return [
        await bus.subscribe(subjects.event_subject(kind), subscriber(kind, handler))
        for kind, handler in handlers.items()
    ]


class PresenceTracker(Generic[Entry]):
    """Processes by id, each with an entry. One that is silent for ``lost_after`` seconds is forgotten."""

    def __init__(self, lost_after: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._lost_after = lost_after
        self._clock = clock
        self._known: dict[str, tuple[Entry, float]] = {}
        self._changed = asyncio.Event()

    def record(self, id: str, entry: Entry) -> None:
        """Record that process ``id`` has just reported."""
        self._known[id] = (entry, self._clock())

    def remove(self, id: str) -> Entry | None:
        """Forget ``id``, which has ended. Returns its entry."""
        return self._known.pop(id, (None, 0.0))[0]

    def get(self, id: str) -> Entry | None:
        """Return the entry of ``id``, or None if it is not present."""
        entry, seen_at = self._known.get(id, (None, 0.0))
        return entry if seen_at >= self._clock() - self._lost_after else None

    def last_seen(self, id: str) -> float:
        """Return the time of the last report of ``id``. It is by the clock, and minus infinity if unknown."""
        return self._known[id][1] if id in self._known else -math.inf

    def entries(self) -> dict[str, Entry]:
        """Return the entries of all present processes."""
        self.forget_before(self._clock() - self._lost_after)
        return {id: entry for id, (entry, _) in self._known.items()}

    def forget_before(self, time: float) -> None:
        """Forget all processes that have been silent since ``time``."""
        for id in [id for id, (_, seen_at) in self._known.items() if seen_at < time]:
            del self._known[id]

    def notify_change(self) -> None:
        """Make ``wait_until`` evaluate its condition again."""
        self._changed.set()

    async def wait_until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        """Return whether ``true`` becomes true within ``seconds``. It is evaluated at each ``notify_change``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        return true()


class ReadyExecutors:
    """Follows the status of executors, after ``listen``. An executor without an origin counts for any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._statuses = PresenceTracker[ExecutorStatus](EXECUTOR_ABSENT_SECONDS, clock)
        self._tell: Callable[[], None] = lambda: None

    async def listen(self, bus: Bus, tell: Callable[[], None] | None = None) -> None:
        """Start to follow the executors. ``tell`` is called when one appears, begins to drain, or ends."""
        self._tell = tell or self._tell
        await follow_events(bus, {subjects.EXECUTOR: self._on_status, subjects.GONE: self._on_gone})
        bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

    def ready_ids(self) -> set[str]:
        """Return the ids of the executors that are ready now."""
        return {status.id for status in self.ready_statuses()}

    def reports(self) -> dict[str, tuple[ExecutorStatus, float]]:
        """Return the last report of each present executor, by id. The second value is its time by the clock."""
        return {id: (status, self._statuses.last_seen(id)) for id, status in self._statuses.entries().items()}

    def count_ready(self, kind: ExecutorKind) -> int:
        """Return the number of executors of ``kind`` that are ready now."""
        return sum(
            (status.model, status.option) == kind[:2] and status.origin in ("", kind.origin)
            for status in self.ready_statuses()
        )

    def count_present(self) -> dict[ExecutorKind, int]:
        """Return the number of present executors of each kind. This includes ready and draining ones."""
        counts: dict[ExecutorKind, int] = {}
        for status in self._statuses.entries().values():
            kind = ExecutorKind(status.model, status.option, status.origin)
            counts[kind] = counts.get(kind, 0) + 1
        return counts

    def count_missing(self, planned_counts: Mapping[ExecutorKind, int]) -> dict[ExecutorKind, int]:
        """Return the number of ready executors of each incomplete kind. A kind is incomplete if it has fewer than in
        ``planned_counts``."""
        ready_counts = {kind: self.count_ready(kind) for kind in planned_counts}
        return {kind: count for kind, count in ready_counts.items() if count < planned_counts[kind]}

    async def wait_for_kinds(self, planned_counts: Mapping[ExecutorKind, int], seconds: float) -> bool:
        """Return whether all ``planned_counts`` executors are ready within ``seconds``."""
        return await self._statuses.wait_until(lambda: not self.count_missing(planned_counts), seconds)

    async def wait_for(self, executors: Collection[str], seconds: float) -> bool:
        """Return whether all ``executors`` are ready within ``seconds``."""
        return await self._statuses.wait_until(lambda: self.ready_ids().issuperset(executors), seconds)

    def ready_statuses(self) -> list[ExecutorStatus]:
        """Return the last status of each executor that is ready now."""
        return [status for status in self._statuses.entries().values() if status.state == "ready"]

    def _on_status(self, status: ExecutorStatus) -> None:
        if status.state not in ("ready", "draining"):
            self._on_gone(status.id)
            return
        previous = self._statuses.get(status.id)
        self._statuses.record(status.id, status)
        if previous is None or (previous.state, previous.origin) != (status.state, status.origin):
            self._notify_change()

    def _on_gone(self, executor: str) -> None:
        if self._statuses.remove(executor) is not None:
            self._notify_change()

    def _notify_change(self) -> None:
        self._statuses.notify_change()
        self._tell()


class GatewayPlans:
    """Follows the plan of each gateway, after ``listen``."""

    def __init__(self) -> None:
        self._plans = PresenceTracker[float]()
        self._bus: Bus | None = None

    async def listen(self, bus: Bus) -> None:
        self._bus = bus
        await follow_events(bus, {subjects.GATEWAY: self._on_status})
        self._publish_census()

    async def wait_for_plan(self, plan_time: float, seconds: float) -> bool:
        """Return whether all gateways switch to this plan within ``seconds``.

        The plan was made at ``plan_time``; a newer one counts too.

        A gateway that has sent nothing by then is forgotten, so that its end costs this time once.
        """
        begin = time.monotonic()
        self._publish_census()
        plans = self._plans
        if await plans.wait_until(lambda: all(plan >= plan_time for plan in plans.entries().values()), seconds):
            return True
        plans.forget_before(begin)
        return False

    def _publish_census(self) -> None:
        if self._bus is None:
            return
        with suppress(BusUnavailable):  # without a bus, no response could arrive either
            self._bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

    def _on_status(self, status: GatewayStatus) -> None:
        if status.state == "ready":
            self._plans.record(status.id, status.created)
        else:
            self._plans.remove(status.id)
        self._plans.notify_change()
