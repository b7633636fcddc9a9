"""The planner service: writes the plan, announces it, and writes it again when the store lost it."""

import asyncio
import logging
import time

import msgspec

from omnibus import bus as buses
from omnibus.bus import subjects
from omnibus.bus.messages import PlanEvent
from omnibus.bus.nats import NatsBus
from omnibus.errors import StoreUnavailable
from omnibus.plan import ModelPlan, Plan
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, PlannerSettings, StoreSettings, load
from omnibus.store import StaleEpoch, Store
from services.planner import declare

log = logging.getLogger(__name__)

#: Offset of the path sequence; a constant, so that a plan's decisions can be computed by anybody.
SEED = 0
#: Seconds between two attempts to write a plan that the store lost.
AGAIN = 0.5


class PlannerService:
    """Turns declarations into a plan epoch."""

    def __init__(self) -> None:
        self._settings = load(PlannerSettings)
        self._store = Store(load(StoreSettings))
        self._bus: buses.Bus | None = None
        self._plan: Plan | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        declared = declare.read(self._settings.models)
        models = {name: declare.model_plan(model) for name, model in declared.items()}
        self._bus = await NatsBus.connect(load(BusSettings), "planner")
        await self._write(models)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(models))

    async def _write(self, models: dict[str, ModelPlan]) -> None:
        """Write ``models`` as the next epoch, unless the current plan already says so."""
        while True:
            current = await self._store.plan()
            if current is not None and current.models == models:
                self._plan = current
                break
            newest = max(await self._store.epoch(), self._plan.epoch if self._plan else 0)
            plan = Plan(epoch=newest + 1, seed=SEED, created=time.time(), models=models)
            try:
                await self._store.swap_plan(plan)
            except StaleEpoch:
                continue  # another planner was faster: look at what it wrote
            self._plan = plan
            break
        log.info("plan epoch %d: %s", self._plan.epoch, ", ".join(models))
        if self._bus is not None:
            event = msgspec.json.encode(PlanEvent(self._plan.epoch))
            self._bus.publish(subjects.event(subjects.PLAN), event)

    async def _keep(self, models: dict[str, ModelPlan]) -> None:
        async for epoch in self._store.swaps():
            while self._plan is not None and epoch < self._plan.epoch:
                log.warning("the store lost plan epoch %d: writing it again", self._plan.epoch)
                try:
                    await self._write(models)
                    break
                except StoreUnavailable as error:  # the same epoch is not announced twice, so stay here
                    log.warning("%s", error)
                    await asyncio.sleep(AGAIN)

    async def drain(self, seconds: float) -> None: ...

    async def shutdown(self) -> None:
        if self._keeper is not None:
            await until_cancelled(self._keeper)
        if self._bus is not None:
            await self._bus.drain()
        await self._store.close()
