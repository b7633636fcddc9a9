"""Scoring of the current plan: measured, simulated with the same requests, compared, and stored."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from omnibus.bus import Bus, subjects
from omnibus.bus.messages import LoadEvent
from omnibus.cells import base_option
from omnibus.cluster.presence import ReadyExecutors, follow_events, replica_counts
from omnibus.errors import OmnibusError
from omnibus.plan import Plan
from omnibus.plan_score import PlanScore
from omnibus.settings import PlannerSettings
from omnibus.store import Store
from omnibus_planner.optimize.job import PlanningJob
from omnibus_planner.optimize.learned_seconds import update_learned
from omnibus_planner.rollout.rollout import PlanRollout
from omnibus_planner.score.scoring import PlanMeasurement, Reports

if TYPE_CHECKING:  # see ``omnibus_planner.optimize``
    from omnibus_planner.optimize.promise import PromiseChecker

log = logging.getLogger(__name__)

#: Seconds between two checks, and requests that must have completed for a score.
LOOK_SECONDS, MIN_REQUESTS = 1.0, 200
#: Windows of the first measurement of a plan, the factor for each further one, and most windows.
FIRST_WINDOWS, LONGER_FACTOR, MAX_WINDOWS = 4, 2, 40
#: Most requests of one score: a simulation of more takes seconds of CPU time.
MAX_REQUESTS = 10_000


class PlanScorer:
    """Scores the current plan of ``changes`` while ``planning`` has planned models.

    The seconds that it learns from executors are stored and passed to ``planning``, for later plans.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        store: Store,
        changes: PlanRollout,
        planning: PlanningJob,
        ready: ReadyExecutors,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._store = store
        self._changes = changes
        self._planning = planning
        self._ready = ready
        self._clock = clock
        self._reconnects = 0
        self._bus: Bus | None = None
        self._measured: PlanMeasurement | None = None
        self._windows = FIRST_WINDOWS

    async def listen(self, bus: Bus) -> None:
        """Subscribe to load events."""
        self._bus, self._reconnects = bus, bus.reconnects
        await follow_events(bus, {subjects.LOAD: self._on_load}, partial(log.warning, "%s"))

    def _on_load(self, event: LoadEvent) -> None:
        if self._measured is not None:
            self._measured.add_event(event, self._clock())

    async def run(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.check_plan()
            except OmnibusError as error:
                log.warning("the plan is not scored for now: %s", error)
                self._measured = None

    async def check_plan(self) -> None:
        """Begin or continue a measurement, or score a complete one."""
        checker, plan = self._planning.checker, self._changes.plan
        if checker is None or plan is None or not self._is_settled(plan, checker):
            self._measured, self._windows = None, FIRST_WINDOWS
            return
        measurement, now = self._measured, self._clock()
        if measurement is None or measurement.plan is not plan:
            windows = FIRST_WINDOWS if measurement is not None else self._windows
            self._windows, self._measured = windows, PlanMeasurement(plan, now, self._ready.reports())
            return
        seconds = now - measurement.began
        is_long = seconds >= self._windows * self._settings.window and measurement.requests >= MIN_REQUESTS
        if not is_long and measurement.requests < MAX_REQUESTS:
            return
        self._windows = min(MAX_WINDOWS, LONGER_FACTOR * self._windows)
        self._measured = None
        score = await asyncio.to_thread(_score, checker, measurement, self._ready.reports(), seconds)
        await self._store.put_plan_score(score)
        await self._learn(score, plan, checker)

    def _is_settled(self, plan: Plan, checker: "PromiseChecker") -> bool:
        """Return True if planned executors are ready, and no events were missed."""
        bus = self._bus
        if bus is None or not bus.connected or bus.reconnects != self._reconnects:
            self._reconnects = bus.reconnects if bus is not None else 0
            return False
        models = {name: each for name, each in plan.models.items() if name in checker.planner.inputs}
        return bool(models) and not self._ready.count_missing(replica_counts(models))

    async def _learn(self, score: PlanScore, plan: Plan, checker: "PromiseChecker") -> None:
        learned_seconds, digests = dict(self._planning.learned), self._planning.digests
        for name, inputs in checker.planner.inputs.items():
            if name in digests and inputs.asked.learn:
                model_seconds = update_learned(learned_seconds.get(name), inputs, digests[name], score, plan)
                if model_seconds != learned_seconds.get(name):
                    learned_seconds[name] = model_seconds
                    await self._store.put_learned_seconds(name, model_seconds)
        if await self._planning.learn(learned_seconds):
            log.info("plans are made with the seconds that executors take")


def _score(checker: "PromiseChecker", measurement: PlanMeasurement, reports: Reports, seconds: float) -> PlanScore:
    """Compute a score, in a separate thread. Raises ``BadRequest`` for requests that cannot be simulated."""
    from omnibus_planner.score.replay import replay_requests
    from omnibus_planner.score.scoring import score_plan

    model_inputs: Mapping[str, object] = checker.planner.inputs
    outcome = replay_requests(checker, measurement.plan, measurement.arrivals(model_inputs), seconds)
    usage = measurement.option_usage(reports, seconds)
    timed_models = _models_with_latencies(checker, measurement.plan)
    return score_plan(measurement, outcome, usage, seconds, time.time(), timed_models, checker.devices)


def _models_with_latencies(checker: "PromiseChecker", plan: Plan) -> set[str]:
    """Return the models whose profile has latencies of all deployed options."""
    names = set[str]()
    for name, inputs in checker.planner.inputs.items():
        model = plan.models.get(name)
        if model is not None:
            options = {base_option(model, option) for option in model.options}
            if all(each in inputs.options and inputs.options[each].has_latencies for each in options):
                names.add(name)
    return names
