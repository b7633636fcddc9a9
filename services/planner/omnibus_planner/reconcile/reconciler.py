"""Follows the plans of the store, and applies them with a backend."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from omnibus.cluster.presence import GatewayPlans, desired_executors
from omnibus.errors import OmnibusError, ProtocolError, StoreUnavailable
from omnibus.plan import Plan
from omnibus.store import PlanProblem, PlanState, Store
from omnibus_planner.reconcile.backend import (
    Backend,
    ReplaceWorkload,
    ScaleWorkload,
    StartWorkload,
    Step,
    StopWorkload,
    diff_workloads,
)

log = logging.getLogger(__name__)

#: Seconds until the next attempt after a failure: first and longest.
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 60.0
#: Seconds that gateways may take to apply a new plan before executors of the old one stop.
PLAN_WAIT_SECONDS = 5.0
#: Source of reported problems.
PROBLEM_SOURCE = "reconcile"


class Reconciler:
    """Keeps the executors of the current and the staged plan running.

    Those of the previous plan run until every gateway has left it. The reconciler retries failures, and reports them in
    the store's ``plan:problems``.
    """

    def __init__(self, store: Store, backend: Backend, gateways: GatewayPlans) -> None:
        self._store = store
        self._backend = backend
        self._gateways = gateways
        self._plans: list[Plan] = []  # to run: previous ones, the current one, the staged one
        self._leaving: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._told: str | None = None

    async def run(self) -> None:
        """Follow the store and apply plans until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._backend.run_leader_election(self._changed.set))
            group.create_task(self._work_loop())
            async for stand in self._store.plan_changes():
                await self._load_plans(stand)

    # Required workloads

    async def _load_plans(self, stand: PlanState) -> None:
        """Load the store's plans; keep the last one if it is lost or unreadable."""
        if not stand.epoch:
            return
        known_plan = next((plan for plan in reversed(self._plans) if plan.epoch <= stand.epoch), None)
        current = await self._read_plan(self._store.plan, stand.epoch) or known_plan
        next_plan = await self._read_plan(self._store.staged_plan) if stand.staged else None
        if current is None:
            return
        if not self._plans:  # workloads that an earlier planner was stopping may still be in use
            await self._gateways.wait_for_plan(current.created, PLAN_WAIT_SECONDS)
        self._set_plans(current, next_plan)

    async def _read_plan(self, read: Callable[..., Awaitable[Plan | None]], *epoch: int) -> Plan | None:
        while True:
            try:
                return await read(*epoch)
            except StoreUnavailable as error:  # a change is announced once, so retry
                log.warning("%s", error)
                await asyncio.sleep(INITIAL_BACKOFF_SECONDS)
            except ProtocolError as error:
                log.error("%s: %s", f"plan epoch {epoch[0]}" if epoch else "the staged plan", error)
                return None

    def _set_plans(self, current: Plan, next_plan: Plan | None) -> None:
        before = [plan for plan in self._plans if plan != current and plan.epoch <= current.epoch]
        self._plans = [*before, current, *([next_plan] if next_plan is not None else [])]
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving = asyncio.get_running_loop().create_task(self._drop_old_plans(current)) if before else None
        self._changed.set()

    async def _drop_old_plans(self, current: Plan) -> None:
        await self._gateways.wait_for_plan(current.created, PLAN_WAIT_SECONDS)
        self._plans = [plan for plan in self._plans if plan.epoch >= current.epoch]
        self._changed.set()

    # Steps

    async def _work_loop(self) -> None:
        pause = INITIAL_BACKOFF_SECONDS
        while True:
            self._changed.clear()
            try:
                await self._work_once()
                wait, pause = self._backend.resync, INITIAL_BACKOFF_SECONDS
            except OmnibusError as error:
                wait, pause = pause, min(2 * pause, MAX_BACKOFF_SECONDS)
                await self._report_failure(error, wait)
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _work_once(self) -> None:
        if self._backend.is_leader:
            await self._apply_steps()
            await self._report_problem("", 0.0)
        elif self._backend.leadership_error is not None:
            raise self._backend.leadership_error
        elif self._told:
            await self._report_problem("", 0.0)
        else:
            self._told = None  # only the leader reports problems

    async def _apply_steps(self) -> None:
        """Apply all steps while this planner leads; raises the first failure at the end."""
        if not self._plans:
            return
        failures = list[OmnibusError]()
        for step in diff_workloads(
            desired_executors(*self._plans), await self._backend.list_workloads(), self._backend.workload_hash
        ):
            if not self._backend.is_leader:
                return
            try:
                await self._apply_step(step)
            except OmnibusError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _apply_step(self, step: Step) -> None:
        log.info("%s", describe_step(step))
        match step:
            case StartWorkload(wanted):
                await self._backend.start(wanted)
            case ScaleWorkload(running, wanted):
                await self._backend.scale(running, wanted)
            case ReplaceWorkload(running, wanted):
                await self._backend.replace_executors(running, wanted)
            case StopWorkload(running):
                await self._backend.stop(running)

    async def _report_failure(self, error: OmnibusError, again: float) -> None:
        log.warning("%s; trying again in %.1f s", error, again)
        try:
            await self._report_problem(error.message, time.time() + again)
        except StoreUnavailable as unsaid:
            log.warning("%s", unsaid)

    async def _report_problem(self, message: str, again: float) -> None:
        if message == self._told:
            return
        await self._store.put_problem(PROBLEM_SOURCE, PlanProblem(time.time(), message, again) if message else None)
        self._told = message


def describe_step(step: Step) -> str:
    """Describe a step in words."""
    match step:
        case StartWorkload(wanted):
            return f"start {wanted.replicas} of {wanted.kind}"
        case ScaleWorkload(running, wanted) if running.replicas == wanted.replicas:
            return f"{running.kind}: still {wanted.replicas} at epoch {wanted.epoch}"
        case ScaleWorkload(running, wanted):
            return f"{running.kind}: {running.replicas} become {wanted.replicas}"
        case ReplaceWorkload(running, wanted):
            return f"replace the executors of {running.kind}: {wanted.replicas} of another template"
        case StopWorkload(running):
            return f"stop {running.replicas} of {running.kind}"
