"""Servers of the highly available layer.

They are three NATS servers, a Valkey primary with its replica, and three sentinels.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import redis.asyncio as redis

from tests.contract import clusters
from tests.unit.bus.servers import Owned

PASSWORD = "a-word"
_AGREED_SECONDS = 60.0


class Servers:
    """Running servers by name; services use ``bus_url`` and ``store_url``."""

    def __init__(self, nats: list[Owned], valkeys: list[Owned], sentinels: list[Owned]) -> None:
        self._valkeys = valkeys
        self._sentinels = sentinels
        self.by_name = {
            **{f"nats-{index}": each for index, each in enumerate(nats)},
            **{f"valkey-{index}": each for index, each in enumerate(valkeys)},
            **{f"sentinel-{index}": each for index, each in enumerate(sentinels)},
        }
        self.bus_url = clusters.join_urls([each.server for each in nats])
        addresses = ",".join(each.server.url for each in sentinels)
        self.store_url = f"redis+sentinel://:{PASSWORD}@{addresses}/omnibus/0"

    async def wait_agreed(self) -> None:
        """Wait until every sentinel lists the others and a current replica."""
        async with asyncio.timeout(_AGREED_SECONDS):
            while not await self._is_agreed():
                await asyncio.sleep(0.1)

    async def _is_agreed(self) -> bool:
        for sentinel in self._sentinels:
            async with redis.Redis(port=sentinel.server.ports[0]) as client:
                state = (await client.sentinel_masters())["omnibus"]
                links = [each["master-link-status"] for each in await client.sentinel_slaves("omnibus")]
            up = not state["is_sdown"] and not state["is_odown"]
            if links != ["ok"] or not up or state["num-other-sentinels"] != len(self._sentinels) - 1:
                return False
        return True

    async def primary_name(self) -> str:
        """Name of the server that accepts writes."""
        for name, each in self.by_name.items():
            if name.startswith("valkey"):
                async with redis.Redis(port=each.server.ports[0], password=PASSWORD) as client:
                    if (await client.info("replication"))["role"] == "master":
                        return name
        raise AssertionError("no primary")


@contextlib.asynccontextmanager
async def running_servers(directory: Path) -> AsyncIterator[Servers]:
    """Start all servers, and wait until they agree on their roles."""
    valkeys, sentinels = clusters.prepare_sentinels(directory, PASSWORD, quick=False, durable=True)
    async with (
        clusters.running_all(clusters.prepare_cluster(directory)) as nats,
        clusters.running_all(valkeys) as stores,
        clusters.running_all(sentinels) as watching,
    ):
        servers = Servers(nats, stores, watching)
        await servers.wait_agreed()
        yield servers
