"""A town for planners."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from omnibus.bus import subjects
from omnibus.bus.messages import decode_plan_event
from omnibus.bus.nats import NatsBus
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from tests.unit.planner.town import PlannerSystem


@pytest.fixture
async def system(
    nats_url: str, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PlannerSystem]:
    models = tmp_path / "models.json"
    settings = {"BUS_URL": nats_url, "STORE_URL": valkey_url, "PLANNER_MODELS": str(models)}
    settings["PLANNER_SIMULATE"] = "0.01"  # one round: a second one takes seconds
    for name, value in settings.items():
        monkeypatch.setenv(f"OMNIBUS_{name}", value)
    raw = redis.Redis.from_url(valkey_url)
    await raw.flushall()
    bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    epochs: list[int] = []
    plan = subjects.event_subject(subjects.PLAN)
    await bus.subscribe(plan, lambda delivery: epochs.append(decode_plan_event(delivery.data).epoch))
    store = Store(StoreSettings(url=valkey_url))
    new_system = PlannerSystem(store, raw, bus, epochs, models)
    new_system.declare()
    await new_system.crowd.open()
    yield new_system
    await new_system.crowd.close()
    await store.close()
    await raw.aclose()
    await bus.drain()
