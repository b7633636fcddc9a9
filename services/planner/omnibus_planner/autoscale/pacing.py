"""Pauses between plans: each lasts ten times the CPU time of the plan before it."""

from collections.abc import Callable

from omnibus_planner.autoscale.candidates import PlanCandidates

#: Fewest seconds between two plans, and seconds per second of CPU time of the last one.
MIN_PAUSE_SECONDS, PAUSE_PER_CPU_SECOND = 1.0, 10.0


class SolvePace:
    """Pause after plans that were solved for one reason. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock()

    @property
    def is_resting(self) -> bool:
        """True while no plan may be solved."""
        return self._clock() < self._until

    def note_solved(self, plan_candidates: PlanCandidates) -> None:
        """Start the pause after ``plan_candidates`` was solved."""
        self._until = self._clock() + max(MIN_PAUSE_SECONDS, PAUSE_PER_CPU_SECOND * plan_candidates.seconds)
