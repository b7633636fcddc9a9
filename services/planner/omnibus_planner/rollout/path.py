"""The path to the target: at once, or in steps within the GPUs, with rollbacks.

Each step is computed from the current plan alone, so a new planner does not need the progress of an earlier one.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from omnibus.cluster.presence import ExecutorKind, replica_counts
from omnibus.cluster.roles import ExecutorRole, plan_roles
from omnibus.errors import OmnibusError
from omnibus.plan import ModelPlan, Path
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.rollout.readiness import MAX_BACKOFF_SECONDS
from omnibus_planner.rollout.steps import (
    ExecutorSize,
    InsufficientGpus,
    describe_step,
    executor_sizes,
    missing_gpus,
    rollout_steps,
)
from omnibus_planner.rollout.transition_plan import Models, PlanTarget

log = logging.getLogger(__name__)

INFINITE_SECONDS = float("inf")
#: Suffix of the reason of a plan that rolls models back.
ROLLBACK_NOTE = "goes back for now"


class RolloutStep(NamedTuple):
    """The next plan, the obstacles, and the time of the next check.

    ``note`` is the suffix of the plan's reason, unless it is the last plan.
    """

    target: PlanTarget
    faults: tuple[str, ...] = ()
    look: float = INFINITE_SECONDS
    note: str = ""


class _Rollback(NamedTuple):
    """A model that is rolled back because its executors did not start.

    It is tried again when the pause ``ends``.
    """

    ends: float
    pause: float
    fault: str


class RolloutPath:
    """Finds steps. Times are of one monotonic clock, in seconds; ``pause`` is the first one.

    With ``switches``, executors may take another role on their GPUs.
    """

    def __init__(self, pause: float, *, switches: bool = False) -> None:
        self._pause = pause
        self._switches = switches
        self._roles: dict[ExecutorKind, ExecutorRole] = {}
        self._goal: Models = {}
        self._home: Models | None = None  # the current plans before the path to the goal began
        self._rests: dict[str, _Rollback] = {}
        self._known: tuple[Models, tuple[Any, ...], RolloutStep] | None = None
        self._sizes: dict[ExecutorKind, ExecutorSize] = {}

    async def next_step(self, models: Models, goal: PlanTarget, now: float) -> RolloutStep:
        """Return the plan after ``models`` on the path to ``goal``."""
        self._sizes |= {**executor_sizes(models), **executor_sizes(goal.models)}
        if self._switches:
            self._roles |= {**plan_roles(models), **plan_roles(goal.models)}
        if goal.models != self._goal or models == goal.models:
            self._goal, self._rests = goal.models, {}
        if self._home is None or models == goal.models:
            self._home = models
        resting = {name: rest for name, rest in self._rests.items() if now < rest.ends}
        after = self._hold_back(goal.models, resting)
        cached_step, goal_key = self._known, (after, goal.gpus, goal.explain)
        if cached_step is None or cached_step[0] is not models or cached_step[1] != goal_key:
            aim = await asyncio.to_thread(
                _find_step, models, after, goal, self._home if resting else None, set(resting), self._switches
            )
            self._known = cached_step = models, goal_key, aim
        aim, look = cached_step[2], min((rest.ends for rest in resting.values()), default=INFINITE_SECONDS)
        target = aim.target._replace(reason=goal.reason + aim.note)
        return aim._replace(target=target, faults=(*aim.faults, *{rest.fault for rest in resting.values()}), look=look)

    def roll_back(self, models: Models, aim: RolloutStep, names: Iterable[str], fault: str, now: float) -> bool:
        """Roll back models whose executors do not start. Returns False if that is not necessary."""
        if self._home is None or (models == self._home and not aim.note):
            return False
        tired_models = [name for name in names if name not in self._rests or now >= self._rests[name].ends]
        for name in tired_models:
            before = self._rests.get(name)
            pause = min(2 * before.pause, MAX_BACKOFF_SECONDS) if before is not None else self._pause
            self._rests[name] = _Rollback(now + pause, pause, fault)
        return bool(tired_models)

    def must_wait_for_gpus(self, there: Mapping[ExecutorKind, int], models: Models, aim: RolloutStep) -> bool:
        """Return True if executors must stop before the next plan's can start."""
        want, have = replica_counts(aim.target.models), replica_counts(models)
        fresh = {kind: count for kind, count in want.items() if count > have.get(kind, 0)}
        requested_counts = {kind: max(count, have.get(kind, 0)) for kind, count in {**have, **want}.items()}
        leaving = {kind: count for kind, count in there.items() if count > requested_counts.get(kind, 0)}
        combined_counts = {**have, **leaving}
        return bool(fresh and leaving) and bool(
            missing_gpus(combined_counts, {**combined_counts, **fresh}, self._sizes, aim.target.gpus, self._roles)
        )

    def uses_declared_gpus(self, kinds: Iterable[ExecutorKind]) -> bool:
        """Return True if any of them uses declared GPUs."""
        return not self._sizes.keys().isdisjoint(kinds)

    def _hold_back(self, goal: Models, resting: Iterable[str]) -> dict[str, ModelPlan]:
        """Return ``goal`` with paused models as they were."""
        home = self._home or {}
        after = dict(goal)
        for name in resting:
            after.pop(name, None)
            if name in home:
                after[name] = home[name]
        return after


def _find_step(
    models: Models,
    after: dict[str, ModelPlan],
    goal: PlanTarget,
    home: Models | None,
    resting: Iterable[str],
    switches: bool,
) -> RolloutStep:
    """Find the next plan.

    Models without room stay as they are. All return ``home`` if the ``resting`` ones cannot do so alone.
    """
    faults: list[str] = []
    while True:
        try:
            steps = rollout_steps(models, after, goal.gpus, switches=switches)
            break
        except InsufficientGpus as error:
            if home is not None and after != home:
                after, home = dict(home), None
                continue
            faults.append(error.message)
            after = _keep_models(models, after, error.models)
    step = steps[0] if steps else dict(models)
    if step == after:
        back = any(models.get(name) != step.get(name) for name in resting)
        return RolloutStep(goal._replace(models=step), tuple(faults), note=f": {ROLLBACK_NOTE}" if back else "")
    best_target = _with_best_paths(step, _unchanged_models(models, step) | _unchanged_models(after, step), goal)
    return RolloutStep(best_target, tuple(faults), note=f": {describe_step(models, step, after)}")


def _keep_models(models: Models, after: Models, names: Iterable[str]) -> dict[str, ModelPlan]:
    kept_models = {name: model for name, model in after.items() if name not in names}
    return {**kept_models, **{name: models[name] for name in names if name in models}}


def _unchanged_models(one: Models, other: Models) -> set[str]:
    return {name for name, model in one.items() if other.get(name) == model}


def _with_best_paths(step: dict[str, ModelPlan], but: set[str], goal: PlanTarget) -> PlanTarget:
    """Return ``step`` with the best known paths, except of models ``but``."""
    routing_result = PlanningResult({}, {}, {}, {})
    if goal.route is not None and but != step.keys():
        try:
            routing_result = goal.route(step)
        except OmnibusError as error:
            log.info("paths on the way to another plan are not the best ones: %s", error)
    models = {
        name: model
        if name in but or not routing_result.capacity.get(name)
        else _with_paths_of(step, name, routing_result.models[name])
        for name, model in step.items()
    }
    return goal._replace(models=models, explain={**goal.explain, **routing_result.explain})


def _with_paths_of(step: Models, name: str, best: ModelPlan) -> ModelPlan:
    """Return the model with those paths of ``best`` that fit.

    They use only its options.
    """
    model = step[name]
    types = {kind: paths for kind, paths in best.types.items() if all(_can_run_path(model, path) for path in paths)}
    return msgspec.structs.replace(model, types={**model.types, **types})


def _can_run_path(model: ModelPlan, path: Path) -> bool:
    return all(name in model.options and part in model.options[name].components for part, name in path.options.items())
