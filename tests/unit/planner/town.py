"""The planners' environment: a real store and bus, and executors that follow the plans."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import redis.asyncio as redis

from omnibus.bus.nats import NatsBus
from omnibus.families import catalog
from omnibus.plan import Plan
from omnibus.store import Store
from omnibus_planner.service import PlannerService
from tests.unit.planner.crowd import ExecutorCrowd
from tests.unit.sidecar.node import wait_until


class PlannerSystem:
    """The planners' environment, the store, the executors, and the announcements."""

    def __init__(self, store: Store, raw: redis.Redis, bus: NatsBus, epochs: list[int], models: Path) -> None:
        self.store = store
        self.raw = raw
        self.bus = bus
        self.announced = epochs
        self.crowd = ExecutorCrowd(store, bus)
        self.models = models
        self.planners: list[PlannerService] = []

    def declare(self, *paths: list[str], share: int = 70, **changes: Any) -> None:
        """Write the declarations: the usual deployment, or these paths, and other ``changes``."""
        usual = [{"options": ["E", "L"], "share": share}, {"options": ["EL"], "share": 100 - share}]
        declaration = {**catalog.model_declaration("qwen2_5_vl", "/m"), "paths": usual, **changes}
        if paths:
            option_names = {option for path in paths for option in path}
            declaration["options"] = {
                name: option for name, option in declaration["options"].items() if name in option_names
            }
            declaration["paths"] = [{"options": path, "share": 1} for path in paths]
        self.models.write_text(json.dumps({"models": {"m": declaration}}))

    @asynccontextmanager
    async def planner(self) -> AsyncIterator[PlannerService]:
        service = PlannerService()
        try:
            await service.startup()
            self.planners.append(service)
            yield service
        finally:
            self.planners = [each for each in self.planners if each is not service]
            await service.shutdown()

    async def current(self, epoch: int) -> Plan:
        """Return the plan once ``epoch`` is current."""

        async def is_current() -> bool:
            return await self.store.epoch() == epoch

        await wait_until(is_current)
        plan = await self.store.plan()
        assert plan is not None
        return plan

    async def wait_until_known(self, epoch: int) -> Plan:
        """Return the plan once ``epoch`` is current and read by all planners.

        If the store loses it after that, a planner rewrites it.
        """
        plan = await self.current(epoch)
        changes = [each._changes for each in self.planners]
        await wait_until(lambda: all(each.plan is not None and each.plan.epoch == epoch for each in changes))
        return plan

    async def staged(self, but: int = 0) -> Plan:
        """Return the staged plan once it has another epoch than ``but``."""

        async def is_staged() -> bool:
            return (await self.store.plan_state()).staged not in (0, but)

        await wait_until(is_staged)
        plan = await self.store.staged_plan()
        assert plan is not None
        return plan

    async def wait_until_settled(self) -> None:
        """Wait until no plan is staged."""

        async def is_settled() -> bool:
            return not (await self.store.plan_state()).staged

        await wait_until(is_settled)

    async def until(self, holds: Callable[[Plan], bool]) -> Plan:
        """Return the first plan for which ``holds`` is true."""
        plans: list[Plan] = []

        async def plan_holds() -> bool:
            plan = await self.store.plan()
            plans[:] = [plan] if plan is not None and holds(plan) else []
            return bool(plans)

        await wait_until(plan_holds)
        return plans[0]
