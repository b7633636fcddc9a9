"""The store keeps working when its primary is lost.

A primary, its replica and sentinels run as docs/nodes.md sets them up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis.asyncio as redis

from omnibus.errors import BadRequest, StoreUnavailable
from omnibus.plan import Plan
from omnibus.service import until_cancelled
from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.contract import clusters
from tests.unit.bus.servers import Owned

PASSWORD = "a,word"
#: Seconds that a failover may take on a busy machine.
FAILOVER_SECONDS = 40.0


class SentinelServers:
    """The running servers and sentinels, and a URL that names the sentinels."""

    def __init__(self, servers: list[Owned], sentinels: list[Owned]) -> None:
        self.servers = servers
        self.sentinels = sentinels
        addresses = ",".join(each.server.url for each in sentinels)
        self.url = f"redis+sentinel://:a%2Cword@{addresses}/omnibus/0"

    async def knows_all(self) -> bool:
        """Every sentinel lists the others and a replica that is current."""
        for sentinel in self.sentinels:
            async with redis.Redis(port=sentinel.server.ports[0]) as client:
                state = (await client.sentinel_masters())["omnibus"]
                replicas = await client.sentinel_slaves("omnibus")
            links = [each["master-link-status"] for each in replicas]
            if links != ["ok"] or state["num-other-sentinels"] != len(self.sentinels) - 1:
                return False
        return True


async def until_true(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(FAILOVER_SECONDS):
        while not await holds():
            await asyncio.sleep(0.1)


@pytest.fixture
async def sentinel_servers(tmp_path: Path) -> AsyncIterator[SentinelServers]:
    servers, sentinels = clusters.prepare_sentinels(tmp_path, PASSWORD)
    async with clusters.running_all(servers) as processes, clusters.running_all(sentinels) as watching:
        instance = SentinelServers(processes, watching)
        await until_true(instance.knows_all)
        yield instance


def make_plan(epoch: int) -> Plan:
    return Plan(epoch, epoch - 1, 1000.0, {})


async def test_the_store_goes_on_at_a_new_primary(sentinel_servers: SentinelServers):
    store, other = (Store(StoreSettings(url=sentinel_servers.url, secret="signed")) for _ in range(2))
    epochs: list[int] = []

    async def follow_epochs() -> None:
        async for epoch in other.epoch_changes():
            epochs.append(epoch)

    following = asyncio.create_task(follow_epochs())
    await store.stage_plan(make_plan(1), "first", 60.0)
    await store.swap_plan(make_plan(1))
    await until_true(lambda: has_epoch(epochs, 1))
    assert await store.lead_plan("first", 600.0)
    await until_true(lambda: is_at_replica(sentinel_servers, "omnibus:plan:lead"))

    sentinel_servers.servers[0].kill()
    sentinel_servers.sentinels[0].kill()  # its machine was the same

    async def is_led() -> bool:
        with suppress(StoreUnavailable):
            return not await other.lead_plan("second", 60.0)  # a function, which the new primary needs
        return False

    await until_true(is_led)
    await store.swap_plan(make_plan(2))
    await until_true(lambda: has_epoch(epochs, 2))
    assert epochs in ([1, 2], [0, 1, 2]), "no epoch came again"
    assert (await store.plan()) == make_plan(2)
    await until_cancelled(following)
    for each in (store, other):
        await each.close()


async def has_epoch(epochs: list[int], epoch: int) -> bool:
    return epoch in epochs


async def is_at_replica(sentinel_servers: SentinelServers, key: str) -> bool:
    """Return True if ``key`` survives the loss of the primary."""
    async with redis.Redis(port=sentinel_servers.servers[1].server.ports[0], password=PASSWORD) as client:
        return bool(await client.exists(key))


async def test_a_primary_that_is_demoted_is_left(sentinel_servers: SentinelServers):
    """An operator moves the primary, so open connections reach a read-only server."""
    store = Store(StoreSettings(url=sentinel_servers.url))
    await store.swap_plan(make_plan(1))
    stranger = Store(StoreSettings(url=sentinel_servers.url.replace("/omnibus/", "/others/")))
    with pytest.raises(StoreUnavailable, match=r"no store at redis\+sentinel://127.*others"):
        await stranger.epoch()
    await stranger.close()

    async with redis.Redis(port=sentinel_servers.sentinels[1].server.ports[0]) as sentinel:
        await sentinel.execute_command("SENTINEL FAILOVER", "omnibus")

    before, after = (each.server.ports[0] for each in sentinel_servers.servers)
    async with redis.Redis(port=after, password=PASSWORD) as client:
        await until_true(lambda: is_primary(client))
    async with redis.Redis(port=before, password=PASSWORD) as client:
        await client.replicaof("127.0.0.1", after)  # the sentinels take up to 10 s for it

    async def is_swapped() -> bool:
        with suppress(StoreUnavailable):
            await store.swap_plan(make_plan(2))
            return True
        return False

    await until_true(is_swapped)
    assert await store.epoch() == 2
    await store.close()


async def is_primary(client: redis.Redis) -> bool:
    return str((await client.info("replication"))["role"]) == "master"


@pytest.mark.parametrize(
    "url", ["redis+sentinel://:word@host:26379", "redis+sentinel:///omnibus/0", "redis+sentinel://host:x/omnibus"]
)
def test_a_url_that_names_no_servers_is_refused(url: str):
    with pytest.raises(BadRequest, match=r"names no servers: .*redis\+sentinel://user:password@host:26379") as error:
        Store(StoreSettings(url=url))
    assert "word@" not in str(error.value).partition(" names ")[0]
