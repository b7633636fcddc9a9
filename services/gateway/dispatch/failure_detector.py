"""Watches executors that hold invocations of this gateway: those that fell silent, and those that never answered.

Executors that leave say so, and for dead ones the bus says so. What is left is found here, by a look now and then.
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
from services.gateway.dispatch.inflight import InflightInvocation
from services.gateway.routing.executors import ExecutorTable

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25  # seconds between two looks for silent executors
RECONNECT_GRACE_SECONDS = 1.5  # seconds after a reconnect that executors have to show up again
#: Seconds within which a refusal comes, unless the bus or this process stood still: executors leave a bus that does.
MAX_REFUSAL_SECONDS = 1.0
ACCEPT_TIMEOUT_SECONDS = 3.0  # seconds within which every executor of a route must have answered
MAX_POLL_DELAY_SECONDS = (
    1.0  # seconds by which a look may be late: after a longer pause what others said in it is still to be read
)

#: In the place of an invocation in the subject of a probe's refusal; in the place of the attempt are milliseconds.
PROBE = "-"

#: Moves an invocation to another route: away from the executor named, if any, and why.
Move = Callable[[InflightInvocation, str, OmnibusError, str], None]


class FailureDetector:
    """Asks silent executors whether they listen; moves what one did not answer, or what the bus may have lost."""

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
        self._returned: set[str] = set()  # executors whose connection came back, and monotonic seconds of the last
        self._returned_at = 0.0
        self._stalled_at = -inf  # monotonic seconds of the last refusal that took too long
        self._task: asyncio.Task[None] | None = None

    @property
    def is_returning(self) -> bool:
        """True if the bus came back just now: nobody can tell who is gone and who only reconnects."""
        stalled = time.monotonic() - self._stalled_at < RECONNECT_GRACE_SECONDS
        return self._comeback.reconnected_within(RECONNECT_GRACE_SECONDS) or stalled

    def handle_refusal(self, invocation: str, attempt: int, executor: str) -> bool | None:
        """Take the server's word that nobody listens for ``executor``, to which an attempt or a probe was sent.

        Returns whether it is gone; None while executors reconnect: what was sent to them is sent again. A word that
        comes late says that the bus was frozen: our connection outlived that, those of others may not have.
        """
        running = self._inflight.get(invocation)
        sent = attempt / 1000 if invocation == PROBE else inf
        if running is not None and running.invocation.attempt == attempt:
            sent = running.sent
        if time.monotonic() - sent > MAX_REFUSAL_SECONDS:
            self._stalled_at = time.monotonic()
        if self.is_returning:
            return None
        gone = self._refusals.confirms_loss(executor)
        if gone:
            self._on_gone(executor)
        return gone

    def handle_status(self, status: ExecutorStatus) -> bool:
        """Take a status event; returns whether the executor just left.

        Of a cluster the server of an executor may be lost, and not ours: it says how often it has reconnected.
        """
        self._refusals.note_sign_of_life(status.id)
        known = self._members.get(status.id)
        if known is not None and known.status.reconnects != status.reconnects:
            self._returned.add(status.id)
            self._returned_at = time.monotonic()
        return self._members.handle_status(status)

    def start(self) -> None:
        """Look from now on, and ask all executors to show up."""
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
                continue  # the executors are reconnecting too
            if back:
                back = False
                self._retry_all()
            self._retry_returned()
            late = self._members.silent_executors(EXECUTOR_PROBE_SECONDS)
            for executor in {*late, *self._refusals.overdue_peers()}:
                refused = subjects.refused_subject(self._gateway, PROBE, int(time.monotonic() * 1000), executor)
                self._publish_query(subjects.edge_subject(executor), b"", refused)
            self._replace_silent()
            self.replace_overdue()

    def _publish_query(self, subject: str, data: bytes, reply: str = "") -> None:
        try:
            self._bus.publish(subject, data, reply=reply)
        except OmnibusError as error:  # the next look asks again
            log.warning("cannot ask on %s: %s", subject, error)

    def _retry_all(self) -> None:
        """The bus was away and may have lost messages: what is in flight runs again, without repeats."""
        self._returned.clear()
        self._retry_running(list(self._inflight.values()))

    def _retry_returned(self) -> None:
        """Run again what was sent to executors before they lost their connection, once all have come back."""
        if not self._returned or time.monotonic() - self._returned_at < RECONNECT_GRACE_SECONDS:
            return
        returned, self._returned = self._returned, set()
        self._retry_running(
            running
            for running in list(self._inflight.values())
            if running.sent <= self._returned_at and not returned.isdisjoint(running.invocation.route)
        )

    def _retry_running(self, invocations: Iterable[InflightInvocation]) -> None:
        for running in invocations:
            if running.failure is None and not running.all_reported:
                self._move(running, "", BusUnavailable("the bus was away while the request ran: ask again"), "bus")

    def _replace_silent(self) -> None:
        """Let others take the work of executors that answered to it, and then fell silent."""
        lost, hopeless = (
            set(self._members.silent_executors(EXECUTOR_LOST_SECONDS)),
            set(self._members.silent_executors(EXECUTOR_LAST_RESORT_SECONDS)),
        )
        for running in list(self._inflight.values()) if lost else ():
            holders = (executor for executor in lost & running.accepted if running.waits_for(executor))
            silent = next((each for each in holders if each in hopeless or running.has_alternative(each)), None)
            if silent is not None:
                self._move(running, silent, running.gone_error(silent), "silent")

    def replace_overdue(self) -> None:
        """Replace executors that have not answered what was sent to them."""
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
