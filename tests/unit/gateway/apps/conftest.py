"""Fixtures of gateways with apps."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from tests.unit.gateway.apps.estate import AppCluster, AppGateway, start_app_cluster
from tests.unit.gateway.apps.forked_workers import fork_workers
from tests.unit.sidecar.node import wait_until

#: Files with workers started as in production, since they test the process and its restrictions.
_STARTED = ("test_worker_supervisor", "test_uploads")


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers with modules already imported, see ``forked_workers``."""
    if request.path.stem not in _STARTED:
        fork_workers(monkeypatch)


@pytest.fixture
async def cluster(tmp_path: Path, valkey_url: str) -> AsyncIterator[AppCluster]:
    """An empty store and no gateway yet."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    async with start_app_cluster(tmp_path, valkey_url) as app_cluster:
        yield app_cluster


@pytest.fixture
async def gate(cluster: AppCluster) -> AppGateway:
    """One gateway that has read the registered apps."""
    app_gateway = cluster.gateway()
    await wait_until(lambda: not app_gateway.apps.registry.starting_apps)
    return app_gateway
