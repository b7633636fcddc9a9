"""Forecast of a burst: the load of the last seconds, and its error.

Pure, and the clock is passed in. Five seconds measure a rate well, but just after the start of a burst they mostly
cover the time before it. The last event of each gateway covers only the burst, with few requests. From n of them, a
rate or a mean size has a relative error of 1 / sqrt(n): one standard deviation, for random arrivals. So this event
counts if it differs by more than twice that.
"""

import math
import time
from collections.abc import Callable, Mapping

import msgspec

from omnibus.bus.heartbeats import LOAD_REPORT_SECONDS
from omnibus.bus.messages import LoadEvent
from omnibus_planner.autoscale.load_window import LoadWindows
from omnibus_planner.autoscale.policy import BURST_SECONDS
from omnibus_planner.optimize.load import Loads, ModelLoad

#: Standard deviations by which the latest load must differ.
_DEVIATIONS = 2.0


class BurstForecast:
    """The load of the last seconds over all gateways."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._recent = LoadWindows(BURST_SECONDS, clock)

    def add_event(self, event: LoadEvent) -> None:
        """Add an event of one gateway."""
        self._recent.add_event(event)

    def clear(self) -> None:
        """Start again after missed events."""
        self._recent.clear()

    def refused_rates(self) -> dict[str, float]:
        """Return rejected requests per second, by model."""
        return self._recent.refused_rates()

    def waiting_counts(self) -> dict[str, int]:
        """Return the requests that currently wait at gateways, by model."""
        return self._recent.waiting_counts()

    def expected_loads(self, capacity: Callable[[Loads], Mapping[str, float]]) -> dict[str, ModelLoad]:
        """Return the expected load by model.

        ``capacity`` returns the req/s by model that the running plan serves of a load.
        """
        recent, latest = self._recent.current_loads(), self._recent.latest_loads()
        if not latest:
            return recent
        before, now = capacity(recent), capacity({**recent, **latest})
        loads = {}
        for name, load in recent.items():
            new = latest.get(name, load)
            spread = _DEVIATIONS * relative_error(new.rate, LOAD_REPORT_SECONDS)
            dearer = now.get(name, 0.0) * (1 + spread) < before.get(name, 0.0)
            rate = max(load.rate, new.rate * (1 - spread))
            loads[name] = msgspec.structs.replace(new if dearer else load, rate=rate)
        return loads


def relative_error(rate: float, seconds: float = BURST_SECONDS) -> float:
    """Return the error of a ``rate`` counted over ``seconds``, as a fraction; at most 1."""
    return min(1.0, 1 / math.sqrt(rate * seconds)) if rate > 0 else 1.0
