"""A gateway's inside for the tests that ask for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.unit.gateway import house as houses
from tests.unit.gateway.house import House, house
from tests.unit.gateway.world import World, world


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        yield made


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    """A store with nothing in it."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    store = Store(StoreSettings(url=valkey_url, prefix="test"))
    yield store
    await store.close()


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        yield made


@pytest.fixture(params=["general", "direct"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether plain chats are answered directly or the general way makes no difference to a test."""
    monkeypatch.setattr(houses, "SERVED_DIRECTLY", request.param == "direct")
