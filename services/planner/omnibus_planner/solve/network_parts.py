"""Parts of a network that share no option: models that are planned together, and yet use different executors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np

from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_network import Arc, Network, Use
from omnibus_planner.solve.highs import Vector
from omnibus_planner.solve.query import SolverRun
from omnibus_planner.solve.solver import Solver

T = TypeVar("T")


@dataclass(frozen=True)
class NetworkPart:
    """A part of a network: its solver, and the numbers of its options and request types in the whole network."""

    solver: Solver
    options: Vector
    kinds: Vector

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of options."""
        return frozenset(self.solver.frame.network.options)

    def serves_all_mixes(self, run: SolverRun) -> bool:
        """Return True if each mix of ``run`` has requests of this part."""
        return all(any(mix[kind] > 0 for kind in self.kinds) for mix in run.mixes)

    def select_terms(self, terms: Terms, gpus: dict[str, int] | None) -> Terms:
        """Return those of ``terms`` that concern this part, within ``gpus``."""
        kinds = self.solver.frame.network.types
        return msgspec.structs.replace(
            terms,
            gpus=gpus,
            running=None if terms.running is None else self._select(terms.running),
            without=tuple(name for name in terms.without if name in self.names),
            admissible=self._select(terms.admissible),
            scenarios=tuple({kind: mix[kind] for kind in kinds if kind in mix} for mix in terms.scenarios),
            nodes={},
            covers=tuple(group for group in terms.covers if self.names.issuperset(group)),
        )

    def _select(self, by_option: dict[str, T]) -> dict[str, T]:
        return {name: value for name, value in by_option.items() if name in self.names}

    def create_run(self, run: SolverRun, gpus: dict[str, int] | None) -> SolverRun:
        """Create the question of ``run`` for this part alone, within ``gpus``."""
        part_run = self.solver.create_run(self.select_terms(run.terms, gpus))
        part_run.deadline, part_run.top = run.deadline, np.minimum(part_run.top, run.top[self.options])
        return part_run


def split_network(network: Network, groups: Sequence[Sequence[str]]) -> list[NetworkPart]:
    """Split ``network`` into parts.

    Options of one request type, or of one of ``groups``, are in the same part. Options without requests join the first
    part.
    """
    roots = _join_options(network, groups)
    firsts = sorted({roots[use.option] for arc in network.arcs for use in arc.uses})
    if len(firsts) < 2:
        return []
    owners = [root if root in firsts else firsts[0] for root in roots]
    return [_build_part(network, [at for at, owner in enumerate(owners) if owner == first]) for first in firsts]


def _join_options(network: Network, groups: Sequence[Sequence[str]]) -> list[int]:
    """Return the number of one option of the part, by option."""
    roots = list(range(len(network.options)))
    sets = [[use.option for use in arc.uses] for arc in network.arcs]
    sets += [[network.option_numbers[name] for name in group] for group in groups]
    sets += _options_by_type(network)
    for numbers in sets:
        for number in numbers[1:]:
            one, other = _find_root(roots, numbers[0]), _find_root(roots, number)
            roots[max(one, other)] = min(one, other)
    return [_find_root(roots, number) for number in range(len(roots))]


def _options_by_type(network: Network) -> Iterable[list[int]]:
    first: dict[int, int] = {}
    for arc in network.arcs:
        for use in arc.uses:
            yield [first.setdefault(arc.kind, use.option), use.option]


def _find_root(roots: list[int], number: int) -> int:
    while roots[number] != number:
        roots[number] = number = roots[roots[number]]
    return number


def _build_part(network: Network, numbers: list[int]) -> NetworkPart:
    place = {number: at for at, number in enumerate(numbers)}
    arcs = [arc for arc in network.arcs if arc.uses[0].option in place]
    kinds = sorted({arc.kind for arc in arcs})
    types = {kind: at for at, kind in enumerate(kinds)}
    part = Network(
        {network.option_names[number]: network.options[network.option_names[number]] for number in numbers},
        tuple(network.types[kind] for kind in kinds),
        tuple(network.shares[kind] for kind in kinds),
        tuple(network.whole[kind] for kind in kinds),
        tuple(_renumber_arc(arc, types, place) for arc in arcs),
    )
    return NetworkPart(Solver(part), np.array(numbers), np.array(kinds))


def _renumber_arc(arc: Arc, types: dict[int, int], place: dict[int, int]) -> Arc:
    uses = tuple(Use(place[use.option], use.seconds, use.role) for use in arc.uses)
    return Arc(types[arc.kind], arc.tail, arc.head, uses)
