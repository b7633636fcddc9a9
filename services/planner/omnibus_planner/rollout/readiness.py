"""Changes of a plan that need new executors: how long to wait for them, and when to retry.

Unrelated models change independently, so a model whose executors do not start does not block others.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from omnibus.cluster.presence import ExecutorKind, added_replicas, change_groups
from omnibus.plan import ModelPlan
from omnibus_planner.rollout.transition_plan import Models

#: Longest pause in seconds between two attempts.
MAX_BACKOFF_SECONDS = 3600.0
#: Seconds after the request before an executor counts: a ready one may already be stopping.
SETTLE_SECONDS = 0.5

_encode = msgspec.json.Encoder(order="deterministic").encode


class PlanChange(NamedTuple):
    """Models that change together, and the executors that they need. Equal changes have equal ``key``."""

    key: bytes
    models: frozenset[str]
    needs: dict[ExecutorKind, int]


class ClassifiedChanges(NamedTuple):
    """Changes that can be made now, that wait, and that are postponed.

    ``look`` is the time of the next check, infinite for never. ``faults`` are the reasons for postponed changes.
    """

    ready: list[PlanChange]
    waiting: list[PlanChange]
    later: list[PlanChange]
    look: float
    faults: list[str]


def independent_changes(before: Models, after: Models) -> list[PlanChange]:
    """Return the independent changes that lead from ``before`` to ``after``."""
    needs = added_replicas(before, after)
    return [
        PlanChange(
            blake2b(_encode([(name, before.get(name), after.get(name)) for name in sorted(models)])).digest(),
            models,
            {kind: count for kind, count in needs.items() if kind.model in models},
        )
        for models in change_groups(before, after)
    ]


def merge_changes(before: Models, after: Models, changes: Iterable[PlanChange]) -> dict[str, ModelPlan]:
    """Return ``before`` with the models of ``changes`` as in ``after``."""
    names = {name for change in changes for name in change.models}
    order = [*after, *(name for name in before if name not in after)]
    merged_models = {name: (after if name in names else before).get(name) for name in order}
    return {name: model for name, model in merged_models.items() if model is not None}


@dataclass
class _Trial:
    pause: float
    began: float
    ends: float  # of the wait, or of the pause
    waits: bool = True
    fault: str = ""


class Trials:
    """State of the changes in progress. Times are of one monotonic clock, in seconds."""

    def __init__(self, patience: float, pause: float) -> None:
        self._patience = patience
        self._pause = pause
        self._trials: dict[bytes, _Trial] = {}

    def classify_changes(
        self,
        changes: list[PlanChange],
        missing: Callable[[Mapping[ExecutorKind, int]], Mapping[ExecutorKind, int]],
        now: float,
    ) -> ClassifiedChanges:
        """Classify ``changes``; ``missing`` returns the number of ready executors of incomplete kinds."""
        old_trials = self._trials
        self._trials = {
            change.key: old_trials.get(change.key) or self._new_trial(now) for change in changes if change.needs
        }
        classified_changes = ClassifiedChanges(
            [change for change in changes if not change.needs], [], [], float("inf"), []
        )
        for change in changes:
            if change.needs:
                classified_changes = self._classify_change(classified_changes, change, missing(change.needs), now)
        return classified_changes

    def _new_trial(self, now: float) -> _Trial:
        return _Trial(self._pause, now, now + self._patience)

    def _classify_change(
        self, classified_changes: ClassifiedChanges, change: PlanChange, lacks: Mapping[ExecutorKind, int], now: float
    ) -> ClassifiedChanges:
        trial = self._trials[change.key]
        settles = trial.began + SETTLE_SECONDS
        if not lacks and now >= settles:
            classified_changes.ready.append(change)
            return classified_changes
        if lacks and now >= trial.ends:
            self._switch_phase(trial, _describe_missing(change, lacks, self._patience), now)
        (classified_changes.waiting if trial.waits else classified_changes.later).append(change)
        faults = [*classified_changes.faults, *([trial.fault] if trial.fault else [])]
        return classified_changes._replace(
            look=min(classified_changes.look, trial.ends if lacks else settles), faults=faults
        )

    def _switch_phase(self, trial: _Trial, fault: str, now: float) -> None:
        """Postpone the change, or retry it."""
        if trial.waits:
            trial.waits, trial.ends, trial.fault = False, now + trial.pause, fault
            trial.pause = min(2 * trial.pause, MAX_BACKOFF_SECONDS)
        else:
            trial.waits, trial.began, trial.ends = True, now, now + self._patience


def _describe_missing(change: PlanChange, lacks: Mapping[ExecutorKind, int], patience: float) -> str:
    short = ", ".join(f"{count} of {change.needs[kind]} executors of {kind}" for kind, count in lacks.items())
    return f"{', '.join(sorted(change.models))} stays as it was: after {patience:g} s {short} are ready"
