"""Changes of a plan that need new executors: how long each is waited for, and when it is tried again.

Models that have nothing to do with one another change by themselves, so that one whose executors do not start
holds up no other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from omnibus.cluster.desired import ExecutorKind, added_replicas, change_groups
from omnibus.plan import ModelPlan
from services.planner.rollout.transition_plan import Models

#: Seconds between two attempts at most.
MAX_BACKOFF_SECONDS = 3600.0
#: Seconds for which executors must have been asked for: one that is ready, but was about to leave, may have begun to.
SETTLE_SECONDS = 0.5

_encode = msgspec.json.Encoder(order="deterministic").encode


class PlanChange(NamedTuple):
    """Models that change together, and the executors that must be ready before. ``key`` is the same for the same."""

    key: bytes
    models: frozenset[str]
    needs: dict[ExecutorKind, int]


class ClassifiedChanges(NamedTuple):
    """Changes that can be made now, those whose executors are awaited, and those that were put off.

    ``look`` is when that may be otherwise, infinite for never; ``faults`` says why which were put off.
    """

    ready: list[PlanChange]
    waiting: list[PlanChange]
    later: list[PlanChange]
    look: float
    faults: list[str]


def independent_changes(before: Models, after: Models) -> list[PlanChange]:
    """Return the changes that lead from ``before`` to ``after``, independent of one another."""
    needs = added_replicas(before, after)
    return [
        PlanChange(
            blake2b(_encode([(name, before.get(name), after.get(name)) for name in sorted(models)])).digest(),
            models,
            {kind: count for kind, count in needs.items() if kind.model in models},
        )
        for models in change_groups(before, after)
    ]


def merge_changes(before: Models, after: Models, chosen: Iterable[PlanChange]) -> dict[str, ModelPlan]:
    """``before`` with the models of ``chosen`` as they are in ``after``."""
    names = {name for change in chosen for name in change.models}
    order = [*after, *(name for name in before if name not in after)]
    taken = {name: (after if name in names else before).get(name) for name in order}
    return {name: model for name, model in taken.items() if model is not None}


@dataclass
class _Trial:
    pause: float
    began: float
    ends: float  # of the wait, or of the pause
    waits: bool = True
    fault: str = ""


class Trials:
    """State of the changes under way. Times are of one monotonic clock, in seconds."""

    def __init__(self, patience: float, pause: float) -> None:
        self._patience = patience
        self._pause = pause
        self._trials: dict[bytes, _Trial] = {}

    def classify_changes(
        self,
        wanted: list[PlanChange],
        missing: Callable[[Mapping[ExecutorKind, int]], Mapping[ExecutorKind, int]],
        now: float,
    ) -> ClassifiedChanges:
        """Sort ``wanted``; ``missing`` tells how many are ready of the kinds that are not complete."""
        known = self._trials
        self._trials = {change.key: known.get(change.key) or self._new_trial(now) for change in wanted if change.needs}
        found = ClassifiedChanges([change for change in wanted if not change.needs], [], [], float("inf"), [])
        for change in wanted:
            if change.needs:
                found = self._classify_change(found, change, missing(change.needs), now)
        return found

    def _new_trial(self, now: float) -> _Trial:
        return _Trial(self._pause, now, now + self._patience)

    def _classify_change(
        self, found: ClassifiedChanges, change: PlanChange, lacks: Mapping[ExecutorKind, int], now: float
    ) -> ClassifiedChanges:
        trial = self._trials[change.key]
        settles = trial.began + SETTLE_SECONDS
        if not lacks and now >= settles:
            found.ready.append(change)
            return found
        if lacks and now >= trial.ends:
            self._switch_phase(trial, _describe_missing(change, lacks, self._patience), now)
        (found.waiting if trial.waits else found.later).append(change)
        faults = [*found.faults, *([trial.fault] if trial.fault else [])]
        return found._replace(look=min(found.look, trial.ends if lacks else settles), faults=faults)

    def _switch_phase(self, trial: _Trial, fault: str, now: float) -> None:
        """Put it off, or try it again."""
        if trial.waits:
            trial.waits, trial.ends, trial.fault = False, now + trial.pause, fault
            trial.pause = min(2 * trial.pause, MAX_BACKOFF_SECONDS)
        else:
            trial.waits, trial.began, trial.ends = True, now, now + self._patience


def _describe_missing(change: PlanChange, lacks: Mapping[ExecutorKind, int], patience: float) -> str:
    short = ", ".join(f"{count} of {change.needs[kind]} executors of {kind}" for kind, count in lacks.items())
    return f"{', '.join(sorted(change.models))} stays as it was: after {patience:g} s {short} are ready"
