"""Bytes and seconds that tensors of other nodes cost, on real sidecars."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from omnibus.bus import messages
from omnibus.bus.coalescer import Outbox
from omnibus.bus.messages import Hop
from omnibus.bus.pull_log import REQUEST_INPUT, PullLog
from omnibus.errors import NodeUnreachable
from omnibus.executor.edges import ChannelChunk
from omnibus.executor.job import LiveJob
from omnibus.executor.runner import Item
from omnibus.graph import HANDLE, REF
from omnibus.settings import BusSettings
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle
from tests.memory_bus import MemoryBus
from tests.unit.executor.arithmetic import make_call, make_invocation
from tests.unit.sidecar.node import make_deadline
from tests.unit.sidecar.peers.pair import two_nodes


def make_handle(node: str, nbytes: int, shape: tuple[int, ...]) -> Handle:
    return Handle(1, node, "arena", 0, nbytes, "float32", shape, 1, 0)


def test_pulls_add_up_by_output_and_by_the_node_that_they_came_from():
    log = PullLog("b")
    growing, whole = make_handle("a", 4000, (10, 100)), make_handle("a", 64, (4, 4))
    for rows in ((0, 4), (4, 10)):
        with log.measure_pull((1, "hidden"), growing, rows):
            pass
    with log.measure_pull(REQUEST_INPUT, whole):
        pass
    with log.measure_pull((1, "hidden"), make_handle("c", 400, (1, 100))):
        pass

    costs = log.costs()

    assert [(cost.source, cost.output, cost.from_node, cost.nbytes) for cost in costs] == [
        (-1, "", "a", 64),
        (1, "hidden", "a", 4000),
        (1, "hidden", "c", 400),
    ]
    assert {cost.to_node for cost in costs} == {"b"}
    assert all(cost.seconds >= 0 for cost in costs)


def test_a_pull_that_fails_brings_no_bytes():
    log = PullLog("b")
    with pytest.raises(NodeUnreachable), log.measure_pull((1, "hidden"), make_handle("a", 64, (16,))):
        raise NodeUnreachable("it is away", node="a")

    assert [(cost.output, cost.nbytes) for cost in log.costs()] == [("hidden", 0)]


def make_job(tensors: TensorClient, media: Handle) -> LiveJob:
    picture = {HANDLE: msgspec.to_builtins(media), "mime": "image/png"}
    request = make_invocation(
        [make_call("a"), make_call("b", item={REF: [0, "y"]}, media=picture)], ["a", "b"], [(1, "y")], id="i"
    )
    bus = MemoryBus(BusSettings())
    return LiveJob(request, 1, "b", Outbox(bus, 1 << 16), tensors)


async def test_a_node_reports_what_it_pulled(tmp_path: Path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        media = await producer.put(np.ones(300, np.uint8), invocation="i", deadline=make_deadline())
        tensor = await producer.put(np.ones(1000, np.float32), invocation="i", deadline=make_deadline())
        running = make_job(consumer, media)
        running.feed_input(0, "y", ChannelChunk(0, Item({}, None), tensor, last=True))

        await running.value("item")
        await running.value("media")
        await running.value("item")  # the second read is local
        hop = running.make_hop()

        assert [(cost[:2], cost[4]) for cost in map(msgspec.structs.astuple, hop.pulls)] == [
            ((-1, ""), 300),
            ((0, "y"), 4000),
        ]
        assert {(cost.from_node, cost.to_node) for cost in hop.pulls} == {("a", "b")}
        assert msgspec.json.decode(messages.encode(hop), type=Hop) == hop
        running.release_memory()


async def test_a_node_that_pulled_nothing_pays_no_byte_for_it(tmp_path: Path):
    async with two_nodes(tmp_path) as (a, _), await a.client() as tensors:
        media = await tensors.put(np.ones(300, np.uint8), invocation="i", deadline=make_deadline())
        running = make_job(tensors, media)

        await running.value("media")

        assert b"pulls" not in messages.encode(running.make_hop())
        running.release_memory()
