"""Load events of all gateways over a sliding window. Pure, no I/O.

An idle gateway sends no events, and neither does a dead one. The last events of either age out.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from omnibus.bus.messages import LoadEvent

#: Longest time between two events of a gateway with load. Seconds before its next event are unknown, so they do not
#: count as idle.
MAX_REPORT_GAP_SECONDS = 1.5
#: Least seconds by which counts are divided, even shortly after the first event.
MIN_WINDOW_SECONDS = 1.0


class _TimedEvent(NamedTuple):
    at: float
    event: LoadEvent

    @property
    def begin(self) -> float:
        return self.at - max(0.0, self.event.seconds)


class LoadWindow:
    """Events of the last ``seconds``. ``clock`` returns seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._events: deque[_TimedEvent] = deque()
        self._last: dict[str, float] = {}
        self._since: float | None = None

    def add_event(self, event: LoadEvent) -> float:
        """Add an event of a gateway and return its start."""
        timed_event = _TimedEvent(self._clock(), event)
        self._since = timed_event.begin if self._since is None else min(self._since, timed_event.begin)
        self._last[event.gateway] = timed_event.at
        self._events.append(timed_event)
        return timed_event.begin

    def drop_expired(self) -> list[LoadEvent]:
        """Drop expired events and return them."""
        oldest, expired_events = self._clock() - self.seconds - MAX_REPORT_GAP_SECONDS, []
        while self._events and self._events[0].at <= oldest:
            expired_events.append(self._events.popleft().event)
        self._last = {gateway: at for gateway, at in self._last.items() if at > oldest}
        return expired_events

    def clear(self) -> list[LoadEvent]:
        """Drop all events and return them. Call this if events were missed: a gap must not look idle."""
        events = [timed_event.event for timed_event in self._events]
        self._events.clear()
        self._last.clear()
        self._since = None
        return events

    @property
    def span(self) -> float:
        """Return the seconds over which rates are computed now."""
        return self._covered_seconds(self._clock())

    def event_rates(self) -> Iterator[tuple[LoadEvent, float]]:
        """Yield each event with its factor to counts per second."""
        now = self._clock()
        ends = {gateway: at if now - at < MAX_REPORT_GAP_SECONDS else now for gateway, at in self._last.items()}
        for timed_event in self._events:
            end = ends.get(timed_event.event.gateway, now)
            yield timed_event.event, _fraction_since(timed_event, end - self.seconds) / self._covered_seconds(end)

    def latest_events(self) -> list[LoadEvent]:
        """Return the last event of each gateway that is not silent."""
        oldest, events = self._clock() - 2 * MAX_REPORT_GAP_SECONDS, dict[str, LoadEvent]()
        for timed_event in self._events:
            if timed_event.at > oldest:
                events[timed_event.event.gateway] = timed_event.event
        return list(events.values())

    def _covered_seconds(self, end: float) -> float:
        return max(MIN_WINDOW_SECONDS, min(self.seconds, end - (end if self._since is None else self._since)))


def _fraction_since(event: _TimedEvent, since: float) -> float:
    """Return the share of the event's time span after ``since``."""
    if event.begin >= since:
        return 1.0
    return max(0.0, event.at - since) / (event.at - event.begin) if event.at > event.begin else 0.0
