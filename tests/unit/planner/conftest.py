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
from tests.unit.planner.town import Town


@pytest.fixture
async def town(nats_url: str, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    models = tmp_path / "models.json"
    settings = {"BUS_URL": nats_url, "STORE_URL": valkey_url, "PLANNER_MODELS": str(models)}
    settings["PLANNER_SIMULATE"] = "0.01"  # one round: a second one takes seconds
    for name, value in settings.items():
        monkeypatch.setenv(f"OMNIBUS_{name}", value)
    raw = redis.Redis.from_url(valkey_url)
    await raw.flushall()
    bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    announced: list[int] = []
    plan = subjects.event_subject(subjects.PLAN)
    await bus.subscribe(plan, lambda delivery: announced.append(decode_plan_event(delivery.data).epoch))
    store = Store(StoreSettings(url=valkey_url))
    town = Town(store, raw, bus, announced, models)
    town.declare()
    await town.crowd.open()
    yield town
    await town.crowd.close()
    await store.close()
    await raw.aclose()
    await bus.drain()
