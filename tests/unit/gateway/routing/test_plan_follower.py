"""A gateway follows the plan of its store: each new epoch, even after the store lost all its data."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.bus import Delivery, subjects
from omnibus.bus.memory import MemoryBus
from omnibus.bus.messages import GatewayStatus
from omnibus.plan import Plan
from omnibus.service import until_cancelled
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.plan_follower import PlanFollower
from omnibus_gateway.routing.router import Router

PATIENCE_SECONDS = 30.0


class Followed:
    """A router that follows a store, and its statuses on the bus."""

    def __init__(self, store: Store, bus: MemoryBus) -> None:
        self.store = store
        self.router = Router("g1", ExecutorTable())
        self.follower = PlanFollower(self.router, store, bus, "node-a")
        self.statuses: list[GatewayStatus] = []

    async def until(self, epoch: int, created: float) -> None:
        """Wait until the plan made at ``created`` is in force and announced."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (self.router.plan is None) or (self.router.plan.epoch, self.router.plan.created) != (epoch, created):
                await asyncio.sleep(0.01)
            while not self.statuses or self.statuses[-1].epoch != epoch or self.statuses[-1].created != created:
                await asyncio.sleep(0.01)


@pytest.fixture
async def followed(valkey_url: str) -> AsyncIterator[Followed]:
    bus, store = MemoryBus(), Store(StoreSettings(url=valkey_url))
    made = Followed(store, bus)

    def keep(message: Delivery) -> None:
        made.statuses.append(msgspec.json.decode(message.data, type=GatewayStatus))

    await bus.subscribe(subjects.event_subject(subjects.GATEWAY), keep)
    following = asyncio.create_task(made.follower.follow_plans())
    yield made
    await until_cancelled(following)
    await store.close()


def plan(epoch: int, created: float) -> Plan:
    return Plan(epoch, epoch - 1, created, {})


async def test_each_epoch_is_used_and_announced_and_that_of_an_empty_store_by_its_time(
    followed: Followed, valkey_url: str
):
    async with asyncio.timeout(PATIENCE_SECONDS):
        await followed.follower.read.wait()
    followed.follower.announce_status("ready")
    assert (followed.router.plan, followed.statuses) == (None, []), "there is no plan yet"

    await followed.store.swap_plan(plan(1, 1000.0))
    await followed.until(1, 1000.0)
    await followed.store.swap_plan(plan(2, 2000.0))
    await followed.until(2, 2000.0)

    async with redis.Redis.from_url(valkey_url) as client:
        await client.flushall()
    await followed.store.swap_plan(plan(1, 3000.0))
    await followed.until(1, 3000.0)

    followed.follower.announce_status("gone")
    await asyncio.sleep(0)
    assert [(each.state, each.node) for each in followed.statuses[-2:]] == [("ready", "node-a"), ("gone", "node-a")]
