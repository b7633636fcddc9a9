"""Changes of a plan that need new executors: how long each is waited for, and when it is tried again.

Models that have nothing to do with one another change by themselves, so that one whose executors do not start
holds up no other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from omnibus.plan import ModelPlan
from omnibus.wanted import Kind, groups, starts

#: Seconds between two attempts at most.
LONGEST = 3600.0

Models = Mapping[str, ModelPlan]
_encode = msgspec.json.Encoder(order="deterministic").encode


class Change(NamedTuple):
    """Models that change together, and the executors that must be ready before. ``key`` is the same for the same."""

    key: bytes
    models: frozenset[str]
    needs: dict[Kind, int]


class Sorted(NamedTuple):
    """Changes that can be made now, those whose executors are awaited, and those that were put off.

    ``look`` is when that may be otherwise, infinite for never; ``faults`` says why which were put off.
    """

    ready: list[Change]
    waiting: list[Change]
    later: list[Change]
    look: float
    faults: list[str]


def changes(before: Models, after: Models) -> list[Change]:
    """What leads from ``before`` to ``after``, in independent parts."""
    needs = starts(before, after)
    return [
        Change(
            blake2b(_encode([(name, before.get(name), after.get(name)) for name in sorted(models)])).digest(),
            models,
            {kind: count for kind, count in needs.items() if kind.model in models},
        )
        for models in groups(before, after)
    ]


def merged(before: Models, after: Models, chosen: Iterable[Change]) -> dict[str, ModelPlan]:
    """``before`` with the models of ``chosen`` as they are in ``after``."""
    names = {name for change in chosen for name in change.models}
    order = [*after, *(name for name in before if name not in after)]
    taken = {name: (after if name in names else before).get(name) for name in order}
    return {name: model for name, model in taken.items() if model is not None}


@dataclass
class _Trial:
    pause: float
    ends: float  # of the wait, or of the pause
    waits: bool = True
    fault: str = ""


class Trials:
    """What is known of the changes under way. Times are of one monotonic clock, in seconds."""

    def __init__(self, patience: float, pause: float) -> None:
        self._patience = patience
        self._pause = pause
        self._trials: dict[bytes, _Trial] = {}

    def sort(
        self, wanted: list[Change], missing: Callable[[Mapping[Kind, int]], Mapping[Kind, int]], now: float
    ) -> Sorted:
        """Sort ``wanted``; ``missing`` tells how many are ready of the kinds that are not complete."""
        known = self._trials
        self._trials = {change.key: known[change.key] for change in wanted if change.key in known}
        ready, waiting, later = list[Change](), list[Change](), list[Change]()
        for change in wanted:
            lacks = missing(change.needs)
            if not lacks:
                ready.append(change)
            elif self._waits(change, lacks, now):
                waiting.append(change)
            else:
                later.append(change)
        open_ = [self._trials[change.key] for change in (*waiting, *later)]
        faults = [trial.fault for trial in open_ if trial.fault]
        return Sorted(ready, waiting, later, min((trial.ends for trial in open_), default=float("inf")), faults)

    def _waits(self, change: Change, lacks: Mapping[Kind, int], now: float) -> bool:
        trial = self._trials.get(change.key)
        if trial is None:
            trial = self._trials[change.key] = _Trial(self._pause, now + self._patience)
        elif now >= trial.ends and trial.waits:
            trial.waits, trial.ends = False, now + trial.pause
            trial.pause = min(2 * trial.pause, LONGEST)
            trial.fault = _fault(change, lacks, self._patience)
        elif now >= trial.ends:
            trial.waits, trial.ends = True, now + self._patience
        return trial.waits


def _fault(change: Change, lacks: Mapping[Kind, int], patience: float) -> str:
    short = ", ".join(f"{count} of {change.needs[kind]} executors of {kind}" for kind, count in lacks.items())
    return f"{', '.join(sorted(change.models))} stays as it was: after {patience:g} s {short} are ready"
