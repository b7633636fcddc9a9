"""Forecast of a burst: the load of the last seconds, and how far off it may be. Pure, and the clock is given.

Five seconds tell a rate well, but of a burst that has just begun they have mostly what was before. The last event of
each gateway has nothing but the burst, and few requests: n of them say a rate, or a mean size, to within 1 / sqrt(n) of
it (one standard deviation, if they come at random). So it counts where it differs by more than twice that.
"""

import math
import time
from collections.abc import Callable, Mapping

import msgspec

from omnibus.bus.heartbeats import LOAD_REPORT_SECONDS
from omnibus.bus.messages import LoadEvent
from services.planner.autoscale.load_window import LoadWindows
from services.planner.autoscale.policy import BURST_SECONDS
from services.planner.optimize.load import Loads, ModelLoad

#: Standard deviations by which the latest load must differ.
_DEVIATIONS = 2.0


class BurstForecast:
    """The load of the last seconds by all gateways."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._recent = LoadWindows(BURST_SECONDS, clock)

    def add_event(self, event: LoadEvent) -> None:
        """Take one gateway's word."""
        self._recent.add_event(event)

    def clear(self) -> None:
        """Begin again: events were missed."""
        self._recent.clear()

    def refused_rates(self) -> dict[str, float]:
        """Per model the requests that were refused, per second."""
        return self._recent.refused_rates()

    def waiting_counts(self) -> dict[str, int]:
        """Per model the requests that wait at gateways now."""
        return self._recent.waiting_counts()

    def expected_loads(self, capacity: Callable[[Loads], Mapping[str, float]]) -> dict[str, ModelLoad]:
        """The load to expect by model; ``capacity`` is what runs serves of a load, in req/s by model."""
        recent, latest = self._recent.current_loads(), self._recent.latest_loads()
        if not latest:
            return recent
        before, now = capacity(recent), capacity({**recent, **latest})
        found = {}
        for name, load in recent.items():
            new = latest.get(name, load)
            spread = _DEVIATIONS * relative_error(new.rate, LOAD_REPORT_SECONDS)
            dearer = now.get(name, 0.0) * (1 + spread) < before.get(name, 0.0)
            rate = max(load.rate, new.rate * (1 - spread))
            found[name] = msgspec.structs.replace(new if dearer else load, rate=rate)
        return found


def relative_error(rate: float, seconds: float = BURST_SECONDS) -> float:
    """The part of ``rate`` by which it may be off when it was counted for so many seconds; at most 1."""
    return min(1.0, 1 / math.sqrt(rate * seconds)) if rate > 0 else 1.0
