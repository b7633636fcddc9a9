"""Options and seconds as arcs: from a set of finished components to a larger one, per request type.

Arcs represent all paths over all options, including mixed ones such as E then EL, without a list of them. Six
components have 1,616 arcs, but more than a hundred million paths for one type alone. At each stop an option runs all of
its remaining components that can run. A request visits the option again if others must run in between: ED encodes, P
prefills, ED decodes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from omnibus_planner.solve.cost_fit import Seconds
from omnibus_planner.solve.problem import PlanningProblem, SolverOption, check_amount, check_problem, require

#: More arcs would take minutes to solve and gigabytes to hold.
_MAX_ARCS = 200_000


class Use(NamedTuple):
    """One stop of a request: the option by number, its seconds per request, and the components it runs."""

    option: int
    seconds: float
    role: tuple[str, ...]


class Arc(NamedTuple):
    """A step of requests of type number ``kind``.

    It leads from the finished components ``tail`` to ``head`` (bit sets).
    """

    kind: int
    tail: int
    head: int
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Network:
    """Options, request types and arcs, by number.

    ``shares`` and ``whole`` have the share and the bit set of all components of each type.
    """

    options: dict[str, SolverOption]
    types: tuple[str, ...]
    shares: tuple[float, ...]
    whole: tuple[int, ...]
    arcs: tuple[Arc, ...]

    @cached_property
    def option_names(self) -> tuple[str, ...]:
        return tuple(self.options)

    @cached_property
    def option_numbers(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.options)}

    def type_shares(self, shares: Mapping[str, float] | None = None) -> tuple[float, ...]:
        """Return shares by type number, from ``shares`` (absent types: 0) or the declared ones."""
        if shares is None:
            return self.shares
        unknown = set(shares) - set(self.types)
        require(not unknown, f"shares of {sorted(unknown)}, which are no request types")
        return tuple(check_amount(shares.get(name, 0.0), f"the share of request type {name}") for name in self.types)


class ComponentSets:
    """Sets of components as integers."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.components = problem.components
        self._bit = {component: 1 << at for at, component in enumerate(problem.components)}
        before = problem.component_predecessors()
        self._before = {self._bit[name]: self.to_mask(before[name]) for name in problem.components}

    def to_mask(self, components: Sequence[str] | frozenset[str]) -> int:
        return sum(self._bit[component] for component in components)

    def component_names(self, mask: int) -> tuple[str, ...]:
        return tuple(component for component, bit in self._bit.items() if mask & bit)

    def runnable_part(self, role: int, done: int, whole: int) -> int:
        """Return the largest runnable part of ``role``.

        Within the request type, the predecessors of its components are done, or in it too.
        """
        while lost := sum(bit for bit in self._before if role & bit and self._before[bit] & whole & ~(done | role)):
            role &= ~lost
        return role

    def runnable_subsets(self, role: int, done: int, whole: int) -> Iterator[int]:
        """Yield ``role`` and each smaller part of it that can run."""
        part = role
        while part:
            if self.runnable_part(part, done, whole) == part:
                yield part
            part = (part - 1) & role


def build_lattice(problem: PlanningProblem, seconds: Seconds, *, partial: bool = False) -> Network:
    """Build the network of all paths over all options. Roles without seconds make no arc.

    With ``partial``, an option may leave out components that it could run: EL encodes, and L answers. Raises
    ``BadRequest``.
    """
    check_problem(problem)
    bits, arcs = ComponentSets(problem), []
    masks = [(at, name, bits.to_mask(option.components)) for at, (name, option) in enumerate(problem.options.items())]
    whole = tuple(bits.to_mask(kind.components) for kind in problem.types.values())
    for number, name in enumerate(problem.types):
        uses = _Uses(name, bits, seconds)
        for tail, head, use in _lattice_steps(whole[number], masks, bits, uses, partial):
            arcs.append(Arc(number, tail, head, (use,)))
            require(len(arcs) <= _MAX_ARCS, f"there are more than {_MAX_ARCS} arcs: name fewer options or types")
    shares = tuple(float(kind.share) for kind in problem.types.values())
    return Network(dict(problem.options), tuple(problem.types), shares, whole, tuple(arcs))


def keep_arcs(network: Network, allowed: Sequence[bool]) -> Network:
    """Return ``network`` with only the ``allowed`` arcs from which others lead to all components of the request."""
    kept: list[Arc] = []
    ends = set(enumerate(network.whole))
    numbered = sorted(enumerate(network.arcs), key=lambda each: -each[1].tail.bit_count())
    for number, arc in numbered:
        if allowed[number] and (arc.kind, arc.head) in ends:
            kept.append(arc)
            ends.add((arc.kind, arc.tail))
    return replace(network, arcs=tuple(reversed(kept)))


class _Uses:
    """Computes the seconds of each role once."""

    def __init__(self, kind: str, bits: ComponentSets, seconds: Seconds) -> None:
        self._kind, self._bits, self._seconds = kind, bits, seconds
        self._known: dict[tuple[int, int], Use | None] = {}

    def __call__(self, at: int, name: str, role: int) -> Use | None:
        if (at, role) not in self._known:
            parts = self._bits.component_names(role)
            spent = self._seconds(self._kind, name, parts)
            if spent is not None:
                check_amount(spent, f"seconds of option {name} for request type {self._kind}")
            self._known[at, role] = None if spent is None else Use(at, float(spent), parts)
        return self._known[at, role]


def _lattice_steps(
    whole: int, masks: Sequence[tuple[int, str, int]], bits: ComponentSets, uses: _Uses, partial: bool
) -> Iterator[tuple[int, int, Use]]:
    """Yield all reachable steps of one request type, fewest finished components first."""
    reached, waiting = {0}, [(0, 0)]
    while waiting:
        _, done = heappop(waiting)
        for at, name, mask in masks:
            largest = bits.runnable_part(mask & whole & ~done, done, whole)
            for role in bits.runnable_subsets(largest, done, whole) if partial else (largest,) if largest else ():
                use = uses(at, name, role)
                if use is None:
                    continue
                yield done, done | role, use
                if done | role not in reached:
                    reached.add(done | role)
                    heappush(waiting, ((done | role).bit_count(), done | role))
