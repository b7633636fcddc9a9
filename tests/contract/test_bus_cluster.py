"""Three NATS servers, as in docs/nodes.md: losing one under load loses no data."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus
from omnibus.errors import BusUnavailable, DeadlineExceeded, Fatal, NotFound
from omnibus.settings import BusSettings
from omnibus.task import CompositeTask
from tests.contract import clusters
from tests.property.estate import GraphSystem, start_graph_system
from tests.unit.bus.servers import Owned, run_owned_server
from tests.unit.sidecar.node import wait_until
from tests.unit.task.tasks import ADD, ONE, TWO, AddInput, NumberInput

#: Seconds that a killed server is away.
AWAY_SECONDS = 2.5
#: Seconds that an election may take on a busy machine.
ELECTION_SECONDS = 30.0
SUBJECT = subjects.record_subject("chat", "i")


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[Owned]]:
    async with clusters.running_all(clusters.prepare_cluster(tmp_path)) as processes:
        yield processes


def settings_of(servers: list[Owned], replicas: int = 3) -> BusSettings:
    return BusSettings(url=clusters.join_urls([each.server for each in servers]), replicas=replicas)


class Sums(CompositeTask):
    """Over three executors: double a number, and add the results."""

    async def invoke(self, x: int) -> Any:
        first, second = ONE.invoke(NumberInput(x=x)), TWO.invoke(NumberInput(x=x))
        return ADD.invoke(AddInput(items=[first.y, second.y])).n


async def keep_asking(there: GraphSystem, stop: asyncio.Event) -> int:
    """Send requests one after another as one client; return the count.

    Each request must get its answer.
    """
    count = 0
    while not stop.is_set():
        async with there.request():
            assert await (await Sums()(count)) == 2 * count + 2 * 2 * count
        count += 1
        await asyncio.sleep(0.05)  # a request is always under way, and the processor is not busy with them alone
    return count


class RecordClient:
    """Records of a separate client, all of which must be stored."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus
        self._bodies = set[bytes]()

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._bodies.add(body := b"%d" % len(self._bodies))
            self._bus.publish_record(SUBJECT, body, f"id-{len(self._bodies)}")

    async def wait_until_kept(self) -> None:
        async with asyncio.timeout(ELECTION_SECONDS):
            while await self._read_bodies() != self._bodies:
                await asyncio.sleep(0.1)
        assert self._bus.records_lost == 0

    async def _read_bodies(self) -> set[bytes]:
        with suppress(BusUnavailable):  # a leader is being elected
            return {record.data for record in await self._bus.read_records(SUBJECT)}
        return set()


async def test_nothing_is_lost_whichever_server_is_killed(servers: list[Owned], tmp_path: Path):
    bus = await NatsBus.connect(settings_of(servers), "test")
    await bus.open_records(600.0, 1 << 30)  # as the gateway does
    record_client = RecordClient(bus)
    async with start_graph_system(settings_of(servers).url, tmp_path, replicas=3) as there:
        stop = asyncio.Event()
        clients = [asyncio.create_task(keep_asking(there, stop)) for _ in range(2)]
        for server in servers:
            record_client.publish(20)
            server.kill()
            record_client.publish(20)
            await asyncio.sleep(AWAY_SECONDS)
            await record_client.wait_until_kept()
            await server.start()
            record_client.publish(20)
            await record_client.wait_until_kept()
        stop.set()

        assert min(await asyncio.gather(*clients)) > 0
        await there.ready()
        await there.settled()
    await bus.drain()


async def test_only_a_lost_connection_comes_back(servers: list[Owned]):
    """Subscriptions move with their connection; those at other servers are undisturbed."""
    bodies: list[bytes] = []
    buses = [await NatsBus.connect(BusSettings(url=each.server.url), "test") for each in servers]
    for bus in buses:
        await bus.subscribe("a.b", lambda delivery: bodies.append(delivery.data))

    servers[0].kill()
    await wait_until(lambda: buses[0].reconnects == 1 and buses[0].connected)

    async def all_hear() -> bool:
        bodies.clear()
        buses[1].publish("a.b", b"x")
        await asyncio.sleep(0.1)
        return len(bodies) == len(buses)

    await wait_until(all_hear)
    assert [bus.reconnects for bus in buses] == [1, 0, 0]
    for bus in buses:
        await bus.drain()


async def test_the_user_of_one_url_is_that_of_all_servers(tmp_path: Path):
    """A service discovers the other servers from one, and connects to them."""
    infra_servers = clusters.prepare_cluster(tmp_path, 'authorization { user: gateway, password: "a-word" }')
    async with clusters.running_all(infra_servers) as servers:
        bus = await NatsBus.connect(BusSettings(url=infra_servers[0].url.replace("//", "//gateway:a-word@")), "test")
        await wait_until(lambda: len(bus._nc.servers) >= len(servers))

        servers[0].kill()

        await wait_until(lambda: bus.reconnects == 1 and bus.connected)
        await bus.drain()


async def test_more_replicas_than_servers_are_refused_with_advice(servers: list[Owned], nats_url: str):
    for settings in (settings_of(servers, replicas=5), BusSettings(url=nats_url, replicas=3)):
        bus = await NatsBus.connect(settings, "test")

        with pytest.raises(
            Fatal, match=rf"not enough NATS servers .* {settings.replicas} replicas .* OMNIBUS_BUS_REPLICAS"
        ):
            await bus.open_records(60.0, 1 << 20)
        await bus.drain()


async def test_a_leaf_node_serves_as_its_cluster_does(servers: list[Owned], tmp_path: Path):
    leaf = clusters.prepare_leaf(tmp_path, [each.server for each in servers])
    async with run_owned_server(leaf, without="-js"), AsyncExitStack() as stack:
        here = await NatsBus.connect(BusSettings(url=leaf.url, replicas=3), "here")
        there = await NatsBus.connect(BusSettings(url=servers[2].server.url), "there")
        stack.push_async_callback(here.drain)
        stack.push_async_callback(there.drain)

        async def echo_delivery(delivery: Delivery) -> AsyncIterator[bytes]:
            yield delivery.data

        await there.add_responder("omnibus.task.echo", echo_delivery)

        async def is_answered() -> bool:
            # Not known at the leaf yet, or lost with the server that it was on its way through.
            with suppress(NotFound, DeadlineExceeded):
                return await here.request("omnibus.task.echo", b"over", 5.0) == b"over"
            return False

        await wait_until(is_answered)
        await here.open_records(60.0, 1 << 20)
        here.publish_record(SUBJECT, b"kept", "id")

        async def is_stored() -> bool:
            return [record.data for record in await there.read_records(SUBJECT)] == [b"kept"]

        await wait_until(is_stored)
        servers[0].kill()  # the leaf node's way to the cluster, perhaps: it has another one
        await wait_until(is_answered)
