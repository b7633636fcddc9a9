"""A change in steps, each within the GPUs next to the previous.

Pure, no I/O. Usage:

    rollout_steps(before, after, {"H100": 8})    # plans of all models; the last one is ``after``

If there is no room for all new executors next to the old ones, old ones that the new plan does not need stop first. New
ones start in their place, and so on. One of each kind stays as long as requests need it. If possible, half of the GPUs
keep serving, because the remaining executors carry the whole load until the new ones are ready.

Models that change together, and the executors that must stay for them. Pure, no I/O.

Every request must be served during the change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar, NamedTuple

from omnibus.cluster.presence import ExecutorKind, added_replicas, replica_counts, tied_models
from omnibus.cluster.roles import ExecutorRole, find_switches, plan_roles
from omnibus.errors import Retryable
from omnibus.plan import ModelPlan
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


#: Fraction of the GPUs of a type that keep serving, if possible.
MIN_SERVING_FRACTION = 0.5
#: Most kinds that are listed by name.
MAX_NAMED_KINDS = 3


class InsufficientGpus(Retryable):
    """A change does not fit into the GPUs. ``models`` are those that stay as they are."""

    code: ClassVar[str] = "no_room"

    def __init__(self, message: str, models: frozenset[str]) -> None:
        super().__init__(message)
        self.models = models


def rollout_steps(
    before: Models, after: Models, gpus: Mapping[str, int], *, switches: bool = False
) -> list[dict[str, ModelPlan]]:
    """Return the plans that lead from ``before`` to ``after``; none if they are equal.

    ``gpus`` is their number by type; a type that it lacks is never short. Executors of two successive plans fit into it
    together. Each plan serves all requests that both ``before`` and ``after`` serve. From each plan this function
    returns the same remaining steps. With ``switches``, executors may take another role on their GPUs. Raises
    ``InsufficientGpus``.
    """
    steps: list[dict[str, ModelPlan]] = []
    state = dict(before)
    while state != after:
        state = _StepFinder(state, after, gpus, switches=switches).next_step()
        steps.append(state)
    return steps


def missing_gpus(
    have: Counts,
    want: Counts,
    sizes: Mapping[ExecutorKind, ExecutorSize],
    gpus: Mapping[str, int],
    roles: Mapping[ExecutorKind, ExecutorRole] | None = None,
) -> dict[str, int]:
    """Return the missing GPUs, by type, to start ``want`` next to ``have``.

    ``roles`` are those of executors that can take another one (``omnibus.cluster.roles``), on their GPUs.
    """
    begins = {sizes[kind].gpu for kind, count in want.items() if count > have.get(kind, 0) and kind in sizes}
    used_gpus = dict.fromkeys(begins & gpus.keys(), 0)
    for kind in have.keys() | want.keys():
        size = sizes.get(kind)
        if size is not None and size.gpu in used_gpus:
            used_gpus[size.gpu] += size.gpus * max(have.get(kind, 0), want.get(kind, 0))
    for (kind, _), count in find_switches(have, want, roles or {}).items():
        if kind in sizes and sizes[kind].gpu in used_gpus:
            used_gpus[sizes[kind].gpu] -= sizes[kind].gpus * count
    return {gpu: count - gpus[gpu] for gpu, count in used_gpus.items() if count > gpus[gpu]}


def describe_step(before: Models, step: Models, after: Models) -> str:
    """Return the purpose of the step to ``step``, in words; empty for the last step."""
    if step == after:
        return ""
    fresh, there = added_replicas(before, step), replica_counts(before)
    requested_count = sum(count - there.get(kind, 0) for kind, count in added_replicas(before, after).items())
    if fresh:
        return f"{sum(count - there.get(kind, 0) for kind, count in fresh.items())} of {requested_count} new executors"
    there = replica_counts(step)
    short = [
        f"{count - there.get(kind, 0)} {kind.model}/{kind.option}"
        for kind, count in added_replicas(step, after).items()
    ]
    more = f" and {len(short) - MAX_NAMED_KINDS} more" if len(short) > MAX_NAMED_KINDS else ""
    return f"makes room for {', '.join(short[:MAX_NAMED_KINDS])}{more}"


class _StepFinder:
    """Steps from one plan to another."""

    def __init__(self, before: Models, after: Models, gpus: Mapping[str, int], *, switches: bool = False) -> None:
        self._roles = {**plan_roles(before), **plan_roles(after)} if switches else {}
        self._before, self._after, self._gpus = before, after, gpus
        self._sizes = {
            kind: size for kind, size in {**executor_sizes(before), **executor_sizes(after)}.items() if size.gpu in gpus
        }
        units = [ChangeGroup(names, before, after, self._sizes) for names in tied_models(before, after)]
        self._units = [unit for unit in units if unit.kinds & self._sizes.keys()]
        self._there = {kind: count for unit in self._units for kind, count in unit.have.items()}
        self._goal = {kind: count for unit in self._units for kind, count in unit.goal.items()}

    def next_step(self) -> dict[str, ModelPlan]:
        """Return the next plan. Raises ``InsufficientGpus``."""
        if not self._missing_gpus(self._there, self._goal):
            return dict(self._after)
        less = self._remove_executors(self._there, MIN_SERVING_FRACTION)
        if less != self._there and (self._add_executors(less) != less or not self._missing_gpus(less, self._goal)):
            return self._build_models(less)
        for there in (self._add_executors(self._there), self._remove_executors(self._there, 0.0)):
            if there != self._there:
                return self._build_models(there)
        raise self._insufficient_gpus_error()

    def _build_models(self, there: Counts) -> dict[str, ModelPlan]:
        """Build all models with the executors ``there``; those without counted GPUs change at once."""
        models = dict(self._after)
        for unit in self._units:
            for name in unit.names:
                models.pop(name, None)
            models.update(unit.build_models({kind: there[kind] for kind in unit.kinds if there.get(kind)}))
        order = [*self._after, *(name for name in self._before if name not in self._after)]
        return {name: models[name] for name in order if name in models}

    # Fewer

    def _remove_executors(self, there: Counts, part: float) -> dict[ExecutorKind, int]:
        """Remove executors that no plan can have, and surplus ones.

        The number of surplus ones follows from the missing GPUs.
        """
        left = {kind: count for unit in self._units for kind, count in unit.usable_executors(there).items()}
        short = self._missing_gpus(left, self._goal)
        stay = {kind: min(count, self._goal.get(kind, 0)) for kind, count in left.items()}
        stay.update({kind: 1 for unit in self._units for kind in unit.required_extras(left)} if short else {})
        for gpu, lacks in short.items():
            kinds = [kind for kind in left if kind in self._sizes and self._sizes[kind].gpu == gpu]
            serving = sum(self._sizes[kind].gpus * left[kind] for kind in kinds)
            while lacks > 0:
                able = [
                    kind
                    for kind in kinds
                    if left[kind] > stay[kind] and serving - self._sizes[kind].gpus >= part * self._gpus[gpu]
                ]
                if not able:
                    break
                least = max(able, key=lambda kind: ((left[kind] - stay[kind]) / left[kind], left[kind], kind))
                left[least] -= 1
                serving -= self._sizes[least].gpus
                lacks -= self._sizes[least].gpus
        return {kind: count for unit in self._units for kind, count in unit.usable_executors(left).items()}

    # More

    def _add_executors(self, before: Counts) -> Counts:
        """Add executors of the goal that fit next to ``before``: first those that let others stop."""
        there, waits = dict(before), False
        for bundle in self._sorted_bundles(before):
            more = {**there, **{kind: max(1, there.get(kind, 0)) for kind in bundle}}
            if self._missing_gpus(before, more):
                waits = True
            else:
                there = more
        if not waits:
            self._fill_evenly(before, there)
        return self._remove_executors(there, MIN_SERVING_FRACTION) if there != before else before

    def _sorted_bundles(self, before: Counts) -> list[set[ExecutorKind]]:
        """Return the bundles of all units: first those that finally free GPUs, small before large."""
        bundles: list[tuple[tuple[bool, int], set[ExecutorKind]]] = []
        for unit in self._units:
            frees = self._gpus_used({kind: before[kind] for kind in unit.required_extras(before)})
            for bundle in unit.next_bundles(before):
                takes = self._gpus_used(dict.fromkeys(bundle, 1))
                bundles.append(((takes > frees, -frees if takes > frees else takes), bundle))
        return [bundle for _, bundle in sorted(bundles, key=lambda each: each[0])]

    def _gpus_used(self, there: Counts) -> int:
        return sum(self._sizes[kind].gpus * count for kind, count in there.items() if kind in self._sizes)

    def _fill_evenly(self, before: Counts, there: dict[ExecutorKind, int]) -> None:
        """Add executors of the goal evenly, as they fit next to ``before``."""
        switched_kinds = {kind for unit in self._units if unit.is_switched(there) for kind in unit.goal}
        kinds = [kind for kind in self._goal if kind in switched_kinds]
        while True:
            able = [
                kind
                for kind in kinds
                if there.get(kind, 0) < self._goal[kind]
                and not self._missing_gpus(before, {**there, kind: there.get(kind, 0) + 1})
            ]
            if not able:
                return
            least = min(able, key=lambda kind: (there.get(kind, 0) / self._goal[kind], kind))
            there[least] = there.get(least, 0) + 1

    def _missing_gpus(self, there: Counts, want: Counts) -> dict[str, int]:
        return missing_gpus(there, want, self._sizes, self._gpus, self._roles)

    def _insufficient_gpus_error(self) -> InsufficientGpus:
        """Describe the missing GPUs of the change that needs the fewest."""
        shortages: list[tuple[int, str]] = []
        names: set[str] = set()
        for unit in self._units:
            for bundle in [*unit.next_bundles(self._there), unit.goal.keys()]:
                want = {**self._there, **{kind: max(1, self._there.get(kind, 0)) for kind in bundle}}
                if lack := self._missing_gpus(self._there, want):
                    names |= unit.names
                    shortages.append((sum(lack.values()), f"{_describe_missing(lack)} for {_describe_kinds(bundle)}"))
        if not shortages:
            names = {name for unit in self._units if unit.have != unit.goal for name in unit.names}
            shortages = [(0, _describe_missing(self._missing_gpus(self._there, self._goal)))]
        return InsufficientGpus(
            f"{', '.join(sorted(names))} stays as it was: the GPUs are full, and no executor can leave before others "
            f"have started; it takes {min(shortages)[1]}",
            frozenset(names),
        )


def _describe_missing(lack: Mapping[str, int]) -> str:
    return " and ".join(f"{count} more of type {gpu}" for gpu, count in sorted(lack.items()))


def _describe_kinds(kinds: Iterable[ExecutorKind]) -> str:
    return ", ".join(sorted(f"{kind.model}/{kind.option}" for kind in kinds))
