"""Load counters of one model and request type, between two reports."""

from collections.abc import Mapping
from typing import NamedTuple

from omnibus.bus.messages import LoadCounts
from omnibus.cluster.latency_histogram import count_figures
from omnibus.profile import QUANTITIES
from omnibus_gateway.routing.assignment import ModelPart


class LoadCounters:
    """Counters of one model and request type since the last event."""

    __slots__ = (
        "came",
        "done",
        "ended",
        "estimated",
        "estimated_done",
        "failed",
        "first",
        "goals",
        "met",
        "missed",
        "quantities",
        "refused",
        "total",
        "waiting",
    )

    def __init__(self, goals: Mapping[str, float]) -> None:
        self.goals = goals  # seconds by figure
        self.waiting = 0  # now, not since the last event
        self.clear()

    def clear(self) -> None:
        self.came = self.done = self.failed = self.refused = self.met = self.missed = 0
        self.ended: list[Mapping[str, float]] = []  # seconds by figure of successful requests
        self.first = self.total = 0.0
        self.quantities = [0.0] * len(QUANTITIES)
        self.estimated = [0.0] * len(QUANTITIES)
        self.estimated_done = [0.0] * len(QUANTITIES)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to report."""
        return not (self.came or self.done or self.failed or self.refused or self.waiting)

    def to_load(self) -> LoadCounts:
        if self.goals:
            self.count_goals()
        sums, estimate_sums, done_estimates = (
            {name: value for name, value in zip(QUANTITIES, values, strict=True) if value}
            for values in (self.quantities, self.estimated, self.estimated_done)
        )
        return LoadCounts(
            self.came,
            self.done,
            self.failed,
            self.refused,
            sums,
            self.first,
            self.total,
            estimate_sums,
            done_estimates,
            self.waiting,
            count_figures(self.ended),
            self.met,
            self.missed,
        )

    def count_goals(self) -> None:
        """Count the successful requests that met or missed their goals."""
        for figures in self.ended:
            late = any(figures.get(figure, 0.0) > limit for figure, limit in self.goals.items())
            self.missed += late
            self.met += not late

    def count_miss(self) -> None:
        """Count a request that was rejected or failed."""
        self.missed += bool(self.goals)


class CountedInvocation(NamedTuple):
    """An invocation counted on arrival: the counters of each of its parts."""

    slots: tuple[LoadCounters, ...]
    parts: tuple[ModelPart, ...]
