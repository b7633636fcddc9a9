"""Candidates for a load: the running plan, its executors with new path rates, the best plan.

Guard of replans: rejects gains within the error, and reverts plans that serve less.

Pure: no I/O, and the clock is passed in.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from omnibus.cluster.presence import ExecutorKind, added_replicas, replica_counts
from omnibus.cluster.roles import SWITCH_SECONDS, role_switches
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan
from omnibus_planner.autoscale.policy import EQUAL_CAPACITY_FRACTION, DeploymentCapacity, mix_shift
from omnibus_planner.optimize.load import Loads, ModelLoad
from omnibus_planner.optimize.result import PlanningResult

if TYPE_CHECKING:
    from omnibus_planner.optimize.planner import Planner
    from omnibus_planner.optimize.promise import PromiseChecker


#: Largest relative differences of rate and mix between comparable loads.
COMPARABLE_RATE_FRACTION, COMPARABLE_MIX_FRACTION = 0.05, 0.1
#: Fraction by which the served rate must fall for a replan to count as worse.
FALLEN_FRACTION = 0.05


class ReplanEstimate(NamedTuple):
    """Simulated gain of a replan over the running replicas.

    ``gain`` and its ``error`` are relative.
    """

    best: PlanningResult
    gain: float
    error: float

    @property
    def is_certain(self) -> bool:
        return self.gain > self.error


class _Adopted(NamedTuple):
    """An applied replan: the plan, load and req/s served before it."""

    before: PlanningResult
    load: Mapping[str, ModelLoad]
    served: float


class ReplanGuard:
    """Compares the rates served before a replan and ``seconds`` after it."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._adopted: _Adopted | None = None
        self._since = math.inf  # when all of its executors were ready
        self._rejected: Mapping[str, ModelLoad] = {}

    def note_replan(self, before: PlanningResult, load: Loads, served_rates: Mapping[str, float]) -> None:
        """Note a replan for ``load`` after the plan ``before``.

        ``served_rates`` are the req/s of requests that ended well before it, by model.
        """
        self._adopted, self._since = _Adopted(before, dict(load), sum(served_rates.values())), math.inf

    def note_running(self) -> None:
        """Note that all executors of the current plan are ready."""
        self._since = min(self._since, self._clock())

    def is_rejected(self, load: Loads) -> bool:
        """Return True if a replan for such a load was reverted: the next one would do the same."""
        return bool(self._rejected) and _are_comparable(self._rejected, load)

    def find_fallback(self, load: Loads, served_rates: Mapping[str, float]) -> tuple[PlanningResult, str] | None:
        """Return the plan to revert to, and the reason, once; None if there is no reason."""
        adoption = self._adopted
        if adoption is None or self._clock() - self._since < self._seconds:
            return None
        self._adopted = None
        now = sum(served_rates.values())
        if not _are_comparable(adoption.load, load) or now >= adoption.served * (1 - FALLEN_FRACTION):
            return None
        self._rejected = adoption.load
        return (
            adoption.before,
            f"load: back to the plan before: {now:.3g} req/s were served, {adoption.served:.3g} by it",
        )


def _are_comparable(before: Loads, now: Loads) -> bool:
    """Return True if ``now`` has the rates and mix of ``before``.

    Its rates may be higher.
    """
    return all(
        name in now
        and now[name].rate >= load.rate * (1 - COMPARABLE_RATE_FRACTION)
        and mix_shift(load.shares, now[name].shares) <= COMPARABLE_MIX_FRACTION
        for name, load in before.items()
    )


#: Fraction of GPUs by which a faster plan for a burst may exceed the fewest; at least one GPU.
FASTER_PLAN_GPU_FRACTION = 0.125


class PlanCandidates(NamedTuple):
    """Results of the planner for one load."""

    now: DeploymentCapacity
    rerouted: PlanningResult
    best: PlanningResult
    seconds: float


def solve_for_load(planner: "Planner", running: Mapping[str, ModelPlan], load: Loads) -> PlanCandidates:
    began = time.thread_time()
    now = DeploymentCapacity(planner.capacity(running, load), _gpu_count(running))
    reroute_result, best = planner.reroute_running(running, load), planner.plan(load, running, explain=False)
    return PlanCandidates(now, reroute_result, best.keep_credits(running), time.thread_time() - began)


def faster_plan(
    checker: "PromiseChecker | None", best: PlanningResult, running: Mapping[str, ModelPlan], load: Loads, coming: Loads
) -> PlanningResult:
    """Return ``best``, or a plan of running options with lower latency.

    Both are for ``load``, and the latency is a prediction. A burst rarely needs executors of a new option: they win by
    a part of a GPU, and their requests take longer. The 99th percentile is simulated for ``coming``, the current load.
    """
    if checker is None or not _has_new_option(running, best):
        return best
    other = checker.planner.plan_of_running_options(load, running)
    most = _gpu_count(best.models) + max(1.0, FASTER_PLAN_GPU_FRACTION * _gpu_count(best.models))
    if other is None or _gpu_count(other.models) > most:
        return best
    try:
        return other if checker.predict_p99(other, coming) < checker.predict_p99(best, coming) else best
    except BadRequest:  # without a simulation, the solved plan is used
        return best


def _has_new_option(running: Mapping[str, ModelPlan], plan_result: PlanningResult) -> bool:
    there = replica_counts(running)
    return any(kind not in there for kind in replica_counts(plan_result.models))


def estimate_replan(
    checker: "PromiseChecker",
    reroute_result: PlanningResult,
    running: Mapping[str, ModelPlan],
    load: Loads,
    within: float,
) -> ReplanEstimate:
    best = checker.plan(load, running, within=within)
    try:
        return ReplanEstimate(best, *checker.estimate_gain(reroute_result, best, load))
    except BadRequest:  # without a simulation, the solved plan is judged
        return ReplanEstimate(best, math.inf, 0.0)


def serves_more(name: str, plan_candidates: PlanCandidates) -> bool:
    """Return True if a candidate serves more of ``name`` than now."""
    now = plan_candidates.now.capacity.get(name, 0.0) * (1 + EQUAL_CAPACITY_FRACTION)
    return max(plan_candidates.best.capacity.get(name, 0.0), plan_candidates.rerouted.capacity.get(name, 0.0)) > now


def deployment_capacity(
    planner: "Planner", running: Mapping[str, ModelPlan], plan_result: PlanningResult, *, switches: bool = False
) -> DeploymentCapacity:
    """Return capacity, GPUs and starts of ``plan_result``, compared to ``running``.

    With ``switches``, executors may take another role, which takes less time than a start.
    """
    there, news = replica_counts(running), 0.0
    switch_counts = Counter[ExecutorKind]()
    for (_, kind), count in role_switches(running, plan_result.models).items() if switches else ():
        switch_counts[kind] += count
    for kind, count in added_replicas(running, plan_result.models).items():
        option = plan_result.models[kind.model].options[kind.option]
        starts = planner.start_seconds.get((kind.model, kind.option), 0.0)
        fresh = count - there.get(kind, 0) - switch_counts[kind]
        news += max(1, option.gpus) * (fresh * starts + switch_counts[kind] * min(starts, SWITCH_SECONDS))
    return DeploymentCapacity(plan_result.capacity, _gpu_count(plan_result.models), news)


def _gpu_count(models: Mapping[str, ModelPlan]) -> float:
    """Return the GPUs of all executors; those on CPUs count as one each."""
    return sum(
        option.replicas * max(1, option.gpus)
        for model in models.values()
        for option in model.options.values()
        if not option.of
    )
