"""Guard of replans: one that promises less than it may err is not made, one that serves less than before is taken back.

Pure: no I/O, and the clock is given.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from services.planner.autoscale.policy import mix_shift
from services.planner.optimize.load import Loads, ModelLoad
from services.planner.optimize.result import PlanningResult

#: A load is comparable to one before when as much of it comes, to within this part, of the same types.
COMPARABLE_RATE_FRACTION, COMPARABLE_MIX_FRACTION = 0.05, 0.1
#: The part by which less must be served for a replan to count as worse.
FALLEN_FRACTION = 0.05


class ReplanEstimate(NamedTuple):
    """A replan as it was simulated: the part that it serves more than the replicas that run, and the part by which such
    figures err."""

    best: PlanningResult
    gain: float
    error: float

    @property
    def is_certain(self) -> bool:
        return self.gain > self.error


class _Adopted(NamedTuple):
    """A replan that was made: the plan, load and req/s served before it."""

    before: PlanningResult
    load: Mapping[str, ModelLoad]
    served: float


class ReplanGuard:
    """Compares what is served ``seconds`` after a replan with what was served before it."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._adopted: _Adopted | None = None
        self._since = math.inf  # when its executors were all there
        self._rejected: Mapping[str, ModelLoad] = {}

    def note_replan(self, before: PlanningResult, load: Loads, served: Mapping[str, float]) -> None:
        """A replan for ``load`` follows the plan ``before``, with which ``served`` req/s ended well, by model."""
        self._adopted, self._since = _Adopted(before, dict(load), sum(served.values())), math.inf

    def note_running(self) -> None:
        """The executors of the current plan are all there."""
        self._since = min(self._since, self._clock())

    def is_rejected(self, load: Loads) -> bool:
        """Return whether a replan for such a load has been taken back: the next one would do the same."""
        return bool(self._rejected) and _are_comparable(self._rejected, load)

    def find_fallback(self, load: Loads, served: Mapping[str, float]) -> tuple[PlanningResult, str] | None:
        """The plan to go back to, and why; None while there is no reason to. It is returned once."""
        adopted = self._adopted
        if adopted is None or self._clock() - self._since < self._seconds:
            return None
        self._adopted = None
        now = sum(served.values())
        if not _are_comparable(adopted.load, load) or now >= adopted.served * (1 - FALLEN_FRACTION):
            return None
        self._rejected = adopted.load
        return adopted.before, f"load: back to the plan before: {now:.3g} req/s were served, {adopted.served:.3g} by it"


def _are_comparable(before: Loads, now: Loads) -> bool:
    """Return whether as much comes now as ``before``, and of the same types."""
    return all(
        name in now
        and now[name].rate >= load.rate * (1 - COMPARABLE_RATE_FRACTION)
        and mix_shift(load.shares, now[name].shares) <= COMPARABLE_MIX_FRACTION
        for name, load in before.items()
    )
