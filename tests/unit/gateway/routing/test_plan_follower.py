"""A gateway follows the plan of its store: each new epoch, even after the store lost all its data."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.bus import Delivery, subjects
from omnibus.bus.messages import GatewayStatus
from omnibus.plan import Plan
from omnibus.service import until_cancelled
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.plan_follower import PlanFollower
from omnibus_gateway.routing.router import Router
from tests.memory_bus import MemoryBus

PATIENCE_SECONDS = 30.0


class Followed:
    """A router that follows a store, and its statuses on the bus."""

    def __init__(self, store: Store, bus: MemoryBus) -> None:
        self.store = store
        self.router = Router("g1", ExecutorTable())
        self.follower = PlanFollower(self.router, store, bus, "node-a")
        self.statuses: list[GatewayStatus] = []

    async def wait_for_plan(self, epoch: int, creation_time: float) -> None:
        """Wait until the plan made at ``creation_time`` is in force and announced."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (self.router.plan is None) or (self.router.plan.epoch, self.router.plan.created) != (
                epoch,
                creation_time,
            ):
                await asyncio.sleep(0.01)
            while not self.statuses or self.statuses[-1].epoch != epoch or self.statuses[-1].created != creation_time:
                await asyncio.sleep(0.01)


@pytest.fixture
async def plan_setup(valkey_url: str) -> AsyncIterator[Followed]:
    bus, store = MemoryBus(), Store(StoreSettings(url=valkey_url))
    setup = Followed(store, bus)

    def record_status(message: Delivery) -> None:
        setup.statuses.append(msgspec.json.decode(message.data, type=GatewayStatus))

    await bus.subscribe(subjects.event_subject(subjects.GATEWAY), record_status)
    following = asyncio.create_task(setup.follower.follow_plans())
    yield setup
    await until_cancelled(following)
    await store.close()


def make_plan(epoch: int, creation_time: float) -> Plan:
    return Plan(epoch, epoch - 1, creation_time, {})


async def test_each_epoch_is_used_and_announced_and_that_of_an_empty_store_by_its_time(
    plan_setup: Followed, valkey_url: str
):
    async with asyncio.timeout(PATIENCE_SECONDS):
        await plan_setup.follower.read.wait()
    plan_setup.follower.announce_status("ready")
    assert (plan_setup.router.plan, plan_setup.statuses) == (None, []), "there is no plan yet"

    await plan_setup.store.swap_plan(make_plan(1, 1000.0))
    await plan_setup.wait_for_plan(1, 1000.0)
    await plan_setup.store.swap_plan(make_plan(2, 2000.0))
    await plan_setup.wait_for_plan(2, 2000.0)

    async with redis.Redis.from_url(valkey_url) as client:
        await client.flushall()
    await plan_setup.store.swap_plan(make_plan(1, 3000.0))
    await plan_setup.wait_for_plan(1, 3000.0)

    plan_setup.follower.announce_status("gone")
    await asyncio.sleep(0)
    assert [(each.state, each.node) for each in plan_setup.statuses[-2:]] == [("ready", "node-a"), ("gone", "node-a")]
