"""Models that change together, and the executors that must stay for them. Pure, no I/O.

Every request must be served during the change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from omnibus.cluster.desired import ExecutorKind, replica_counts
from omnibus_planner.rollout.transition_plan import (
    Models,
    is_compatible,
    owning_option,
    running_replicas,
    transition_plan,
)

#: Executors by kind.
Counts = Mapping[ExecutorKind, int]
#: A component of a model.
Part = tuple[str, str]
#: Components that executors of each kind run.
Runs = Mapping[ExecutorKind, set[Part]]


class ExecutorSize(NamedTuple):
    """Type and number of the GPUs of an executor."""

    gpu: str
    gpus: int


def executor_sizes(models: Models) -> dict[ExecutorKind, ExecutorSize]:
    """Return the sizes of executors on declared GPUs, by kind."""
    return {
        ExecutorKind(name, option, model.option_origin(option)): ExecutorSize(deployed.gpu, max(1, deployed.gpus))
        for name, model in models.items()
        for option, deployed in model.options.items()
        if not deployed.of and (deployed.gpu or deployed.gpus)
    }


class ChangeGroup:
    """Models that lend to one another, before and after.

    If ``whole``, a plan of them has executors of only one side.
    """

    def __init__(
        self, names: Collection[str], before: Models, after: Models, sizes: Mapping[ExecutorKind, ExecutorSize]
    ) -> None:
        self.names = frozenset(names)
        self.before = {name: model for name, model in before.items() if name in names}
        self.after = {name: model for name, model in after.items() if name in names}
        self.have, self.goal = replica_counts(self.before), replica_counts(self.after)
        self.kinds = self.have.keys() | self.goal.keys()
        self._sizes = sizes
        same = self.before.keys() == self.after.keys()
        self.whole = not (same and all(is_compatible(model, self.after[name]) for name, model in self.before.items()))
        self._old, self._new = _components_by_kind(self.before), _components_by_kind(self.after)
        old_parts, needs = _served_components(self.before), _served_components(self.after)
        if not self.whole:
            all_runs = {kind: self._old.get(kind, set()) | self._new.get(kind, set()) for kind in self.kinds}
            self._old, self._new, old_parts, needs = all_runs, all_runs, old_parts & needs, old_parts & needs
        self._needed, self._needs = old_parts, needs

    def is_switched(self, there: Counts) -> bool:
        """Return True if a plan over ``there`` is of the new side."""
        return not self.whole or self._covers_needs(self._new, [kind for kind in self.goal if there.get(kind)])

    def usable_executors(self, there: Counts) -> dict[ExecutorKind, int]:
        """Return the executors of ``there`` that a plan can have."""
        side = self.kinds if not self.whole else self.goal.keys() if self.is_switched(there) else self.have.keys()
        return {kind: there[kind] for kind in side if there.get(kind)}

    def required_extras(self, there: Counts) -> set[ExecutorKind]:
        """Return kinds outside the goal of which one executor must stay."""
        if self.whole and self.is_switched(there):
            return set()
        usable = self.usable_executors(there)
        stay = [kind for kind in usable if kind in self.goal]
        return self._smallest_kinds(self._old, [kind for kind in usable if kind not in self.goal], stay)

    def next_bundles(self, there: Counts) -> list[set[ExecutorKind]]:
        """Return sets of new kinds, one executor each, that make progress.

        They let others stop, or the models begin.
        """
        fresh = [kind for kind in self.goal if not there.get(kind)]
        present_kinds = [kind for kind in self.goal if there.get(kind)]
        if self.whole:
            return [] if self.is_switched(there) else [self._smallest_kinds(self._new, fresh, present_kinds)]
        extras = self.required_extras(there)
        bundles = [
            self._smallest_kinds(self._new, fresh, [*present_kinds, *(extras - {each})]) for each in sorted(extras)
        ]
        return [each for number, each in enumerate(bundles) if each and each not in bundles[:number]]

    def build_models(self, there: Counts) -> Models:
        """Return the models deployed as ``there``."""
        if there == self.goal:
            return self.after
        if there == self.have:
            return self.before
        if not self.whole:
            return transition_plan(self.before, self.after, there)
        side = self.after if self.is_switched(there) else self.before
        return transition_plan(side, side, there)

    def _covers_needs(self, runs: Runs, kinds: Iterable[ExecutorKind]) -> bool:
        """Return True if ``kinds`` run all components that one side needs."""
        needs = self._needed if runs is self._old else self._needs
        return needs <= {part for kind in kinds for part in runs.get(kind, ())}

    def _smallest_kinds(self, runs: Runs, kinds: list[ExecutorKind], stay: Iterable[ExecutorKind]) -> set[ExecutorKind]:
        """Return the subset of ``kinds`` with the fewest GPUs that completes ``stay``.

        Together they run all components that one side needs.
        """
        stay = list(stay)

        def prune_kinds(order: Callable[[ExecutorKind], tuple[int, ...]]) -> set[ExecutorKind]:
            left = sorted(kinds, key=lambda kind: (order(kind), kind))
            for kind in list(left):
                other_kinds = [each for each in left if each != kind]
                if self._covers_needs(runs, [*stay, *other_kinds]):
                    left = other_kinds
            return set(left)

        def gpus_of_kind(kind: ExecutorKind) -> int:
            return self._sizes[kind].gpus if kind in self._sizes else 0

        orders: list[Callable[[ExecutorKind], tuple[int, ...]]] = [
            lambda kind: (len(runs[kind]), -gpus_of_kind(kind)),
            lambda kind: (-gpus_of_kind(kind), len(runs[kind])),
        ]
        return min(map(prune_kinds, orders), key=lambda found: sum(map(gpus_of_kind, found)))


def _components_by_kind(models: Models) -> dict[ExecutorKind, set[Part]]:
    """Return the components of each kind, including those of borrowing models."""
    kinds = {kind[:2]: kind for kind in replica_counts(models)}
    parts_by_kind: dict[ExecutorKind, set[Part]] = {kind: set() for kind in kinds.values()}
    for name, model in models.items():
        for key, option in model.options.items():
            runs = owning_option(name, key, option)
            if runs in kinds:
                parts_by_kind[kinds[runs]] |= {(name, part) for part in option.components}
    return parts_by_kind


def _served_components(models: Models) -> set[Part]:
    """Return the components that requests can use."""
    have = running_replicas(models)
    able = {
        (name, part)
        for name, model in models.items()
        for key, option in model.options.items()
        if have.get(owning_option(name, key, option))
        for part in option.components
    }
    requested_parts = {
        (name, part) for name, model in models.items() for kind in model.types for part in kind.split("+")
    }
    return able & requested_parts
