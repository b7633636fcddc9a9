"""The planner service on a real store and bus: one plan per declaration, written again when it is lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from omnibus import catalog
from omnibus.bus import subjects
from omnibus.bus.messages import decode_plan_event
from omnibus.bus.nats import NatsBus
from omnibus.errors import BadRequest, BusUnavailable
from omnibus.plan import Plan
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from services.planner.service import PlannerService
from tests.unit.sidecar.node import until


class Town:
    """Where planners run: their environment, the store, and what was announced."""

    def __init__(self, store: Store, raw: redis.Redis, announced: list[int], declare: Callable[..., None]) -> None:
        self.store = store
        self.raw = raw
        self.announced = announced
        self.declare = declare

    @asynccontextmanager
    async def planner(self) -> AsyncIterator[PlannerService]:
        service = PlannerService()
        try:
            await service.startup()
            yield service
        finally:
            await service.shutdown()

    async def current(self, epoch: int) -> Plan:
        """The plan once ``epoch`` is current."""

        async def there() -> bool:
            return await self.store.epoch() == epoch

        await until(there)
        plan = await self.store.plan()
        assert plan is not None
        return plan


@pytest.fixture
async def town(nats_url: str, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    models = tmp_path / "models.json"

    def declare(share: int = 70) -> None:
        declared: dict[str, Any] = catalog.declaration("qwen2_5_vl", "/m")
        declared["paths"] = [{"options": ["E", "L"], "share": share}, {"options": ["EL"], "share": 100 - share}]
        models.write_text(json.dumps({"models": {"m": declared}}))

    declare()
    for name, value in {"BUS_URL": nats_url, "STORE_URL": valkey_url, "PLANNER_MODELS": str(models)}.items():
        monkeypatch.setenv(f"OMNIBUS_{name}", value)
    raw = redis.Redis.from_url(valkey_url)
    await raw.flushall()
    bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    announced: list[int] = []
    plan = subjects.event(subjects.PLAN)
    await bus.subscribe(plan, lambda delivery: announced.append(decode_plan_event(delivery.data).epoch))
    store = Store(StoreSettings(url=valkey_url))
    yield Town(store, raw, announced, declare)
    await store.close()
    await raw.aclose()
    await bus.drain()


async def test_declarations_become_the_first_epoch_and_are_announced(town: Town):
    async with town.planner():
        plan = await town.current(1)

        assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [70, 30]
        await until(lambda: town.announced == [1])


async def test_a_planner_that_restarts_with_the_same_models_makes_no_new_epoch(town: Town):
    async with town.planner():
        first = await town.current(1)
    async with town.planner():
        await until(lambda: len(town.announced) == 2)

    assert await town.store.plan() == first


async def test_other_declarations_make_the_next_epoch(town: Town):
    async with town.planner():
        await town.current(1)
    town.declare(share=50)
    async with town.planner():
        plan = await town.current(2)

    assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [50, 50]


async def test_planners_that_start_together_agree_on_one_epoch(town: Town):
    async with town.planner(), town.planner(), town.planner():
        await town.current(1)
        await asyncio.sleep(0.1)

        assert await town.store.epoch() == 1


async def test_a_store_that_lost_everything_gets_the_plan_again_with_a_newer_epoch(town: Town):
    async with town.planner():
        await town.current(1)
        await asyncio.sleep(0.05)  # the keeper follows the store

        await town.raw.flushall()
        await town.raw.publish("omnibus:plan", "0")  # what it would see by itself within seconds

        plan = await town.current(2)
        assert [path.rate for path in plan.models["m"].types["vision+thinker"]] == [70, 30]


async def test_a_plan_is_written_as_soon_as_the_store_can_be_written_again(town: Town):
    async with town.planner():
        await town.current(1)
        await asyncio.sleep(0.05)

        await town.raw.config_set("maxmemory", "1")  # reads go on, writes are refused
        await town.raw.delete("omnibus:plan:epoch")
        await town.raw.publish("omnibus:plan", "0")
        await asyncio.sleep(0.3)
        assert await town.store.epoch() == 0
        await town.raw.config_set("maxmemory", "0")

        await town.current(2)


async def test_without_declarations_it_does_not_start(town: Town, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_PLANNER_MODELS", "")

    with pytest.raises(BadRequest, match="OMNIBUS_PLANNER_MODELS"):
        async with town.planner():
            pass


async def test_without_a_bus_it_does_not_start(town: Town, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_BUS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("OMNIBUS_BUS_CONNECT_TIMEOUT", "0.3")

    with pytest.raises(BusUnavailable):
        async with town.planner():
            pass

    assert await town.store.epoch() == 0
