"""Pauses between plans: each is followed by ten times the CPU time that it took, for planning is to take little."""

from collections.abc import Callable

from services.planner.autoscale.candidates import PlanCandidates

#: Seconds between two plans at least, and for each second of CPU time that the last one took.
MIN_PAUSE_SECONDS, PAUSE_PER_CPU_SECOND = 1.0, 10.0


class SolvePace:
    """Pause after plans that were solved for one reason. ``clock`` tells seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock()

    @property
    def is_resting(self) -> bool:
        """True while nothing is to be solved."""
        return self._clock() < self._until

    def note_solved(self, found: PlanCandidates) -> None:
        """Pause now that ``found`` was solved."""
        self._until = self._clock() + max(MIN_PAUSE_SECONDS, PAUSE_PER_CPU_SECOND * found.seconds)
