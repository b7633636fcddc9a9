"""Attainment of latency goals: models that miss theirs are planned for a higher load.

Pure: no I/O, and the clock is passed in.

Assumptions of a profile and a plan may not hold: requests arrive in bursts, or a machine is slow. So gateways measure
the share of requests that meet their goals. If it is below 99 of 100, by more than chance, the load to plan for grows
by a fourth, repeatedly. Once goals have been met for long, it shrinks in the same steps.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from omnibus_planner.optimize.load import Loads, ModelLoad

#: The share of requests that must meet their goals.
ATTAINED_SHARE = 0.99
#: Factor of one step of the load to plan for, and the largest product of all steps.
STEP_FACTOR, MAX_FACTOR = 1.25, 4.0
#: Standard deviations by which misses must exceed the allowed number.
_DEVIATIONS = 2.0


class GoalCounts(NamedTuple):
    """Requests of a window that met their goals, and that did not.

    The latter missed a goal, were rejected, or failed.
    """

    met: int
    missed: int

    @property
    def attained(self) -> float:
        """Share of requests that met their goals."""
        return self.met / max(1, self.met + self.missed)

    @property
    def falls_short(self) -> bool:
        """True if more requests missed their goals than chance explains."""
        expected_misses = (1 - ATTAINED_SHARE) * (self.met + self.missed)
        return self.missed > expected_misses + _DEVIATIONS * math.sqrt(expected_misses)


class AttainmentControl:
    """Factors on the load of ``models``.

    A step up follows a ``window`` that shows the need for it, and a step down ``patience`` seconds without need. Each
    step down that had to be reverted doubles the patience.
    """

    def __init__(
        self, models: Iterable[str], window: float, patience: float, least: int, clock: Callable[[], float]
    ) -> None:
        self._factors = dict.fromkeys(models, 1.0)
        self._window = window
        self._patience = dict.fromkeys(self._factors, patience)
        self._least = least
        self._clock = clock
        self._since = clock()  # of the plan, or of the last step
        self._good_since = dict.fromkeys(self._factors, clock())
        self._lowered: set[str] = set()

    def note_plan_change(self) -> None:
        """Discard measurements, which belong to the previous plan: another one is in force, or on its way."""
        self._since = self._clock()

    def update(self, counts: Mapping[str, GoalCounts]) -> None:
        """Process the counts of the last window."""
        now = self._clock()
        if now - self._since < self._window:
            return
        for name, goal_counts in counts.items():
            if name not in self._factors or goal_counts.met + goal_counts.missed < self._least:
                continue
            if goal_counts.falls_short:
                self._raise(name, now)
            elif now - self._good_since[name] >= self._patience[name] and self._factors[name] > 1:
                self._factors[name] = max(1.0, self._factors[name] / STEP_FACTOR)
                self._good_since[name] = now
                self._lowered.add(name)

    def _raise(self, name: str, now: float) -> None:
        self._good_since[name] = now
        if name in self._lowered:
            self._lowered.discard(name)
            self._patience[name] *= 2
        if self._factors[name] < MAX_FACTOR:
            self._factors[name] = min(MAX_FACTOR, self._factors[name] * STEP_FACTOR)
            self._since = now

    def raised_loads(self) -> dict[str, float]:
        """Return the factors above 1, by model."""
        return {name: factor for name, factor in self._factors.items() if factor > 1}

    def raise_loads(self, loads: Loads) -> dict[str, ModelLoad]:
        """Return ``loads`` times the factors."""
        return {
            name: msgspec.structs.replace(load, rate=load.rate * self._factors.get(name, 1.0))
            for name, load in loads.items()
        }
