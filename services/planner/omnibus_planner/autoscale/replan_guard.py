"""Guard of replans: rejects gains within the error, and reverts plans that serve less.

Pure: no I/O, and the clock is passed in.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from omnibus_planner.autoscale.policy import mix_shift
from omnibus_planner.optimize.load import Loads, ModelLoad
from omnibus_planner.optimize.result import PlanningResult

#: Largest relative differences of rate and mix between comparable loads.
COMPARABLE_RATE_FRACTION, COMPARABLE_MIX_FRACTION = 0.05, 0.1
#: Fraction by which the served rate must fall for a replan to count as worse.
FALLEN_FRACTION = 0.05


class ReplanEstimate(NamedTuple):
    """Simulated gain of a replan over the running replicas.

    ``gain`` and its ``error`` are relative.
    """

    best: PlanningResult
    gain: float
    error: float

    @property
    def is_certain(self) -> bool:
        return self.gain > self.error


class _Adopted(NamedTuple):
    """An applied replan: the plan, load and req/s served before it."""

    before: PlanningResult
    load: Mapping[str, ModelLoad]
    served: float


class ReplanGuard:
    """Compares the rates served before a replan and ``seconds`` after it."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._adopted: _Adopted | None = None
        self._since = math.inf  # when all of its executors were ready
        self._rejected: Mapping[str, ModelLoad] = {}

    def note_replan(self, before: PlanningResult, load: Loads, served_rates: Mapping[str, float]) -> None:
        """Note a replan for ``load`` after the plan ``before``.

        ``served_rates`` are the req/s of requests that ended well before it, by model.
        """
        self._adopted, self._since = _Adopted(before, dict(load), sum(served_rates.values())), math.inf

    def note_running(self) -> None:
        """Note that all executors of the current plan are ready."""
        self._since = min(self._since, self._clock())

    def is_rejected(self, load: Loads) -> bool:
        """Return True if a replan for such a load was reverted: the next one would do the same."""
        return bool(self._rejected) and _are_comparable(self._rejected, load)

    def find_fallback(self, load: Loads, served_rates: Mapping[str, float]) -> tuple[PlanningResult, str] | None:
        """Return the plan to revert to, and the reason, once; None if there is no reason."""
        adoption = self._adopted
        if adoption is None or self._clock() - self._since < self._seconds:
            return None
        self._adopted = None
        now = sum(served_rates.values())
        if not _are_comparable(adoption.load, load) or now >= adoption.served * (1 - FALLEN_FRACTION):
            return None
        self._rejected = adoption.load
        return (
            adoption.before,
            f"load: back to the plan before: {now:.3g} req/s were served, {adoption.served:.3g} by it",
        )


def _are_comparable(before: Loads, now: Loads) -> bool:
    """Return True if ``now`` has the rates and mix of ``before``.

    Its rates may be higher.
    """
    return all(
        name in now
        and now[name].rate >= load.rate * (1 - COMPARABLE_RATE_FRACTION)
        and mix_shift(load.shares, now[name].shares) <= COMPARABLE_MIX_FRACTION
        for name, load in before.items()
    )
