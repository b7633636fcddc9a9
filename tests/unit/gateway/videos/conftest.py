from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from tests.unit.gateway.videos.studio import Studio, open_studio


@pytest.fixture
async def redis_client(valkey_url: str) -> AsyncIterator[redis.Redis]:
    """A plain Redis client without Omnibus."""
    client = redis.Redis.from_url(valkey_url)
    yield client
    await client.aclose()


@pytest.fixture
async def empty_store(redis_client: redis.Redis) -> None:
    """Empty the store before a test."""
    await redis_client.flushall()


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, empty_store: None) -> AsyncIterator[Studio]:
    async with open_studio(tmp_path, valkey_url) as video_studio:
        yield video_studio
