"""Replicas onto many nodes by patterns: how many nodes contain which replicas, so that least traffic crosses nodes.

Equal nodes are one kind. A pattern is the replicas of one node. A linear program chooses the number of nodes of each
pattern, and its prices show which other patterns would be better. These are neighbours of the patterns in use: one
replica less, and another option instead. In the end a program with whole numbers chooses among all known patterns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve import highs
from omnibus_planner.solve.constraints import Places, SolverNode
from omnibus_planner.solve.highs import Deadline, MilpSolution, Program, Vector
from omnibus_planner.solve.problem import SolverOption
from omnibus_planner.solve.traffic import OptionTraffic

#: Most rounds of better patterns, and new patterns in a round.
_MAX_ROUNDS, _MAX_NEW = 60, 100
#: Most branches of a program, and programs with whole numbers of nodes.
_MAX_BRANCHES, _MAX_CHOICES = 100, 4
#: A pattern must be better by this fraction of an average node's traffic.
_TOLERANCE = 1e-7

#: Replicas of each option on one node, by option number.
Pattern = tuple[int, ...]


class _NodeKind(NamedTuple):
    """Equal nodes: GPU type, GPUs, and the replicas that stay on each."""

    gpu: str
    gpus: int
    stay: Pattern


class NodePatterns:
    """Patterns of ``nodes`` for ``replicas``, of which ``stay`` stay on their nodes."""

    def __init__(
        self,
        replicas: Mapping[str, int],
        options: Mapping[str, SolverOption],
        nodes: Mapping[str, SolverNode],
        stay: Places,
        traffic: OptionTraffic,
    ) -> None:
        self._names = [name for name, count in replicas.items() if count]
        self._counts = np.array([replicas[name] for name in self._names], float)
        self._gpus = np.array([options[name].gpus for name in self._names])
        self._types = [options[name].gpu for name in self._names]
        self._nodes: dict[_NodeKind, list[str]] = {}
        stays = self._node_patterns(stay)
        for name, node in nodes.items():
            kind = _NodeKind(node.gpu, node.gpus, stays.get(name, (0,) * len(self._names)))
            self._nodes.setdefault(kind, []).append(name)
        numbers = {name: at for at, name in enumerate(self._names)}
        self._pairs = np.array([(numbers[one], numbers[other]) for one, other in traffic])
        self._rates = np.array(list(traffic.values()))
        self._tolerance = _TOLERANCE * float(self._rates.sum()) / len(nodes)
        self._columns: dict[tuple[int, Pattern], float] = {}

    def _node_patterns(self, places: Places) -> dict[str, Pattern]:
        """Return the pattern of each node that is used in ``places``."""
        names = {node for there in places.values() for node in there}
        return {node: tuple(places.get(name, {}).get(node, 0) for name in self._names) for node in names}

    def find_places(self, first: Sequence[Places], deadline: Deadline) -> Places | None:
        """Return a placement that is as good as each of ``first``, or better.

        None: the last program found none within its time and branches.
        """
        for places in first:
            self._add_places(places)
        self._add_columns((kind, pattern) for kind in range(len(self._nodes)) for pattern in self._fill_node(kind))
        basis, prices = self._solve_fractions()
        for _ in range(_MAX_ROUNDS):
            better = self._better_neighbours(basis, prices, 0.0) or self._best_patterns(prices, deadline)
            if not better:
                break
            self._add_columns(better)
            basis, prices = self._solve_fractions()
        return self._choose_patterns(basis, prices, deadline)

    def _add_places(self, places: Places) -> None:
        patterns, none = self._node_patterns(places), (0,) * len(self._names)
        self._add_columns(
            (at, patterns.get(name, none)) for at, names in enumerate(self._nodes.values()) for name in names
        )

    def _add_columns(self, columns: Iterable[tuple[int, Pattern]]) -> None:
        fresh = [column for column in dict.fromkeys(columns) if column not in self._columns]
        if fresh:
            values = self._pattern_values(np.array([pattern for _, pattern in fresh]))
            self._columns |= dict(zip(fresh, values.tolist(), strict=True))

    def _pattern_values(self, patterns: Vector) -> Vector:
        """Return the GB/s that stay on a node of each pattern; (patterns, options)."""
        shares = patterns / self._counts
        return np.minimum(shares[:, self._pairs[:, 0]], shares[:, self._pairs[:, 1]]) @ self._rates

    def _fill_node(self, at: int) -> Iterator[Pattern]:
        """Yield first patterns of a kind of node: the replicas that stay, and those of each pair of options."""
        kind = list(self._nodes)[at]
        numbers = self._option_numbers(kind)
        for one, other in [(one, other) for one, other in self._pairs if one in numbers and other in numbers]:
            for count in range(kind.gpus // self._gpus[one] + 1):
                pattern = list(kind.stay)
                pattern[one] += min(count, self._room(kind, pattern, one))
                pattern[other] += self._room(kind, pattern, other)
                yield tuple(pattern)

    def _option_numbers(self, kind: _NodeKind) -> list[int]:
        """Return the options of the kind's GPU type."""
        return [number for number, gpu in enumerate(self._types) if gpu == kind.gpu]

    def _room(self, kind: _NodeKind, pattern: Sequence[int], option: int) -> int:
        return int((kind.gpus - int(self._gpus @ pattern)) // self._gpus[option])

    def _matrix(self) -> tuple[sparse.csc_array, Vector]:
        """Return rows and their upper limits: at least all replicas, and at most the nodes of each kind."""
        wide = len(self._columns)
        patterns = np.array([pattern for _, pattern in self._columns])
        kinds = np.array([kind for kind, _ in self._columns])
        nodes = sparse.csc_array((np.ones(wide), (kinds, np.arange(wide))), shape=(len(self._nodes), wide))
        rows = sparse.vstack([sparse.csc_array(-patterns.T.astype(float)), nodes], format="csc")
        limits = np.concatenate([-self._counts, [float(len(names)) for names in self._nodes.values()]])
        return rows, limits

    def _solve_fractions(self) -> tuple[list[tuple[int, Pattern]], Vector]:
        """Return the patterns of the best fractions, and the prices of all rows."""
        rows, limits = self._matrix()
        cost = -np.array(list(self._columns.values()))
        fractions = highs.solve_linear(cost, rows, limits, sparse.csc_array((0, len(cost))), np.zeros(0))
        columns = list(self._columns)
        return [columns[at] for at in np.flatnonzero(fractions.x > 0)], fractions.prices

    def _better_neighbours(
        self, basis: Sequence[tuple[int, Pattern]], prices: Vector, above: float
    ) -> list[tuple[int, Pattern]]:
        """Return neighbours of ``basis`` that are worth ``above`` more than their prices."""
        near = list(dict.fromkeys(each for column in basis for each in self._neighbours(*column)))
        fresh = [column for column in near if column not in self._columns]
        if not fresh:
            return []
        patterns = np.array([pattern for _, pattern in fresh])
        kinds, count = np.array([kind for kind, _ in fresh]), len(self._names)
        gains = self._pattern_values(patterns) + patterns @ prices[:count] - prices[count + kinds]
        best = np.argsort(-gains, kind="stable")[:_MAX_NEW]
        return [fresh[at] for at in best if gains[at] > above + self._tolerance]

    def _best_patterns(self, prices: Vector, deadline: Deadline) -> list[tuple[int, Pattern]]:
        """Return each kind's best pattern, if it is worth more than its price."""
        columns, count = [], len(self._names)
        for at, kind in enumerate(self._nodes):
            program, cost = self._pattern_program(kind, prices)
            best = highs.solve_milp(program, cost, deadline, branches=_MAX_BRANCHES)
            if best is not None and -best.value > prices[count + at] + self._tolerance:
                columns.append((at, tuple(int(here) for here in np.round(best.x[:count]))))
        return [column for column in columns if column not in self._columns]

    def _pattern_program(self, kind: _NodeKind, prices: Vector) -> tuple[Program, Vector]:
        """Build the program of one pattern. Columns: replicas of each option, then the share of each pair's traffic.

        Shares are of what a node has on average.
        """
        count, pairs = len(self._names), len(self._rates)
        scale = float(sum(map(len, self._nodes.values())))
        numbers = np.arange(pairs)
        ends = [
            sparse.csc_array((-scale / self._counts[side], (numbers, side)), shape=(pairs, count))
            for side in (self._pairs[:, 0], self._pairs[:, 1])
        ]
        shares = sparse.eye_array(pairs)
        room = sparse.csc_array(self._gpus[None, :].astype(float))
        matrix = sparse.block_array([[ends[0], shares], [ends[1], shares], [room, None]], format="csc")
        high = np.concatenate([np.zeros(2 * pairs), [float(kind.gpus)]])
        most = np.where(np.array(self._types) == kind.gpu, kind.gpus // self._gpus, 0)
        program = Program(
            matrix,
            np.full(len(high), -np.inf),
            high,
            np.concatenate([np.array(kind.stay, float), np.zeros(pairs)]),
            np.concatenate([most.astype(float), np.full(pairs, np.inf)]),
            np.concatenate([np.ones(count), np.zeros(pairs)]),
        )
        return program, -np.concatenate([prices[:count], self._rates / scale])

    def _neighbours(self, at: int, pattern: Pattern) -> Iterator[tuple[int, Pattern]]:
        """Yield patterns with a replica less, and another option once or as often as it fits."""
        kind = list(self._nodes)[at]
        numbers = self._option_numbers(kind)
        for less in (None, *(number for number in numbers if pattern[number] > kind.stay[number])):
            base = list(pattern)
            if less is not None:
                base[less] -= 1
                yield at, tuple(base)
            for option in numbers:
                room = self._room(kind, base, option)
                for more in {1, room} if room > 0 else ():
                    near = list(base)
                    near[option] += more
                    yield at, tuple(near)

    def _choose_patterns(
        self, basis: Sequence[tuple[int, Pattern]], prices: Vector, deadline: Deadline
    ) -> Places | None:
        """Return the best placement of whole nodes, by the patterns of ``basis`` and their neighbours."""
        best: MilpSolution | None = None
        for _ in range(_MAX_CHOICES):
            self._add_columns(self._better_neighbours(basis, prices, -np.inf))
            choice = self._solve_whole(deadline)
            if choice is None or (best is not None and choice.value > best.value - _TOLERANCE):
                break
            best = choice
            basis = [column for column, count in zip(self._columns, choice.x, strict=True) if round(count)]
        return None if best is None else self._to_places(np.round(best.x))

    def _solve_whole(self, deadline: Deadline) -> MilpSolution | None:
        """Solve for whole numbers of nodes; None if nothing was found in time."""
        rows, limits = self._matrix()
        wide = len(self._columns)
        kinds = [float(len(names)) for names in self._nodes.values()]
        upper = np.array([kinds[kind] for kind, _ in self._columns])
        program = Program(rows, np.full(len(limits), -np.inf), limits, np.zeros(wide), upper, np.ones(wide))
        cost = -np.array(list(self._columns.values())) / float(self._rates.sum())
        try:
            return highs.solve_milp(program, cost, deadline, branches=_MAX_BRANCHES)
        except DeadlineExceeded:
            return None

    def _to_places(self, counts: Vector) -> Places:
        """Return the places of ``counts`` nodes of each pattern, without surplus replicas."""
        waiting = {kind: iter(names) for kind, names in enumerate(self._nodes.values())}
        stays = [kind.stay for kind in self._nodes]
        columns = list(self._columns)[: len(counts)]  # later ones were of a program that was not better
        surplus = np.array([pattern for _, pattern in columns]).T @ counts - self._counts
        places: Places = {}
        for (kind, pattern), count in zip(columns, counts, strict=True):
            for _ in range(int(count)):
                node = next(waiting[kind])
                for option, here in enumerate(pattern):
                    less = min(int(surplus[option]), here - stays[kind][option])
                    surplus[option] -= less
                    if here > less:
                        places.setdefault(self._names[option], {})[node] = here - less
        return places
