"""Candidates for a load: the running plan, its executors with new path rates, the best plan."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from omnibus.cluster.desired import ExecutorKind, added_replicas, replica_counts
from omnibus.cluster.roles import SWITCH_SECONDS, role_switches
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan
from omnibus_planner.autoscale.policy import EQUAL_CAPACITY_FRACTION, DeploymentCapacity
from omnibus_planner.autoscale.replan_guard import ReplanEstimate
from omnibus_planner.optimize.load import Loads
from omnibus_planner.optimize.result import PlanningResult

if TYPE_CHECKING:  # see ``omnibus_planner.optimize``
    from omnibus_planner.optimize.planner import Planner
    from omnibus_planner.optimize.promise import PromiseChecker


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
