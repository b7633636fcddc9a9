"""Traffic of one request between executors, over bus and arena."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import httpx
import msgspec

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk
from tests.e2e.system import System
from tests.e2e.watch import Watch


class Edge(NamedTuple):
    """A chunk between executors, by options."""

    producer: str
    consumer: str
    output: str


class TransferTraffic(NamedTuple):
    """Traffic of one request.

    It contains edges, blocks given out by arenas (without copies of other nodes' blocks), and blocks named in messages.
    """

    edges: set[Edge]
    granted: int
    named: int


async def measure_traffic(system: System, request: Callable[[], Awaitable[httpx.Response]]) -> TransferTraffic:
    async with Watch.on(system) as watch:
        before = await _count_granted(system)
        answer = await request()
        id = answer.headers["x-request-id"]
        await watch.end(id)
        await system.ledger_is_empty()
        granted_count = await _count_granted(system) - before
    invocation = graph.decode_invocation((await system.record(id))[0])
    options = dict(zip(invocation.route, invocation.options, strict=True))
    edges = {
        Edge(invocation.options[chunk.node], options[delivery.subject.split(".")[2]], chunk.output)
        for delivery in watch.seen
        if delivery.subject.startswith(f"{subjects.ROOT}.edge.")
        for chunk in messages.decode_edges(delivery.data)
        if isinstance(chunk, Chunk) and chunk.inv == id
    }
    bodies = [msgspec.json.decode(one.data) for one in watch.seen if one.data.startswith(b"{")]
    return TransferTraffic(
        edges, granted_count, len(set(find_handles([_filter_messages(id, body) for body in bodies])))
    )


async def _count_granted(system: System) -> int:
    """Blocks that all arenas have given out for tensors made there."""
    count = 0
    for node in range(system.node_count):
        async with system.tensors(node) as tensors:
            stats = await tensors.stats()
            count += stats["granted_total"] - stats.get("mirrors_total", 0)
    return count


def _filter_messages(id: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages of ``body`` about invocation ``id``; a batch may contain others."""
    return [each for each in body.get("msgs", [body]) if id in (each.get("inv"), each.get("id"))]


def find_handles(value: Any) -> Iterator[tuple[int, int]]:
    """Block names anywhere in a message."""
    if isinstance(value, dict) and "generation" in value:
        yield value["id"], value["generation"]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from find_handles(each)
