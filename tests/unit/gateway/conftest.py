"""Fixtures of a gateway's internals."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.bucket import CREDENTIALS, running_bucket
from tests.unit.gateway import house as houses
from tests.unit.gateway.house import ToyGateway, start_toy_gateway
from tests.unit.gateway.world import DispatcherWorld, open_dispatcher_world


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[DispatcherWorld]:
    async with open_dispatcher_world(tmp_path) as dispatcher_world:
        yield dispatcher_world


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    """An empty store."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    store = Store(StoreSettings(url=valkey_url, prefix="test"))
    yield store
    await store.close()


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture(params=["general", "direct"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with plain chats answered directly and generally."""
    monkeypatch.setattr(houses, "SERVED_DIRECTLY", request.param == "direct")


@pytest.fixture(scope="session")
def bucket_address() -> Iterator[str]:
    with running_bucket() as url:
        yield url


@pytest.fixture
def bucket_server(bucket_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an S3 server with a bucket ``files``. Its credentials are in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return bucket_address


@pytest.fixture
def bucket(bucket_server: str, tmp_path: Path) -> dict[str, Any]:
    """Settings of gateways with a prefix of a bucket, without a directory."""
    return {
        "storage": f"s3://files/{tmp_path.name}",
        "storage_endpoint": bucket_server,
        "storage_results": True,
        "media_dir": "",
    }
