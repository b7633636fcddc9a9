"""The planner service: writes the plan, announces it, and writes it again when apps change or the store lost it."""

import asyncio
import logging
import time

import msgspec

from omnibus import bus as buses
from omnibus.bus import subjects
from omnibus.bus.messages import PlanEvent
from omnibus.bus.nats import NatsBus
from omnibus.errors import BusUnavailable, ProtocolError, StoreUnavailable
from omnibus.plan import ModelPlan, Plan
from omnibus.registry import AppRecord
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, PlannerSettings, StoreSettings, load
from omnibus.store import StaleEpoch, Store
from services.planner import declare, own

log = logging.getLogger(__name__)

#: Offset of the path sequence; a constant, so that a plan's decisions can be computed by anybody.
SEED = 0
#: Seconds between two attempts to write a plan that the store did not take.
AGAIN = 0.5


class PlannerService:
    """Turns declarations and the registered apps into plan epochs."""

    def __init__(self) -> None:
        self._settings = load(PlannerSettings)
        self._store = Store(load(StoreSettings))
        self._bus: buses.Bus | None = None
        self._declared: dict[str, ModelPlan] = {}
        self._apps: dict[str, AppRecord] = {}
        self._plan: Plan | None = None
        self._stale = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self) -> None:
        self._declared = declare.plans(declare.read(self._settings.models))
        if not self._declared:
            log.info("OMNIBUS_PLANNER_MODELS declares no models: there is what apps bring")
        self._bus = await NatsBus.connect(load(BusSettings), "planner")
        self._apps = await self._store.apps()
        await self._write()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._keep(), self._follow_plan(), self._follow_apps())]
        for task in self._tasks:
            task.add_done_callback(_stopped)

    async def _write(self) -> None:
        """Write the next epoch, unless the current plan already says the same."""
        models = {**self._declared, **own.models(self._apps, self._declared)}
        while True:
            epoch = await self._store.epoch()
            current = await self._read(epoch)
            if current is not None and current.models == models:
                break
            newest = max(epoch, self._plan.epoch if self._plan else 0)
            current = Plan(epoch=newest + 1, seed=SEED, created=time.time(), models=models)
            try:
                await self._store.swap_plan(current)
            except StaleEpoch:
                continue  # another planner was faster: look at what it wrote
            break
        if self._plan is None or current.epoch != self._plan.epoch:
            self._plan = current
            self._announce(current)

    async def _read(self, epoch: int) -> Plan | None:
        """The plan of ``epoch``; None when there is none that this build can read."""
        try:
            return await self._store.plan(epoch) if epoch else None
        except ProtocolError as error:
            log.error("%s; writing a new one", error.message)
            return None

    def _announce(self, plan: Plan) -> None:
        log.info("plan epoch %d: %s", plan.epoch, ", ".join(plan.models) or "no models")
        if self._bus is None:
            return
        try:
            self._bus.publish(subjects.event(subjects.PLAN), msgspec.json.encode(PlanEvent(plan.epoch)))
        except BusUnavailable as error:  # who needs the plan follows the store as well
            log.warning("plan epoch %d is not announced: %s", plan.epoch, error.message)

    # What makes a plan stale

    async def _keep(self) -> None:
        """The one writer once the service runs."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self._write()
            except StoreUnavailable as error:  # what made the plan stale is not announced twice
                log.warning("%s", error)
                await asyncio.sleep(AGAIN)
                self._stale.set()

    async def _follow_plan(self) -> None:
        async for epoch in self._store.swaps():
            if self._plan is not None and epoch < self._plan.epoch:
                log.warning("the store lost plan epoch %d: writing it again", self._plan.epoch)
                self._stale.set()

    async def _follow_apps(self) -> None:
        async for apps in self._store.app_changes():
            if apps != self._apps:
                self._apps = apps
                self._stale.set()

    async def drain(self, seconds: float) -> None: ...

    async def shutdown(self) -> None:
        for task in self._tasks:
            await until_cancelled(task)
        if self._bus is not None:
            await self._bus.drain()
        await self._store.close()


def _stopped(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.error("this planner follows no change any more: start it again", exc_info=task.exception())
