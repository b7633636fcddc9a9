"""Prometheus metrics of a planner, from its state: its plan, staged plans, and missing executors."""

import time

from omnibus.cluster.desired import replica_counts
from omnibus.cluster.presence import ReadyExecutors
from omnibus.metrics import PLANNER
from omnibus_planner.rollout.rollout import PlanRollout


def register_metrics(changes: PlanRollout, ready: ReadyExecutors) -> None:
    """Register metrics that read ``changes`` and ``ready``."""

    def planned_executors() -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for kind, count in replica_counts(changes.plan.models).items() if changes.plan is not None else ():
            counts[kind[:2]] = counts.get(kind[:2], 0) + count
        return counts

    def ready_executors() -> dict[tuple[str, ...], float]:
        counts = dict.fromkeys(planned_executors(), 0.0)
        for kind in replica_counts(changes.plan.models) if changes.plan is not None else ():
            counts[kind[:2]] += ready.count_ready(kind)
        return counts

    PLANNER.epoch.set_values(lambda: {(): changes.plan.epoch} if changes.plan is not None else {})
    PLANNER.created.set_values(lambda: {(): changes.plan.created} if changes.plan is not None else {})
    PLANNER.staged.set_value(
        lambda: time.time() - changes.staged_plan.created if changes.staged_plan is not None else 0.0
    )
    PLANNER.problems.set_value(lambda: changes.has_problem)
    PLANNER.pinned.set_value(lambda: changes.is_pinned)
    PLANNER.wanted.set_values(planned_executors)
    PLANNER.ready.set_values(ready_executors)
