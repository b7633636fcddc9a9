"""Detection of executors that hold invocations and fell silent or never answered.

Executors that stop announce it, and the bus reports dead ones. Periodic checks here find the rest.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf

from omnibus.bus import Bus, subjects
from omnibus.bus.heartbeats import EXECUTOR_LAST_RESORT_SECONDS, EXECUTOR_LOST_SECONDS, EXECUTOR_PROBE_SECONDS
from omnibus.bus.messages import ExecutorStatus
from omnibus.bus.reconnect import ReconnectMonitor, RefusalMonitor
from omnibus.errors import BusUnavailable, OmnibusError
from omnibus.service import until_cancelled
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.executors import ExecutorTable

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25  # seconds between two checks for silent executors
RECONNECT_GRACE_SECONDS = 1.5  # seconds that executors have to reappear after a reconnect
#: Seconds within which a refusal arrives, unless the bus or this process was frozen. Executors leave a frozen bus.
MAX_REFUSAL_SECONDS = 1.0
ACCEPT_TIMEOUT_SECONDS = 3.0  # seconds within which every executor of a route must have answered
MAX_POLL_DELAY_SECONDS = (
    1.0  # seconds by which a check may be late: after a longer pause, messages sent during it are still unread
)

#: Replaces the invocation in the subject of a probe's refusal; milliseconds replace the attempt.
PROBE = "-"

#: Moves an invocation to another route: the executor to avoid, if any, the error, and the reason.
Move = Callable[[InflightInvocation, str, OmnibusError, str], None]


class FailureDetector:
    """Probes silent executors; moves work that was not accepted, or that the bus may have lost."""

    def __init__(
        self,
        gateway: str,
        bus: Bus,
        members: ExecutorTable,
        inflight: Mapping[str, InflightInvocation],
        move: Move,
        on_gone: Callable[[str], None],
    ) -> None:
        self._gateway = gateway
        self._bus = bus
        self._members = members
        self._inflight = inflight  # by id
        self._move = move
        self._on_gone = on_gone
        self._comeback = ReconnectMonitor(bus)
        self._refusals = RefusalMonitor(bus, RECONNECT_GRACE_SECONDS)
        self._returned: set[str] = set()  # executors that reconnected, and monotonic seconds of the last
        self._returned_at = 0.0
        self._stalled_at = -inf  # monotonic seconds of the last late refusal
        self._task: asyncio.Task[None] | None = None

    @property
    def is_returning(self) -> bool:
        """True just after a reconnect, when executors may only be reconnecting."""
        was_stalled = time.monotonic() - self._stalled_at < RECONNECT_GRACE_SECONDS
        return self._comeback.reconnected_within(RECONNECT_GRACE_SECONDS) or was_stalled

    def handle_refusal(self, invocation: str, attempt: int, executor: str) -> bool | None:
        """Handle the server's reply that ``executor`` has no subscriber.

        ``invocation`` and ``attempt`` are those of the message, or of a probe. Returns True if the executor is gone,
        and None while executors reconnect, since their messages are sent again. A late reply means that the bus was
        frozen. Our connection survived, but those of others may not have.
        """
        running = self._inflight.get(invocation)
        sent_at = attempt / 1000 if invocation == PROBE else inf
        if running is not None and running.invocation.attempt == attempt:
            sent_at = running.sent
        if time.monotonic() - sent_at > MAX_REFUSAL_SECONDS:
            self._stalled_at = time.monotonic()
        if self.is_returning:
            return None
        is_gone = self._refusals.confirms_loss(executor)
        if is_gone:
            self._on_gone(executor)
        return is_gone

    def handle_status(self, status: ExecutorStatus) -> bool:
        """Apply a status event; returns True if the executor just left.

        In a cluster, the executor's server may fail while ours does not. So its status counts its reconnects.
        """
        self._refusals.note_sign_of_life(status.id)
        entry = self._members.get(status.id)
        if entry is not None and entry.status.reconnects != status.reconnects:
            self._returned.add(status.id)
            self._returned_at = time.monotonic()
        return self._members.handle_status(status)

    def start(self) -> None:
        """Start checking, and ask all executors to announce themselves."""
        self._task = asyncio.get_running_loop().create_task(self._watch_executors())
        self._bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

    async def stop(self) -> None:
        if self._task is not None:
            await until_cancelled(self._task)

    async def _watch_executors(self) -> None:
        reconnects, back = self._bus.reconnects, False
        while True:
            slept = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)
            if not self._bus.connected or time.monotonic() - slept > POLL_SECONDS + MAX_POLL_DELAY_SECONDS:
                continue
            if reconnects != self._bus.reconnects:
                reconnects, back = self._bus.reconnects, True
                self._publish_query(subjects.event_subject(subjects.CENSUS), b"{}")
            if back and self.is_returning:
                continue  # the executors are reconnecting as well
            if back:
                back = False
                self._retry_all()
            self._retry_returned()
            late = self._members.silent_executors(EXECUTOR_PROBE_SECONDS)
            for executor in {*late, *self._refusals.overdue_peers()}:
                refusal_subject = subjects.refused_subject(self._gateway, PROBE, int(time.monotonic() * 1000), executor)
                self._publish_query(subjects.edge_subject(executor), b"", refusal_subject)
            self._replace_silent()
            self.replace_overdue()

    def _publish_query(self, subject: str, data: bytes, reply: str = "") -> None:
        try:
            self._bus.publish(subject, data, reply=reply)
        except OmnibusError as error:  # the next check retries
            log.warning("cannot send a probe on %s: %s", subject, error)

    def _retry_all(self) -> None:
        """Rerun all invocations, without repeats: the bus disconnected and may have lost messages."""
        self._returned.clear()
        self._retry_running(list(self._inflight.values()))

    def _retry_returned(self) -> None:
        """Rerun invocations sent to executors before they disconnected, once all have reconnected."""
        if not self._returned or time.monotonic() - self._returned_at < RECONNECT_GRACE_SECONDS:
            return
        returned_executors, self._returned = self._returned, set()
        self._retry_running(
            running
            for running in list(self._inflight.values())
            if running.sent <= self._returned_at and not returned_executors.isdisjoint(running.invocation.route)
        )

    def _retry_running(self, invocations: Iterable[InflightInvocation]) -> None:
        for running in invocations:
            if running.failure is None and not running.all_reported:
                self._move(running, "", BusUnavailable("the bus was disconnected while the request ran: retry"), "bus")

    def _replace_silent(self) -> None:
        """Move the work of executors that accepted it and then fell silent."""
        lost_executors, hopeless = (
            set(self._members.silent_executors(EXECUTOR_LOST_SECONDS)),
            set(self._members.silent_executors(EXECUTOR_LAST_RESORT_SECONDS)),
        )
        for running in list(self._inflight.values()) if lost_executors else ():
            holders = (executor for executor in lost_executors & running.accepted if running.waits_for(executor))
            silent = next((each for each in holders if each in hopeless or running.has_alternative(each)), None)
            if silent is not None:
                self._move(running, silent, running.gone_error(silent), "silent")

    def replace_overdue(self) -> None:
        """Replace executors that have not accepted their work in time."""
        now = time.monotonic()
        for running in list(self._inflight.values()):
            route = set(running.invocation.route)
            if running.sent > now - ACCEPT_TIMEOUT_SECONDS or len(running.accepted) >= len(route):
                continue
            silent = next((executor for executor in route - running.accepted if running.waits_for(executor)), None)
            if silent is not None and (
                running.sent <= now - EXECUTOR_LAST_RESORT_SECONDS or running.has_alternative(silent)
            ):
                self._move(running, silent, running.gone_error(silent), "silent")
