"""A second reference solver, for questions with all terms: GPU types, prices, nodes, several mixes, goals, groups.

It shares no code with the solver. It lists every path, tries every replica vector that fits, packs it onto nodes by
trying every node, and finds the rate of each mix by a linear program over paths.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from omnibus_planner.solve.constraints import SolverNode, Terms
from omnibus_planner.solve.flow_network import build_lattice
from omnibus_planner.solve.problem import PlanningProblem, RequestType, SolverOption
from omnibus_planner.solve.solver import Solver

_GPU_TYPES = ("h", "l")


@dataclass(frozen=True)
class Question:
    """An instance, and the terms of a question about it. ``seconds`` are by option and components in the role."""

    problem: PlanningProblem
    terms: Terms
    seconds: dict[tuple[str, str], float]
    packed: bool

    def solver(self) -> Solver:
        return Solver(build_lattice(self.problem, lambda _, option, role: self.role_seconds(option, role)))

    def role_seconds(self, option: str, role: tuple[str, ...]) -> float:
        return sum(self.seconds[option, part] for part in role)


def draw_question(seed: int) -> Question:
    """Return a random question: two or three components, up to five options, up to two GPU types."""
    dice = random.Random(f"question {seed}")
    components = tuple("abc"[: dice.choice((2, 3))])
    order = tuple((first, then) for first, then in pairwise(components) if dice.random() < 0.7)
    gpu_types = _GPU_TYPES[: dice.choice((1, 2))]
    priced = dice.random() < 0.5
    options = {}
    wholes = [("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")]
    usable = [parts for parts in wholes if set(parts) <= set(components)]
    for number, parts in enumerate([(part,) for part in components] + dice.sample(usable, 2)):
        price = round(dice.uniform(0.5, 4.0), 2) if priced else None
        options[f"o{number}"] = SolverOption(parts, dice.choice((1, 1, 2)), dice.choice(gpu_types), price=price)
    seconds = {(name, part): round(dice.uniform(0.05, 1.5), 3) for name in options for part in components}
    kinds = [components, *dice.sample([(part,) for part in components], dice.choice((0, 1, 2)))]
    types = {f"t{number}": RequestType(kind, 1.0 / len(kinds)) for number, kind in enumerate(kinds)}
    problem = PlanningProblem(components, options, types, order)
    terms = _draw_terms(dice, problem, gpu_types)
    return Question(problem, terms, seconds, packed=bool(terms.nodes) and dice.random() < 0.8)


def _draw_terms(dice: random.Random, problem: PlanningProblem, gpu_types: tuple[str, ...]) -> Terms:
    options = list(problem.options)
    mixes = [{kind: dice.uniform(0.1, 1.0) for kind in problem.types} for _ in range(dice.choice((1, 2, 3)))]
    by_node = dice.random() < 0.4
    return Terms(
        gpus=None if by_node else {name: dice.choice((2, 3, 4)) for name in gpu_types},
        nodes={f"n{at}": SolverNode(dice.choice((1, 2, 3)), dice.choice(gpu_types)) for at in range(3)} if by_node else {},
        scenarios=tuple(mixes) if dice.random() < 0.5 else (),
        admissible={name: tuple(_draw_levels(dice)) for name in options if dice.random() < 0.3},
        covers=((dice.choice(options),),) if dice.random() < 0.2 else (),
        without=(options[-1],) if dice.random() < 0.2 else (),
    )  # fmt: skip


def _draw_levels(dice: random.Random) -> Iterator[float]:
    """Yield the work of 1, 2, ... replicas, as goals for tail latency limit it: never less than of fewer."""
    work = 0.0
    for count in range(1, dice.choice((3, 4, 5))):
        work = max(work, round(count * dice.uniform(0.4, 1.0), 3))
        yield work


class BruteForce:
    """All replica vectors that fit the terms of ``question``, each with its rate."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._options = question.problem.options
        vectors = [vector for vector in self._affordable() if self._fits(vector)]
        self.rates = dict(zip(vectors, self._rates(vectors), strict=True))

    def most(self) -> float:
        return max(self.rates.values(), default=0.0)

    def least_cost(self, rate: float) -> float | None:
        """Return the least cost of ``rate``; None if nothing serves it."""
        found = [self.cost(vector) for vector, each in self.rates.items() if each >= rate * (1 - 1e-7)]
        return min(found, default=None)

    def cost(self, vector: tuple[int, ...]) -> float:
        return sum(count * option.cost for count, option in zip(vector, self._options.values(), strict=True))

    def _affordable(self) -> Iterator[tuple[int, ...]]:
        terms = self._question.terms
        have = dict(terms.gpus or {})
        for node in terms.nodes.values():
            have[node.gpu] = have.get(node.gpu, 0) + node.gpus
        most = [
            0 if name in terms.without else min(have.get(option.gpu, 0) // option.gpus,
                                                len(terms.admissible.get(name, range(99))))
            for name, option in self._options.items()
        ]  # fmt: skip
        for vector in product(*(range(count + 1) for count in most)):
            used = dict.fromkeys(have, 0)
            for count, option in zip(vector, self._options.values(), strict=True):
                used[option.gpu] = used.get(option.gpu, 0) + count * option.gpus
            if all(count <= have.get(name, 0) for name, count in used.items()):
                yield vector

    def _fits(self, vector: tuple[int, ...]) -> bool:
        terms, counts = self._question.terms, dict(zip(self._options, vector, strict=True))
        if any(not any(counts[name] for name in group) for group in terms.covers):
            return False
        if not terms.nodes:
            return True
        pieces = [self._options[name] for name, count in counts.items() for _ in range(count)]
        room = [[node.gpu, node.gpus] for node in terms.nodes.values()]
        if not self._question.packed:  # each replica fits alone
            return all(any(node == piece.gpu and gpus >= piece.gpus for node, gpus in room) for piece in pieces)

        def place(at: int) -> bool:
            if at == len(pieces):
                return True
            for node in room:
                if node[0] == pieces[at].gpu and node[1] >= pieces[at].gpus:
                    node[1] -= pieces[at].gpus
                    placed = place(at + 1)
                    node[1] += pieces[at].gpus
                    if placed:
                        return True
            return False

        return place(0)

    def _rates(self, vectors: list[tuple[int, ...]]) -> list[float]:
        """Return the rate of each vector: the lowest over the mixes."""
        if not vectors:
            return []
        problem = self._question.problem
        declared = {kind: about.share for kind, about in problem.types.items()}
        every = [self._rates_of_mix(vectors, mix) for mix in self._question.terms.scenarios or (declared,)]
        return np.min(every, axis=0).tolist()

    def _rates_of_mix(self, vectors: list[tuple[int, ...]], mix: dict[str, float]) -> list[float]:
        """Solve one program for all vectors: variables are the rate, then req/s by type and path."""
        paths = [
            (kind, path)
            for kind in mix
            for path in self._paths(frozenset(self._question.problem.types[kind].components))
        ]
        names = list(self._options)
        work = np.zeros((len(names), 1 + len(paths)))
        demand = np.zeros((len(mix), 1 + len(paths)))
        for at, (kind, path) in enumerate(paths, 1):
            for option, role in path:
                work[names.index(option), at] += self._question.role_seconds(option, role)
            demand[list(mix).index(kind), at] = 1.0
        demand[:, 0] = [-share for share in mix.values()]
        supply = np.array(
            [[self._supply(name, count) for name, count in zip(names, each, strict=True)] for each in vectors]
        )
        blocks = sparse.eye_array(len(vectors))
        goal = np.zeros((len(vectors), 1 + len(paths)))
        goal[:, 0] = -1.0
        found = linprog(
            goal.ravel(), A_ub=sparse.kron(blocks, work, format="csc"), b_ub=supply.ravel(),
            A_eq=sparse.kron(blocks, demand, format="csc"), b_eq=np.zeros(len(vectors) * len(mix)), method="highs-ds",
        )  # fmt: skip
        return found.x.reshape(goal.shape)[:, 0].tolist()

    def _supply(self, name: str, count: int) -> float:
        levels = self._question.terms.admissible.get(name)
        return float(count) if levels is None or not count else levels[count - 1]

    def _paths(self, whole: frozenset[str], done: frozenset[str] = frozenset()) -> Iterator[tuple]:
        """Yield all paths: options and the components that each runs, all that it can."""
        if done == whole:
            yield ()
            return
        problem = self._question.problem
        for name, option in self._options.items():
            role = (whole - done) & set(option.components)
            while True:  # drop those whose predecessors are neither done nor in the role
                waiting = {then for first, then in problem.order if then in role and first in whole - done - role}
                if not waiting:
                    break
                role -= waiting
            if role:
                ordered = tuple(part for part in problem.components if part in role)
                yield from (((name, ordered), *rest) for rest in self._paths(whole, done | role))
