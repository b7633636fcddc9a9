"""Planned models follow their load: measured at gateways, judged, and planned for.

Pauses between plans: each lasts ten times the CPU time of the plan before it.

Chance in a measured mix: the shares in a sample differ from those of all requests.

Of n requests, the standard deviation of a type's share p is sqrt(p (1 - p) / n). A mix counts as changed if a share
differs by more than three of these, or by more than three requests. Otherwise plans would repeatedly follow chance at
few requests per second.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.bus.messages import LoadEvent
from omnibus.canary.candidate import without_candidate
from omnibus.cells import merge_cells
from omnibus.cluster.presence import follow_events
from omnibus.errors import OmnibusError
from omnibus.plan import ModelPlan, Plan
from omnibus.settings import PlannerSettings
from omnibus_planner.autoscale.candidates import (
    PlanCandidates,
    ReplanEstimate,
    ReplanGuard,
    deployment_capacity,
    estimate_replan,
    faster_plan,
    serves_more,
    solve_for_load,
)
from omnibus_planner.autoscale.controls import build_attainment, build_policy, build_trend, scaling_rules
from omnibus_planner.autoscale.explanation import (
    LOAD,
    declared_load,
    describe_load_change,
    recorded_load,
    with_alternatives,
    with_forecasts,
)
from omnibus_planner.autoscale.forecast import BurstForecast, RateForecast, raise_to_forecasts, relative_error
from omnibus_planner.autoscale.load_window import LoadWindows
from omnibus_planner.autoscale.policy import (
    ScalingPolicy,
    ScalingSnapshot,
    Verdict,
)
from omnibus_planner.declared.planned_spec import GPUS
from omnibus_planner.optimize.job import PlanningJob
from omnibus_planner.optimize.load import Loads, ModelLoad
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.rollout.rollout import PlanRollout

if TYPE_CHECKING:
    from omnibus_planner.optimize.planner import Planner


#: Fewest seconds between two plans, and seconds per second of CPU time of the last one.
MIN_PAUSE_SECONDS, PAUSE_PER_CPU_SECOND = 1.0, 10.0


class SolvePace:
    """Pause after plans that were solved for one reason. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock()

    @property
    def is_resting(self) -> bool:
        """True while no plan may be solved."""
        return self._clock() < self._until

    def note_solved(self, plan_candidates: PlanCandidates) -> None:
        """Start the pause after ``plan_candidates`` was solved."""
        self._until = self._clock() + max(MIN_PAUSE_SECONDS, PAUSE_PER_CPU_SECOND * plan_candidates.seconds)


#: Standard deviations, or requests, by which a share must differ.
_DEVIATIONS = 3.0


def without_chance(load: ModelLoad, planned_load: ModelLoad, seconds: float) -> ModelLoad:
    """Return ``load``, with the shares of ``planned_load`` if only chance differs.

    ``load`` was measured over ``seconds``.
    """
    requests = load.rate * seconds
    before, now = _normalised(planned_load.shares), _normalised(load.shares)
    if not before or not now or requests <= 0:
        return load
    if all(_is_chance(before.get(kind, 0.0), now.get(kind, 0.0), requests) for kind in {*before, *now}):
        return msgspec.structs.replace(load, shares=before)
    return load


def _is_chance(before: float, now: float, requests: float) -> bool:
    deviation = max(math.sqrt(before * (1.0 - before) / requests), 1.0 / requests)
    return abs(now - before) <= _DEVIATIONS * deviation + 1e-9


def _normalised(shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    return {kind: share / total for kind, share in shares.items()} if total > 0 else {}


log = logging.getLogger(__name__)

#: Fewest seconds between two checks, which combine gateways' events of about the same time.
MIN_LOOK_SECONDS = 0.2


class Autoscaler:
    """Watches the load of the adaptive models in ``planning``, and plans again.

    A new target goes into ``planning``, and ``want`` is called with the reason. ``changes`` contains the current plan.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        changes: PlanRollout,
        planning: PlanningJob,
        want: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        with_candidates: Callable[[Mapping[str, ModelPlan]], Mapping[str, ModelPlan]] = dict,
    ) -> None:
        """``with_candidates`` adds canary candidates and promoted models to planned models."""
        self._with_candidates = with_candidates
        self._settings = settings
        self._changes = changes
        self._planning = planning
        self._want = want
        self._clock = clock
        self._windows = LoadWindows(settings.window, clock)
        self._bursts = BurstForecast(clock)
        self._guard = ReplanGuard(3 * settings.window, clock)
        self._heard = asyncio.Event()
        self._bus: Bus | None = None
        self._reconnects = 0
        self._planner: Planner | None = None
        self._adapt: ScalingPolicy | None = None
        self._attainment = build_attainment(None, settings, clock)
        self._trend = build_trend(None, settings, clock)
        self._wanted: PlanningResult | None = None
        self._since = clock()  # when it became the target, or made its last step
        self._epoch = 0  # the last step
        self._before: Loads = {}  # the load that was planned for
        self._load: Loads = {}
        self._window_pace, self._burst_pace = SolvePace(clock), SolvePace(clock)

    async def listen(self, bus: Bus) -> None:
        """Subscribe to load events."""
        self._bus, self._reconnects = bus, bus.reconnects
        await follow_events(bus, {subjects.LOAD: self._on_load}, partial(log.warning, "%s"))

    def _on_load(self, event: LoadEvent) -> None:
        self._windows.add_event(event)
        self._bursts.add_event(event)
        self._heard.set()

    def restore_load(self, plan: Plan | None) -> None:
        """Continue with the load of ``plan``, from a previous planner."""
        self._load = self._load or recorded_load(plan)

    @property
    def last_load(self) -> Loads:
        """Last load to plan for, for new declarations; without models whose load is unknown."""
        return {name: load for name, load in self._load.items() if name in self._planning.adaptive_models}

    async def run(self) -> None:
        """Check on news, and at least once per window; until cancelled."""
        while True:
            try:
                await self.check_load()
            except OmnibusError as error:
                log.warning("the load is not followed for now: %s", error)
            await asyncio.sleep(MIN_LOOK_SECONDS)
            try:
                async with asyncio.timeout(self._settings.window):
                    await self._heard.wait()
            except TimeoutError:  # no requests at all may need fewer executors
                pass
            self._heard.clear()

    async def check_load(self) -> None:
        """Plan again if the load requires it."""
        adapt, planner, plan = self._current_policy(), self._planner, self._changes.plan
        if planner is None or adapt is None or plan is None or self._has_missed_events(adapt):
            return
        if self._trend.is_due:
            self._trend.add_loads(self._windows.current_loads())
        if self._changes.is_pinned or self._is_rolling_out(plan):
            adapt.note_plan_change()
            self._attainment.note_plan_change()
            return
        names = [name for name in planner.models if name in plan.models]
        running = {name: merge_cells(without_candidate(plan.models[name])) for name in names}
        met = not self._burst_pace.is_resting and await self._meet_burst(planner, adapt, plan, running)
        if not met and not self._window_pace.is_resting:
            await self._follow_window(planner, adapt, plan, running)

    async def _follow_window(
        self, planner: "Planner", adapt: ScalingPolicy, plan: Plan, running: Mapping[str, ModelPlan]
    ) -> None:
        """Plan again if the load of a whole window requires it."""
        self._attainment.update(self._windows.goal_counts())
        measured_loads = self._windows.current_loads()
        forecasts = self._trend.forecasts(measured_loads, planner.models_for_rate)
        loads = self._attainment.raise_loads(raise_to_forecasts(measured_loads, forecasts))
        loads = {name: self._without_chance(planner, name, load) for name, load in loads.items()}
        self._guard.note_running()
        target_load = adapt.expected_load(loads)
        if target_load is None or self._goes_back(adapt, loads):
            return
        self._load, self._before = target_load, self._before or declared_load(planner, self._wanted, target_load)
        plan_candidates = await asyncio.to_thread(solve_for_load, planner, running, target_load)
        self._window_pace.note_solved(plan_candidates)
        if not self._is_current(plan):
            return
        switches = not self._settings.reconcile
        best, rerouted_capacity = (
            deployment_capacity(planner, running, each, switches=switches)
            for each in (plan_candidates.best, plan_candidates.rerouted)
        )
        verdict = adapt.decide(ScalingSnapshot(loads, plan_candidates.now, rerouted_capacity, best))
        if verdict is Verdict.KEEP:
            return
        plan_result = plan_candidates.rerouted
        if verdict is Verdict.REPLAN:
            confirmed_result = await self._confirm_replan(plan_candidates, running, target_load)
            if confirmed_result is None:
                return
            plan_result = confirmed_result
        final_result = with_forecasts(await with_alternatives(plan_result), forecasts)
        if self._is_current(plan):
            if verdict is Verdict.REPLAN:
                self._guard.note_replan(self._planning.planned, loads, self._windows.served_rates())
            self._apply_plan(final_result, target_load, self._describe_change(target_load))
            adapt.note_plan_change()

    def _without_chance(self, planner: "Planner", name: str, load: ModelLoad) -> ModelLoad:
        """Return ``load`` with the planned mix, if it differs by chance.

        The rate does not change.
        """
        if name in planner.models_for_rate or name not in planner.models:
            return load
        before = self._before or declared_load(planner, self._wanted, {name: load})
        return without_chance(load, before[name], self._settings.window) if name in before else load

    def _describe_change(self, load: Loads) -> str:
        raise_factors = self._attainment.raised_loads()
        goal_text = ", ".join(
            f"goals of {name}: for {factor:.3g} times the load" for name, factor in raise_factors.items()
        )
        return (
            f"{goal_text}; {describe_load_change(load, self._before)}"
            if goal_text
            else describe_load_change(load, self._before)
        )

    async def _meet_burst(
        self, planner: "Planner", adapt: ScalingPolicy, plan: Plan, running: Mapping[str, ModelPlan]
    ) -> bool:
        """Add executors at once if the last seconds brought a burst.

        The rate exceeded the capacity, or requests were rejected.
        """
        try:
            recent = self._bursts.expected_loads(lambda loads: planner.capacity(running, loads))
            capacity = planner.capacity(running, recent)
        except OmnibusError:  # the longer window handles types without measurements
            return False
        short = adapt.find_shortage(recent, capacity, self._bursts.refused_rates(), self._bursts.waiting_counts())
        if not short:
            return False
        target_load = {**self._load, **{name: recent[name] for name in recent if name not in self._load}, **short}
        plan_candidates = await asyncio.to_thread(solve_for_load, planner, running, target_load)
        self._burst_pace.note_solved(plan_candidates)
        more = [name for name in short if serves_more(name, plan_candidates)]
        if not more or not self._is_current(plan):
            return False
        self._before = self._before or declared_load(planner, self._wanted, target_load)
        enough = all(plan_candidates.rerouted.capacity.get(name, 0.0) >= load.rate for name, load in short.items())
        plan_result = plan_candidates.rerouted
        if not enough:
            checker = self._planning.checker
            plan_result = await asyncio.to_thread(
                faster_plan, checker, plan_candidates.best, running, target_load, recent
            )
            if not self._is_current(plan):
                return False
        forecasts = {name: RateForecast(load.rate, relative_error(load.rate)) for name, load in short.items()}
        # Apply the plan before its alternatives are computed.
        plan_result = with_forecasts(msgspec.structs.replace(plan_result, why=None), forecasts)
        self._load = target_load
        self._apply_plan(plan_result, target_load, f"burst: {describe_load_change(target_load, self._before)}")
        adapt.note_plan_change()
        return True

    def _goes_back(self, adapt: ScalingPolicy, loads: Loads) -> bool:
        """Apply the plan before the last replan if that replan serves less."""
        fallback = self._guard.find_fallback(loads, self._windows.served_rates())
        if fallback is None:
            return False
        before, reason = fallback
        self._apply_plan(before, self._load, reason)
        adapt.note_plan_change()
        return True

    async def _confirm_replan(
        self, plan_candidates: PlanCandidates, running: Mapping[str, ModelPlan], load: Loads
    ) -> PlanningResult | None:
        """Return the best plan as simulated; None if its advantage is within the error.

        Models that are planned for the fewest GPUs change to serve their rate, or to free GPUs, and are not judged
        here.
        """
        checker, planner = self._planning.checker, self._planner
        if checker is None or planner is None:
            return plan_candidates.best
        if any(each.planned is not None and each.planned.goal == GPUS for each in planner.models.values()):
            return plan_candidates.best
        if self._guard.is_rejected(load):
            return None
        within = self._settings.simulate
        estimate = await asyncio.to_thread(estimate_replan, checker, plan_candidates.rerouted, running, load, within)
        if not estimate.is_certain:
            log.info("a replan would serve %.0f %% more, give or take %.0f %%: not made", *_percents(estimate))
            return None
        return estimate.best

    def _is_current(self, plan: Plan) -> bool:
        """Return True if ``plan`` and the target are still the current ones."""
        return self._planning.planned is self._wanted and plan is self._changes.plan

    def _current_policy(self) -> ScalingPolicy | None:
        """Return the policy for the current target; None if no model adapts."""
        planning = self._planning
        if planning.planned is not self._wanted:
            self._wanted, self._since = planning.planned, self._clock()
        if planning.planner is not self._planner:
            self._planner = planning.planner
            self._adapt = build_policy(self._planner, scaling_rules(self._settings), self.last_load, self._clock)
            self._attainment = build_attainment(self._planner, self._settings, self._clock)
            self._trend = build_trend(self._planner, self._settings, self._clock)
        return self._adapt

    def _has_missed_events(self, adapt: ScalingPolicy) -> bool:
        """Return True if events may have been missed; measurements then start again."""
        bus = self._bus
        if bus is not None and bus.connected and bus.reconnects == self._reconnects:
            return False
        self._reconnects = bus.reconnects if bus is not None else 0
        self._windows.clear()
        self._bursts.clear()
        self._trend.clear()
        adapt.reset_measurements()
        return True

    def _is_rolling_out(self, plan: Plan) -> bool:
        """Return True if executors of the target may still start; postponed ones do not count."""
        target_models = self._with_candidates(self._wanted.models if self._wanted is not None else {})
        if all(plan.models.get(name) == model for name, model in target_models.items()):
            return False
        if plan.epoch != self._epoch:
            self._epoch, self._since = plan.epoch, self._clock()
        return self._clock() - self._since < self._settings.ready

    def _apply_plan(self, plan_result: PlanningResult, load: Loads, reason: str) -> None:
        planning = self._planning
        log.info("%s: %s", reason, ", ".join(f"{name} {rate:.3g} req/s" for name, rate in plan_result.capacity.items()))
        planning.planned = msgspec.structs.replace(
            plan_result,
            models={**planning.planned.models, **plan_result.models},
            explain={**plan_result.explain, LOAD: msgspec.to_builtins(load)},
        )
        self._before, self._wanted, self._since = load, planning.planned, self._clock()
        self._want(reason)


def _percents(estimate: ReplanEstimate) -> tuple[float, float]:
    return 100 * estimate.gain, 100 * estimate.error
