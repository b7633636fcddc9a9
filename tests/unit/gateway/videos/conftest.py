from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from tests.unit.gateway.videos.studio import Studio, studio


@pytest.fixture
async def raw(valkey_url: str) -> AsyncIterator[redis.Redis]:
    """A plain Redis client without Omnibus."""
    client = redis.Redis.from_url(valkey_url)
    yield client
    await client.aclose()


@pytest.fixture
async def cleared(raw: redis.Redis) -> None:
    """Empty the store before a test."""
    await raw.flushall()


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, cleared: None) -> AsyncIterator[Studio]:
    async with studio(tmp_path, valkey_url) as made:
        yield made
