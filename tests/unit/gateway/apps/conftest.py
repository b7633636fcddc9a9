"""Fixtures of gateways with apps."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from tests.unit.gateway.apps.estate import Estate, Gateway, estate
from tests.unit.gateway.apps.forked_workers import fork_workers
from tests.unit.sidecar.node import until

#: Files with workers started as in production, since they test the process and its restrictions.
_STARTED = ("test_worker_supervisor", "test_uploads")


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers with modules already imported, see ``forked_workers``."""
    if request.path.stem not in _STARTED:
        fork_workers(monkeypatch)


@pytest.fixture
async def land(tmp_path: Path, valkey_url: str) -> AsyncIterator[Estate]:
    """An empty store and no gateway yet."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    async with estate(tmp_path, valkey_url) as made:
        yield made


@pytest.fixture
async def gate(land: Estate) -> Gateway:
    """One gateway that has read the registered apps."""
    made = land.gateway()
    await until(lambda: not made.apps.registry.starting_apps)
    return made
