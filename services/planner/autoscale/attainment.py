"""Attainment of latency goals: models that meet theirs too seldom are planned for more than comes.

Pure: no I/O, and the clock is given.

What a profile and a plan take for granted may not hold: requests come in bunches, or a machine is slow. So the share of
requests that meet their goals is measured at gateways, and where fewer than 99 of 100 do, by more than chance, the load
to plan for grows by a fourth, again and again; once goals have been met for long it shrinks as it grew.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from services.planner.optimize.load import Loads, ModelLoad

#: The share of requests that are to meet their goals.
ATTAINED_SHARE = 0.99
#: One step of the load to plan for, and the most that all steps together are.
STEP_FACTOR, MAX_FACTOR = 1.25, 4.0
#: Standard deviations by which more requests must miss their goals than may.
_DEVIATIONS = 2.0


class GoalCounts(NamedTuple):
    """Requests of a window that met their goals, and that missed one, were refused, or failed."""

    met: int
    missed: int

    @property
    def attained(self) -> float:
        """The share that met them."""
        return self.met / max(1, self.met + self.missed)

    @property
    def falls_short(self) -> bool:
        """True if more have missed than chance makes of what may."""
        allowed = (1 - ATTAINED_SHARE) * (self.met + self.missed)
        return self.missed > allowed + _DEVIATIONS * math.sqrt(allowed)


class AttainmentControl:
    """Factors on the load of ``models``. A step up is made once a ``window`` has shown that it is needed, one down
    after ``patience`` seconds without need, which is twice as long after each step down that had to be taken back."""

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
        """Another plan is in force, or on its way: what was measured is of the one before."""
        self._since = self._clock()

    def update(self, counts: Mapping[str, GoalCounts]) -> None:
        """Take the counts of the last window."""
        now = self._clock()
        if now - self._since < self._window:
            return
        for name, found in counts.items():
            if name not in self._factors or found.met + found.missed < self._least:
                continue
            if found.falls_short:
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
        """Factors above 1, by model."""
        return {name: factor for name, factor in self._factors.items() if factor > 1}

    def raise_loads(self, loads: Loads) -> dict[str, ModelLoad]:
        """``loads`` as they are to be planned for."""
        return {
            name: msgspec.structs.replace(load, rate=load.rate * self._factors.get(name, 1.0))
            for name, load in loads.items()
        }
