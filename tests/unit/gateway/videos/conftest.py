from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis


@pytest.fixture
async def raw(valkey_url: str) -> AsyncIterator[redis.Redis]:
    """A client that knows nothing of Omnibus."""
    client = redis.Redis.from_url(valkey_url)
    yield client
    await client.aclose()


@pytest.fixture
async def cleared(raw: redis.Redis) -> None:
    """The store is empty when a test begins."""
    await raw.flushall()
