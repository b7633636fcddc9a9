"""Models that change together, and which of their executors must stay for every request to be served. Pure, no I/O."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from omnibus.cluster.desired import Kind, counts
from services.planner.rollout.transition_plan import Models, alike, lender, mixed, running

#: Executors by kind.
Counts = Mapping[Kind, int]
#: A component of a model.
Part = tuple[str, str]
#: What executors of each kind run.
Runs = Mapping[Kind, set[Part]]


class Size(NamedTuple):
    """GPUs that an executor takes: their type and their number."""

    gpu: str
    gpus: int


def sizes(models: Models) -> dict[Kind, Size]:
    """Return the sizes of all executors that are counted among the declared GPUs, by kind."""
    return {
        Kind(name, option, model.origin(option)): Size(deployed.gpu, max(1, deployed.gpus))
        for name, model in models.items()
        for option, deployed in model.options.items()
        if not deployed.of and (deployed.gpu or deployed.gpus)
    }


class Unit:
    """Models that lend to one another, before and after. ``whole``: a plan of them has executors of one side alone."""

    def __init__(self, names: Collection[str], before: Models, after: Models, sizes: Mapping[Kind, Size]) -> None:
        self.names = frozenset(names)
        self.before = {name: model for name, model in before.items() if name in names}
        self.after = {name: model for name, model in after.items() if name in names}
        self.have, self.goal = counts(self.before), counts(self.after)
        self.kinds = self.have.keys() | self.goal.keys()
        self._sizes = sizes
        same = self.before.keys() == self.after.keys()
        self.whole = not (same and all(alike(model, self.after[name]) for name, model in self.before.items()))
        self._old, self._new = _runs(self.before), _runs(self.after)
        needed, needs = _served(self.before), _served(self.after)
        if not self.whole:
            both = {kind: self._old.get(kind, set()) | self._new.get(kind, set()) for kind in self.kinds}
            self._old, self._new, needed, needs = both, both, needed & needs, needed & needs
        self._needed, self._needs = needed, needs

    def turned(self, there: Counts) -> bool:
        """Return whether a plan over the executors ``there`` is of the new side."""
        return not self.whole or self._covers(self._new, [kind for kind in self.goal if there.get(kind)])

    def usable(self, there: Counts) -> dict[Kind, int]:
        """The executors of ``there`` that a plan can have."""
        side = self.kinds if not self.whole else self.goal.keys() if self.turned(there) else self.have.keys()
        return {kind: there[kind] for kind in side if there.get(kind)}

    def extras(self, there: Counts) -> set[Kind]:
        """The kinds that the goal does not ask for, of which one executor has to stay all the same."""
        if self.whole and self.turned(there):
            return set()
        usable = self.usable(there)
        stay = [kind for kind in usable if kind in self.goal]
        return self._fewest(self._old, [kind for kind in usable if kind not in self.goal], stay)

    def bundles(self, there: Counts) -> list[set[Kind]]:
        """New kinds of which one executor each would let others leave, or the models begin."""
        fresh = [kind for kind in self.goal if not there.get(kind)]
        known = [kind for kind in self.goal if there.get(kind)]
        if self.whole:
            return [] if self.turned(there) else [self._fewest(self._new, fresh, known)]
        extras = self.extras(there)
        found = [self._fewest(self._new, fresh, [*known, *(extras - {each})]) for each in sorted(extras)]
        return [each for number, each in enumerate(found) if each and each not in found[:number]]

    def models(self, there: Counts) -> Models:
        """The models deployed as ``there``."""
        if there == self.goal:
            return self.after
        if there == self.have:
            return self.before
        if not self.whole:
            return mixed(self.before, self.after, there)
        side = self.after if self.turned(there) else self.before
        return mixed(side, side, there)

    def _covers(self, runs: Runs, kinds: Iterable[Kind]) -> bool:
        """Return whether they run all that one side needs."""
        needs = self._needed if runs is self._old else self._needs
        return needs <= {part for kind in kinds for part in runs.get(kind, ())}

    def _fewest(self, runs: Runs, kinds: list[Kind], stay: Iterable[Kind]) -> set[Kind]:
        """Of ``kinds`` those that take the fewest GPUs and, with those that ``stay``, run all that one side needs."""
        stay = list(stay)

        def pruned(order: Callable[[Kind], tuple[int, ...]]) -> set[Kind]:
            left = sorted(kinds, key=lambda kind: (order(kind), kind))
            for kind in list(left):
                others = [each for each in left if each != kind]
                if self._covers(runs, [*stay, *others]):
                    left = others
            return set(left)

        def gpus(kind: Kind) -> int:
            return self._sizes[kind].gpus if kind in self._sizes else 0

        orders: list[Callable[[Kind], tuple[int, ...]]] = [
            lambda kind: (len(runs[kind]), -gpus(kind)),
            lambda kind: (-gpus(kind), len(runs[kind])),
        ]
        return min(map(pruned, orders), key=lambda found: sum(map(gpus, found)))


def _runs(models: Models) -> dict[Kind, set[Part]]:
    """Return the components that each kind runs, also those of models that it is lent to."""
    kinds = {kind[:2]: kind for kind in counts(models)}
    found: dict[Kind, set[Part]] = {kind: set() for kind in kinds.values()}
    for name, model in models.items():
        for key, option in model.options.items():
            runs = lender(name, key, option)
            if runs in kinds:
                found[kinds[runs]] |= {(name, part) for part in option.components}
    return found


def _served(models: Models) -> set[Part]:
    """The components that requests can use."""
    have = running(models)
    able = {
        (name, part)
        for name, model in models.items()
        for key, option in model.options.items()
        if have.get(lender(name, key, option))
        for part in option.components
    }
    asked = {(name, part) for name, model in models.items() for kind in model.types for part in kind.split("+")}
    return able & asked
