"""Events in virtual time, in order."""

import heapq
from collections.abc import Callable
from itertools import count

#: Called at a time in virtual seconds.
Event = Callable[[float], None]


class Agenda:
    """Future events; events with equal times run in the order in which they were added."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()

    def add(self, when: float, event: Event) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def run_until(self, end: float) -> None:
        """Run all events up to ``end``."""
        events = self._events
        while events and events[0][0] <= end:
            when, _, event = heapq.heappop(events)
            event(when)
