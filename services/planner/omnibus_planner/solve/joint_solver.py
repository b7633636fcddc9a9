"""Many models at once, exactly: each model alone on some GPUs, and the GPUs divided among them.

Models that share no option depend on each other only by the GPUs. The highest rate of a model is a step function of its
GPUs. A bound of each step follows from shortest paths (``bounds.py``). The solver divides the GPUs by these bounds for
the highest rate of all, computes the steps that it used, and divides again. Each division bounds the rate of all
deployments, and the steps are a deployment. The search ends when both are equal.

Questions with limited links, packed nodes, or a model that may use several GPU types are one program, as in
``solver.py``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve.bounds import Bound
from omnibus_planner.solve.constraints import available_gpus
from omnibus_planner.solve.flow_network import Network
from omnibus_planner.solve.highs import Vector
from omnibus_planner.solve.network_parts import NetworkPart, split_network
from omnibus_planner.solve.query import SERVED_TOLERANCE, SolverAnswer, SolverRun
from omnibus_planner.solve.solver import LeastAnswer, Solver

#: Halvings of the range of rates, until its ends are neighbouring numbers.
_HALVINGS = 60
#: A bound that is higher by this fraction counts as equal: the rounding errors of two answers.
_PROOF_TOLERANCE = 3 * SERVED_TOLERANCE
#: A rate below this fraction of the bound counts as 0.
_LEAST_FRACTION = 1e-9
#: Number of cached models with their steps.
_MAX_CACHED_STEPS = 256


class _Step(NamedTuple):
    """The best answer on some GPUs; None if there is none. Rates above ``highest`` do not count."""

    answer: SolverAnswer | None
    highest: float

    @property
    def rate(self) -> float:
        return self.answer.rate if self.answer else 0.0

    @property
    def bound(self) -> float:
        """A rate that no deployment on these GPUs exceeds."""
        if self.rate >= self.highest * (1 - SERVED_TOLERANCE):
            return np.inf
        return self.answer.bound if self.answer and not self.answer.proven else self.rate * (1 + SERVED_TOLERANCE)


class RateSteps:
    """Highest rates of a part by its GPUs, computed on demand.

    All GPUs are of type ``gpu``. ``each`` is the least number of them per req/s.
    """

    def __init__(self, part: NetworkPart, gpu: str, each: float) -> None:
        self.part, self.gpu, self._each = part, gpu, each
        self._steps: dict[int, _Step] = {}

    @property
    def is_proven(self) -> bool:
        return all(step.answer is None or step.answer.proven for step in self._steps.values())

    def find_answer(self, run: SolverRun, gpus: int, highest: float) -> SolverAnswer | None:
        """Return the answer of the highest rate within ``gpus``; None if there is none.

        Rates above ``highest`` do not count.
        """
        step = self._steps.get(gpus)
        if step is None or step.bound > highest > step.highest:
            part_run = self.part.create_run(run, {self.gpu: gpus})
            part_run.highest = highest
            bounds = self.part.solver.mix_bounds(part_run, self.part.solver.frame.gpus)
            self._steps[gpus] = _Step(self.part.solver.find_most(part_run, bounds), highest)
        return self._steps[gpus].answer

    def bound_rate(self, gpus: int) -> float:
        """Return a rate that no deployment within ``gpus`` exceeds."""
        return min([gpus / self._each, *(step.bound for count, step in self._steps.items() if count >= gpus)])

    def bound_gpus(self, rate: float) -> int:
        """Return a number of GPUs without which no deployment serves ``rate``."""
        more = (count + 1 for count, step in self._steps.items() if step.bound < rate)
        return max([math.ceil(self._each * rate * (1 - SERVED_TOLERANCE)), *more])


class JointSolver(Solver):
    """Solver of a network whose parts share no option."""

    def __init__(self, network: Network, arc_gb: Sequence[float] | None = None, most_gb_s: float = 0.0) -> None:
        super().__init__(network, arc_gb, most_gb_s)
        self._parts: dict[tuple[tuple[str, ...], ...], list[NetworkPart]] = {}
        self._steps: dict[tuple[int, str, bytes, bytes], RateSteps] = {}

    def split_run(self, run: SolverRun) -> list[NetworkPart]:
        """Return the parts that ``run`` divides into; none if it is one program."""
        if run.packed or self.frame.work_rows > self.frame.count:
            return []
        if run.terms.covers not in self._parts:
            self._parts[run.terms.covers] = split_network(self.frame.network, run.terms.covers)
        parts = self._parts[run.terms.covers]
        return parts if all(part.serves_all_mixes(run) for part in parts) else []

    def is_divisible(self, run: SolverRun) -> bool:
        return bool(self.split_run(run))

    def find_most(self, run: SolverRun, bounds: list[Bound]) -> SolverAnswer | None:
        steps = self._list_steps(run)
        if not steps:
            return super().find_most(run, bounds)
        answer = _Division(run, steps, available_gpus(run.terms) or {}).find_most()
        self._steps = {key: each for key, each in self._steps.items() if each.is_proven}
        return answer

    def _list_steps(self, run: SolverRun) -> list[RateSteps]:
        """Return the steps of each part; none if a part may use several GPU types."""
        steps = []
        for part in self.split_run(run):
            kinds = self._gpu_kinds(run, part)
            if len(kinds) != 1:
                return []
            steps.append(self._get_steps(run, part, kinds.pop()))
        return steps

    def _gpu_kinds(self, run: SolverRun, part: NetworkPart) -> set[str]:
        options = list(self.frame.network.options.values())
        return {options[at].gpu for at in part.options if run.top[at] > 0}

    def _get_steps(self, run: SolverRun, part: NetworkPart, gpu: str) -> RateSteps:
        part_run = part.create_run(run, None)
        terms = msgspec.structs.replace(part_run.terms, within=1.0)
        key = (int(part.options[0]), gpu, msgspec.json.encode(terms), (part_run.top > 0).tobytes())
        if key not in self._steps:
            while len(self._steps) >= _MAX_CACHED_STEPS:
                del self._steps[next(iter(self._steps))]
            each = max(bound.each for bound in part.solver.mix_bounds(part_run, part.solver.frame.gpus))
            self._steps[key] = RateSteps(part, gpu, each)
        return self._steps[key]

    def find_least(self, run: SolverRun, bounds: list[Bound]) -> LeastAnswer | None:
        parts = self.split_run(run)
        if not parts:
            return super().find_least(run, bounds)
        least = self._find_least_of_parts(run, parts)
        if least is None or self._fits(run, least.answer.replicas):
            return least
        return None if least.answer.proven and self._is_cost_of_gpus(run) else super().find_least(run, bounds)

    def _find_least_of_parts(self, run: SolverRun, parts: Sequence[NetworkPart]) -> LeastAnswer | None:
        """Return the answer of least cost if GPUs are not limited."""
        results = []
        for part in parts:
            part_run = part.create_run(run, run.terms.gpus)
            part_run.lowest = part_run.highest = run.lowest
            least = part.solver.find_least(part_run, part.solver.mix_bounds(part_run, part.solver.frame.costs))
            if least is None:
                return None
            results.append(least)
        replicas = _join_vectors(self.frame.count, parts, [each.answer.replicas for each in results])
        bound = sum(each.answer.bound for each in results)
        answer = _build_answer(run, replicas, bound, proven=all(each.answer.proven for each in results))
        return LeastAnswer(answer, all(each.settled for each in results))

    def _settle_most(self, run: SolverRun, bounds: list[Bound], best: SolverAnswer) -> tuple[SolverAnswer, bool]:
        parts = self.split_run(run) if self._list_steps(run) else []
        if not parts:
            return super()._settle_most(run, bounds, best)
        try:
            least = self._find_least_of_parts(run, parts)
        except DeadlineExceeded:
            return best, False
        if least is None or not self._fits(run, least.answer.replicas):
            return best, False
        return least.answer, least.settled and least.answer.proven

    def _fits(self, run: SolverRun, replicas: Vector) -> bool:
        kinds = np.array([option.gpu for option in self.frame.network.options.values()])
        gpus = self.frame.gpus * replicas
        return all(gpus[kinds == kind].sum() <= count for kind, count in (available_gpus(run.terms) or {}).items())

    def _is_cost_of_gpus(self, run: SolverRun) -> bool:
        """Return True if the least cost is the fewest GPUs: there is one type, and one price."""
        options = [each for each, top in zip(self.frame.network.options.values(), run.top, strict=True) if top > 0]
        return len({(each.gpu, each.cost / each.gpus) for each in options}) == 1


class _Division:
    """Division of the ``gpus`` of each type among parts, by their steps."""

    def __init__(self, run: SolverRun, steps: Sequence[RateSteps], gpus: Mapping[str, int]) -> None:
        self._run, self._steps, self._gpus = run, steps, gpus

    def find_most(self) -> SolverAnswer | None:
        """Return the answer of the highest rate; None if the GPUs do not suffice for each part.

        At the deadline it is the best one so far, not proven.
        """
        best: SolverAnswer | None = None
        while (counts := self._divide_gpus()) is not None:
            bound = self._bound_rate(counts)
            try:
                answer = self._join_answers(counts, bound)
            except DeadlineExceeded:
                if best is None:
                    raise
                break
            if answer is not None and (best is None or answer.rate > best.rate):
                best = answer
            if self._bound_rate(counts) >= bound:  # all parts reach it, or an answer is not proven
                break
        return None if best is None else self._with_bound(best)

    def _bound_rate(self, counts: Sequence[int]) -> float:
        return min(each.bound_rate(count) for each, count in zip(self._steps, counts, strict=True))

    def _with_bound(self, best: SolverAnswer) -> SolverAnswer:
        counts = self._divide_gpus()
        bound = max(best.rate, self._bound_rate(counts) if counts else 0.0)
        return replace(best, bound=bound, proven=bound <= best.rate * (1 + _PROOF_TOLERANCE))

    def _divide_gpus(self) -> list[int] | None:
        """Return the GPUs of each part for the highest rate within the bounds; None if it is 0."""
        low, high = self._run.highest * _LEAST_FRACTION, self._run.highest
        if not self._suffices(low):
            return None
        if self._suffices(high):
            low = high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._suffices(middle) else (low, middle)
        return [each.bound_gpus(low) for each in self._steps]

    def _suffices(self, rate: float) -> bool:
        left = dict(self._gpus)
        for each in self._steps:
            left[each.gpu] = left.get(each.gpu, 0) - each.bound_gpus(rate)
        return min(left.values()) >= 0

    def _join_answers(self, counts: Sequence[int], bound: float) -> SolverAnswer | None:
        """Return the answer of all parts on ``counts`` GPUs; None if a part has none."""
        answers = [each.find_answer(self._run, count, bound) for each, count in zip(self._steps, counts, strict=True)]
        replicas = [answer.replicas for answer in answers if answer is not None]
        if len(replicas) < len(answers):
            return None
        vector = _join_vectors(self._run.frame.count, [each.part for each in self._steps], replicas)
        return _build_answer(self._run, vector, bound, proven=False)


def _join_vectors(count: int, parts: Sequence[NetworkPart], vectors: Sequence[Vector]) -> Vector:
    """Return the vector over all ``count`` options."""
    whole = np.zeros(count)
    for part, vector in zip(parts, vectors, strict=True):
        whole[part.options] = vector
    return whole


def _build_answer(run: SolverRun, replicas: Vector, bound: float, *, proven: bool) -> SolverAnswer:
    flows = run.served_flows(replicas)
    return SolverAnswer(replicas, flows, min(each.rate for each in flows), bound, proven)
