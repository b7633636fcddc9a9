"""A slow reference solver: every replica vector, and linear programs in fractions.

Independent of the solver: it lists paths itself, and its simplex with Bland's rule, which always ends, works on whole
fractions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import numpy as np
from scipy import sparse
from scipy.optimize import linprog


@dataclass(frozen=True)
class SolverWorld:
    """A small instance. ``seconds`` by (option, role) are equal for all types; numbers are decimal strings."""

    components: tuple[str, ...]
    order: tuple[tuple[str, str], ...]
    options: Mapping[str, tuple[tuple[str, ...], int]]
    types: Mapping[str, tuple[tuple[str, ...], str]]
    tau: Mapping[str, str]
    alpha: Mapping[str, str]

    def seconds(self, option: str, role: tuple[str, ...]) -> Fraction:
        return Fraction(self.alpha[option]) * sum(Fraction(self.tau[part]) for part in role)

    def paths(self, kind: str) -> list[tuple[tuple[str, tuple[str, ...]], ...]]:
        """Return all ways to run a request type: options and the components that each runs, in order."""
        return list(self._continue_path(frozenset(self.types[kind][0]), frozenset()))

    def _continue_path(self, whole, done_parts) -> Iterator[tuple]:
        if done_parts == whole:
            yield ()
            return
        for name, (parts, _) in self.options.items():
            role = self._find_runnable(set(parts), whole, done_parts)
            if role:
                ordered_parts = tuple(part for part in self.components if part in role)
                for rest in self._continue_path(whole, done_parts | role):
                    yield ((name, ordered_parts), *rest)

    def _find_runnable(self, parts, whole, done_parts) -> frozenset[str]:
        """Return all remaining ``parts`` without open dependencies; an option is visited again for the rest."""
        left = (whole - done_parts) & parts
        for size in range(len(left), 0, -1):
            for role in map(frozenset, combinations(sorted(left), size)):
                waits = {first for first, then in self.order if then in role and first in whole}
                if waits <= done_parts | role:
                    return role
        return frozenset()

    def vectors(self, gpus: int) -> Iterator[tuple[int, ...]]:
        """Yield all replica vectors within ``gpus``."""
        sizes = [count for _, count in self.options.values()]
        for vector in product(*(range(gpus // size + 1) for size in sizes)):
            if sum(n * size for n, size in zip(vector, sizes, strict=True)) <= gpus:
                yield vector

    def cost(self, vector) -> int:
        return sum(n * size for n, (_, size) in zip(vector, self.options.values(), strict=True))

    def table(self) -> tuple[list[list[Fraction]], list[Fraction]]:
        """Return the rows ``table @ (R, x...) <= supply`` of work by option, then of demand.

        The first path of each type takes the remainder of the others.
        """
        kinds = [(kind, Fraction(share)) for kind, (_, share) in self.types.items() if Fraction(share) > 0]
        free: list[tuple[int, tuple]] = []
        first = {}
        for at, (kind, _) in enumerate(kinds):
            paths = self.paths(kind)
            first[at] = paths[0]
            free += [(at, path) for path in paths[1:]]
        names = list(self.options)

        def sum_work(option, path):
            return sum((self.seconds(name, role) for name, role in path if name == option), Fraction(0))

        rows = []
        for option in names:
            row = [sum((share * sum_work(option, first[at]) for at, (_, share) in enumerate(kinds)), Fraction(0))]
            row += [sum_work(option, path) - sum_work(option, first[at]) for at, path in free]
            rows.append(row)
        for at, (_, share) in enumerate(kinds):
            rows.append([-share, *(Fraction(int(at == owner)) for owner, _ in free)])
        return rows, [Fraction(0)] * len(kinds)

    def rate(self, vector) -> Fraction:
        """Return the maximum requests per second of these replicas, as a fraction."""
        rows, zeros = self.table()
        return maximize_first(rows, [Fraction(n) for n in vector] + zeros)

    def roughly(self, gpus: int) -> dict[tuple[int, ...], float]:
        """Return the rate of every replica vector, in floating point. One program computes all within ``gpus``."""
        rows, zeros = self.table()
        matrix = np.array([[float(value) for value in row] for row in rows])
        vectors, width = list(self.vectors(gpus)), matrix.shape[1]
        cost = np.zeros((len(vectors), width))
        cost[:, 0] = -1.0
        supply = np.concatenate([[*vector, *map(float, zeros)] for vector in vectors])
        every = sparse.kron(sparse.eye_array(len(vectors)), matrix, format="csc")
        solution = linprog(cost.ravel(), A_ub=every, b_ub=supply, method="highs-ds").x
        return dict(zip(vectors, solution[::width].tolist(), strict=True))


def maximize_first(rows: list[list[Fraction]], supply: list[Fraction]) -> Fraction:
    """Return the largest first variable, by the simplex method: ``rows @ x <= supply``, x >= 0 and supply >= 0."""
    count, width = len(rows), len(rows[0])
    tableau = [
        [*row, *(Fraction(int(at == other)) for other in range(count)), value]
        for at, (row, value) in enumerate(zip(rows, supply, strict=True))
    ]
    goal = [Fraction(0)] * (width + count + 1)
    goal[0] = Fraction(-1)
    basis = list(range(width, width + count))
    while (entering := next((at for at, value in enumerate(goal[:-1]) if value < 0), None)) is not None:
        ratios = [(row[-1] / row[entering], basis[at], at) for at, row in enumerate(tableau) if row[entering] > 0]
        assert ratios, "unbounded"
        leaving = min(ratios)[2]
        pivot = tableau[leaving][entering]
        tableau[leaving] = [value / pivot for value in tableau[leaving]]
        for row in [row for at, row in enumerate(tableau) if at != leaving] + [goal]:
            if factor := row[entering]:
                row[:] = [value - factor * base for value, base in zip(row, tableau[leaving], strict=True)]
        basis[leaving] = entering
    return goal[-1]
