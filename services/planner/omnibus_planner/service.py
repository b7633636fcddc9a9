"""The planner service: plans declared models and apps, and rolls the plan out in the store.

Prometheus metrics of a planner, from its state: its plan, staged plans, and missing executors.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from omnibus import bus as buses
from omnibus.app_record import AppRecord
from omnibus.bus import subjects
from omnibus.bus.messages import ModelGrowth, PlanEvent
from omnibus.bus.nats import NatsBus
from omnibus.canary.candidate import without_candidate
from omnibus.cells import merge_cells
from omnibus.cluster.agents import AgentDirectory
from omnibus.cluster.presence import ExecutorKind, GatewayPlans, ReadyExecutors, replica_counts
from omnibus.errors import BadRequest, BusUnavailable, ProtocolError, StoreUnavailable
from omnibus.metrics import PLANNER
from omnibus.plan import ModelPlan, Plan
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, PlannerSettings, StoreSettings, read_settings
from omnibus.store import PlanProblem, Store
from omnibus_planner import reconcile
from omnibus_planner.autoscale.autoscaler import Autoscaler
from omnibus_planner.autoscale.growth import plan_growth
from omnibus_planner.canary.controller import CandidateController
from omnibus_planner.declared import app_models, declarations_file
from omnibus_planner.declared.shared_processes import APPS, share_processes
from omnibus_planner.jetstream_metrics import StreamMetrics
from omnibus_planner.optimize.cell_plans import divide_into_cells, reroute_pools
from omnibus_planner.optimize.job import PlanningJob
from omnibus_planner.rollout.rollout import PlanRollout
from omnibus_planner.rollout.transition_plan import PlanTarget, describe_app_changes
from omnibus_planner.score.scorer import PlanScorer


def register_metrics(
    changes: PlanRollout, ready: ReadyExecutors, missing: Callable[[], Mapping[ExecutorKind, int]]
) -> None:
    """Register metrics that read ``changes`` and ``ready``. ``missing`` returns the executors without room."""

    def planned_executors() -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for kind, count in replica_counts(changes.plan.models).items() if changes.plan is not None else ():
            counts[kind[:2]] = counts.get(kind[:2], 0) + count
        return counts

    def ready_executors() -> dict[tuple[str, ...], float]:
        counts = dict.fromkeys(planned_executors(), 0.0)
        for kind in replica_counts(changes.plan.models) if changes.plan is not None else ():
            counts[kind[:2]] += ready.count_ready(kind)
        return counts

    def executors_without_room() -> dict[tuple[str, ...], float]:
        counts = dict.fromkeys(planned_executors(), 0.0)
        return counts | {kind[:2]: float(count) for kind, count in missing().items()}

    PLANNER.epoch.set_values(lambda: {(): changes.plan.epoch} if changes.plan is not None else {})
    PLANNER.created.set_values(lambda: {(): changes.plan.created} if changes.plan is not None else {})
    PLANNER.staged.set_value(
        lambda: time.time() - changes.staged_plan.created if changes.staged_plan is not None else 0.0
    )
    PLANNER.problems.set_value(lambda: changes.has_problem)
    PLANNER.pinned.set_value(lambda: changes.is_pinned)
    PLANNER.wanted.set_values(planned_executors)
    PLANNER.ready.set_values(ready_executors)
    PLANNER.no_room.set_values(executors_without_room)


log = logging.getLogger(__name__)

#: Reasons of a plan when no app has changed.
DECLARED, REDECLARED, MEASURED = "declared", "declarations changed", "profiles changed"
#: Seconds between two announcements of the plan while executors can be added.
GROWTH_SECONDS = 5.0
#: Seconds between two checks of the declarations file, and between two attempts to read profiles.
POLL_SECONDS = 1.0
#: Seconds without a further change of machines until the planner plans for them.
MACHINE_SECONDS = 3.0


class PlannerService:
    """Turns declarations and the registered apps into plan epochs."""

    def __init__(self) -> None:
        settings = read_settings(PlannerSettings)
        self._settings = settings
        self._store = Store(read_settings(StoreSettings))
        self._bus: buses.Bus | None = None
        self._ready, self._gateways = ReadyExecutors(), GatewayPlans()
        self._changes = PlanRollout(self._store, settings, self._ready, self._announce_plan)
        self._planning = PlanningJob(self._store, settings.models, settings.simulate)
        self._canary = CandidateController(self._store, self._set_target)
        self._follow = Autoscaler(
            settings, self._changes, self._planning, self._set_target, with_candidates=self._canary.apply
        )
        self._scorer = PlanScorer(settings, self._store, self._changes, self._planning, self._ready)
        self._agents: reconcile.AgentBackend | None = None
        self._machines: dict[str, reconcile.MachineSize] = {}
        self._declarations = declarations_file.Declarations({})
        self._declared: dict[str, ModelPlan] = {}
        self._apps: dict[str, AppRecord] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self) -> None:
        read = _file_stamp(self._settings.models)
        await self._apply_declarations(declarations_file.read_declarations(self._settings.models))
        file_stamps = [_file_stamp(each) for each in self._planning.profile_files]
        bus = self._bus = await NatsBus.connect(read_settings(BusSettings), "planner")
        backend = reconcile.create_backend(self._settings, lambda: self._create_agents(bus))
        await self._ready.listen(self._bus, self._changes.wake)
        await self._gateways.listen(self._bus)
        self._apps = await self._store.apps()
        await self._canary.load()
        if self._settings.models:
            await self._store.put_problem(self._settings.models, None)
        await self._follow.listen(self._bus)
        await self._scorer.listen(self._bus)
        if self._agents is not None:
            await self._agents.listen()
            await self._use_machines(reconcile.machine_sizes(self._agents.agents.live()))
        running = await self._running_models()
        await self._planning.plan(running, self._follow.last_load)
        self._set_target(DECLARED)
        register_metrics(self._changes, self._ready, lambda: self._agents.missing if self._agents is not None else {})
        await self._changes.run_available_steps()
        files = self._follow_files(read, file_stamps)
        work = [self._changes.run(), self._follow_plan(), self._follow_apps(), files, self._follow_profiles()]
        work += [self._follow.run(), self._announce_growth(), self._canary.follow(), self._canary.judge_candidate()]
        work += [self._scorer.run(), StreamMetrics(self._bus).run()]
        if backend is not None:
            work.append(reconcile.Reconciler(self._store, backend, self._gateways).run())
        if self._agents is not None:
            work.append(self._follow_machines(self._agents.agents))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each) for each in work]
        for task in self._tasks:
            task.add_done_callback(_log_failure)

    async def _apply_declarations(self, declarations: declarations_file.Declarations) -> None:
        """Apply valid ``declarations`` models, or raise ``BadRequest`` and change nothing.

        Weights may be compared, for which a thread reads them.
        """
        self._declared = await asyncio.to_thread(declarations_file.build_static_plans, declarations.models)
        self._declarations = declarations
        await self._use_machines(self._machines)
        if not declarations.models:
            log.info("OMNIBUS_PLANNER_MODELS declares no models: only apps provide models")

    def _create_agents(self, bus: buses.Bus) -> reconcile.AgentBackend:
        self._agents = reconcile.AgentBackend(self._store, bus, self._ready)
        return self._agents

    async def _use_machines(self, machines: Mapping[str, reconcile.MachineSize]) -> None:
        """Plan for these machines from now on, if there are agents."""
        self._machines, declarations = dict(machines), self._declarations
        if self._agents is not None:
            declarations = reconcile.with_machines(declarations, machines)
        await asyncio.to_thread(self._planning.set_declarations, declarations, self._declared)

    async def _follow_machines(self, agents: AgentDirectory) -> None:
        """Plan again when the machines have changed, and stayed so for ``MACHINE_SECONDS``."""
        since, candidate = time.monotonic(), self._machines
        while True:
            await asyncio.sleep(POLL_SECONDS)
            machines = reconcile.machine_sizes(agents.live())
            if machines != candidate:
                since, candidate = time.monotonic(), machines
            if candidate != self._machines and time.monotonic() >= since + MACHINE_SECONDS:
                reason = reconcile.describe_change(self._machines, candidate)
                await self._use_machines(candidate)
                await self._replan_models(reason)

    def _set_target(self, reason: str) -> None:
        plan_result, plan = self._planning.planned, self._changes.plan
        running = {name: without_candidate(model) for name, model in plan.models.items()} if plan is not None else {}
        declared_plans = {**self._declared, **divide_into_cells(plan_result, running)}
        models = self._canary.apply(self._with_apps(declared_plans))
        planner, load = self._planning.planner, self._follow.last_load
        reroute = partial(planner.reroute_running, load=load) if planner is not None else None
        route = self._canary.wrap_route(partial(reroute_pools, reroute) if reroute is not None else None)
        counts, prices = self._planning.gpu_counts, self._planning.prices
        self._changes.set_target(PlanTarget(models, reason, plan_result.explain, counts, route, prices))

    def _with_apps(self, declared_plans: Mapping[str, ModelPlan]) -> dict[str, ModelPlan]:
        """Return ``declared_plans``, and executors of all unit tasks that apps bring."""
        models = {name: plan for name, plan in declared_plans.items() if name != APPS}
        if APPS in declared_plans:
            models |= share_processes(declared_plans[APPS], self._apps, models)
        hosted_tasks = models[APPS].components if APPS in models else ()
        return models | app_models.app_models(self._apps, models, hosted_tasks)

    async def _replan_models(self, reason: str) -> None:
        """Plan the planned models again, from their current profiles."""
        while True:
            try:
                await self._planning.plan(await self._running_models(), self._follow.last_load)
                break
            except StoreUnavailable as error:
                log.warning("%s", error)
                await asyncio.sleep(POLL_SECONDS)
        self._set_target(reason)

    async def _running_models(self) -> dict[str, ModelPlan]:
        """Return the models of the current plan; none if there is none that this build can read."""
        plan = self._changes.plan
        if plan is None:
            try:
                plan = await self._store.plan()
                self._follow.restore_load(plan)
            except ProtocolError:
                plan = None
        models = plan.models if plan is not None else {}
        return {name: merge_cells(without_candidate(model)) for name, model in models.items()}

    def _announce_plan(self, plan: Plan) -> None:
        PLANNER.swaps.inc()
        log.info("plan epoch %d (%s): %s", plan.epoch, plan.reason, ", ".join(plan.models) or "no models")
        self._publish_plan(PlanEvent(plan.epoch, self._plan_growth(plan)))

    async def _announce_growth(self) -> None:
        """Announce repeatedly to which models executors can be added."""
        while True:
            await asyncio.sleep(GROWTH_SECONDS)
            plan = self._changes.plan
            if plan is not None and (growth := self._plan_growth(plan)):
                self._publish_plan(PlanEvent(plan.epoch, growth))

    def _plan_growth(self, plan: Plan) -> dict[str, ModelGrowth]:
        planner = self._planning.planner
        return plan_growth(plan, planner, self._planning.gpu_counts) if planner is not None else {}

    def _publish_plan(self, event: PlanEvent) -> None:
        if self._bus is None:
            return
        try:
            self._bus.publish(subjects.event_subject(subjects.PLAN), msgspec.json.encode(event))
        except BusUnavailable as error:  # processes that need the plan follow the store as well
            log.warning("plan epoch %d is not announced: %s", event.epoch, error.message)

    async def _follow_plan(self) -> None:
        async for _ in self._store.plan_changes():
            self._changes.wake()

    async def _follow_apps(self) -> None:
        async for apps in self._store.app_changes():
            if apps != self._apps:
                reason, self._apps = describe_app_changes(self._apps, apps), apps
                self._set_target(reason)

    async def _follow_profiles(self) -> None:
        async for profiles in self._store.profile_changes():
            reason = self._planning.replan_reason(profiles)
            if reason:
                await self._replan_models(reason)

    async def _follow_files(self, read: object, known_stamps: list[object]) -> None:
        """Read the declarations and profiles again whenever their files change."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            stamp = await asyncio.to_thread(_file_stamp, self._settings.models)
            if stamp != read:
                read = stamp
                await self._reload_declarations()
            stamps = [await asyncio.to_thread(_file_stamp, each) for each in self._planning.profile_files]
            if stamps != known_stamps:
                known_stamps = stamps
                await self._replan_models(MEASURED)

    async def _reload_declarations(self) -> None:
        """Apply the current declarations. Invalid ones are reported and change nothing."""
        path, problem = self._settings.models, None
        try:
            await self._apply_declarations(await asyncio.to_thread(declarations_file.read_declarations, path))
            await self._replan_models(REDECLARED)
        except BadRequest as error:
            log.error("the declarations stay as they were: %s", error)
            problem = PlanProblem(time.time(), error.message)
        try:
            await self._store.put_problem(path, problem)
        except StoreUnavailable as error:
            log.warning("%s", error)

    async def drain(self, seconds: float) -> None: ...

    async def shutdown(self) -> None:
        for task in self._tasks:
            await until_cancelled(task)
        await self._changes.close()
        if self._bus is not None:
            await self._bus.drain()
        await self._store.close()


def _file_stamp(path: str) -> object:
    """Return a value that changes when the file is written or replaced."""
    try:
        status = os.stat(path) if path else None
    except OSError:
        return ""
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.error("a background task of the planner failed: restart the planner", exc_info=task.exception())
