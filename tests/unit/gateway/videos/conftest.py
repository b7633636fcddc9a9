import pytest
import redis.asyncio as redis


@pytest.fixture
async def cleared(valkey_url: str) -> None:
    """The store is empty when a test begins."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
