"""Prometheus metrics of a planner from what it knows anyway: its plan, what waits, and the missing executors."""

import time

from omnibus.cluster.desired import counts
from omnibus.cluster.presence import ReadyExecutors
from omnibus.metrics import PLANNER
from services.planner.rollout.rollout import Changes


def watch(changes: Changes, ready: ReadyExecutors) -> None:
    """Let the metrics of this process be read from ``changes`` and ``ready``."""

    def wanted() -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for kind, count in counts(changes.plan.models).items() if changes.plan is not None else ():
            found[kind[:2]] = found.get(kind[:2], 0) + count
        return found

    def there() -> dict[tuple[str, ...], float]:
        found = dict.fromkeys(wanted(), 0.0)
        for kind in counts(changes.plan.models) if changes.plan is not None else ():
            found[kind[:2]] += ready.count(kind)
        return found

    PLANNER.epoch.by(lambda: {(): changes.plan.epoch} if changes.plan is not None else {})
    PLANNER.created.by(lambda: {(): changes.plan.created} if changes.plan is not None else {})
    PLANNER.staged.one(lambda: time.time() - changes.staged.created if changes.staged is not None else 0.0)
    PLANNER.problems.one(lambda: changes.troubled)
    PLANNER.pinned.one(lambda: changes.pinned)
    PLANNER.wanted.by(wanted)
    PLANNER.ready.by(there)
