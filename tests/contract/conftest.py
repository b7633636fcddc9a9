"""Every kind of bus, and an empty store."""

from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis

from omnibus.bus import Bus
from omnibus.bus.nats import NatsBus
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store, connection
from tests.contract.buses import LIMIT
from tests.memory_bus import MemoryBus


@pytest.fixture(params=["memory", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("nats_url") if request.param == "nats" else ""


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    settings = BusSettings(url=url, max_payload=LIMIT)
    new_bus: Bus = await NatsBus.connect(settings, "test") if url else MemoryBus(settings)
    yield new_bus
    await new_bus.drain()


@pytest.fixture
async def raw(valkey_url: str) -> AsyncIterator[redis.Redis]:
    """A client without any code of Omnibus; the server is empty when a test begins."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.function_flush()
    yield client
    await client.aclose()


@pytest.fixture
async def store(valkey_url: str, raw: redis.Redis) -> AsyncIterator[Store]:
    new_store = Store(StoreSettings(url=valkey_url, prefix="test"))
    yield new_store
    await new_store.close()


@pytest.fixture
def announced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see changes by announcement only: their next poll is after the test."""
    monkeypatch.setattr(connection, "REREAD_SECONDS", 600.0)
