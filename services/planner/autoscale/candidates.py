"""Other plans for a load: what runs, the same executors with the best path rates, and the best of all."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from omnibus.cluster.desired import ExecutorKind, added_replicas, replica_counts
from omnibus.cluster.roles import SWITCH_SECONDS, role_switches
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan
from services.planner.autoscale.policy import EQUAL_CAPACITY_FRACTION, DeploymentCapacity
from services.planner.autoscale.replan_guard import ReplanEstimate
from services.planner.optimize.load import Loads
from services.planner.optimize.result import PlanningResult

if TYPE_CHECKING:  # see ``services.planner.optimize``
    from services.planner.optimize.planner import Planner
    from services.planner.optimize.promise import PromiseChecker


#: The part by which a plan for a burst may take more GPUs than the fewest, and one GPU at least, to be faster.
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
    rerouted, best = planner.reroute_running(running, load), planner.plan(load, running, explain=False)
    return PlanCandidates(now, rerouted, best, time.thread_time() - began)


def faster_plan(
    checker: "PromiseChecker | None", best: PlanningResult, running: Mapping[str, ModelPlan], load: Loads, coming: Loads
) -> PlanningResult:
    """Return ``best`` for ``load``, or a plan of options that run already where requests are predicted to take less.

    Executors of a new option are rarely what a burst needs: they win by a part of a GPU, and the requests that go there
    take longer. ``coming`` is what comes now, by which the 99th percentile is simulated.
    """
    if checker is None or not _has_new_option(running, best):
        return best
    other = checker.planner.plan_of_running_options(load, running)
    most = _gpu_count(best.models) + max(1.0, FASTER_PLAN_GPU_FRACTION * _gpu_count(best.models))
    if other is None or _gpu_count(other.models) > most:
        return best
    try:
        return other if checker.predict_p99(other, coming) < checker.predict_p99(best, coming) else best
    except BadRequest:  # what cannot be simulated is taken as it was solved
        return best


def _has_new_option(running: Mapping[str, ModelPlan], planned: PlanningResult) -> bool:
    there = replica_counts(running)
    return any(kind not in there for kind in replica_counts(planned.models))


def estimate_replan(
    checker: "PromiseChecker", rerouted: PlanningResult, running: Mapping[str, ModelPlan], load: Loads, within: float
) -> ReplanEstimate:
    best = checker.plan(load, running, within=within)
    try:
        return ReplanEstimate(best, *checker.estimate_gain(rerouted, best, load))
    except BadRequest:  # what cannot be simulated is judged as it was solved
        return ReplanEstimate(best, math.inf, 0.0)


def serves_more(name: str, found: PlanCandidates) -> bool:
    """Return whether another plan, or other path rates, serve more of model ``name`` than what runs."""
    now = found.now.capacity.get(name, 0.0) * (1 + EQUAL_CAPACITY_FRACTION)
    return max(found.best.capacity.get(name, 0.0), found.rerouted.capacity.get(name, 0.0)) > now


def deployment_capacity(
    planner: "Planner", running: Mapping[str, ModelPlan], planned: PlanningResult, *, switches: bool = False
) -> DeploymentCapacity:
    """``switches``: executors may take another role, which takes less than a start."""
    there, news = replica_counts(running), 0.0
    switched = Counter[ExecutorKind]()
    for (_, kind), count in role_switches(running, planned.models).items() if switches else ():
        switched[kind] += count
    for kind, count in added_replicas(running, planned.models).items():
        option = planned.models[kind.model].options[kind.option]
        starts = planner.start_seconds.get((kind.model, kind.option), 0.0)
        fresh = count - there.get(kind, 0) - switched[kind]
        news += max(1, option.gpus) * (fresh * starts + switched[kind] * min(starts, SWITCH_SECONDS))
    return DeploymentCapacity(planned.capacity, _gpu_count(planned.models), news)


def _gpu_count(models: Mapping[str, ModelPlan]) -> float:
    """GPUs of all executors, those on CPUs counted as one each."""
    return sum(
        option.replicas * max(1, option.gpus)
        for model in models.values()
        for option in model.options.values()
        if not option.of
    )
