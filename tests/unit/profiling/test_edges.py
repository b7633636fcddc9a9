"""Transfers between components during a measurement: bytes, and rows of growing tensors."""

import asyncio
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.bus.messages import Chunk, InvocationEnd, encode, join_frames
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation, call_digest
from omnibus.profiling.monitor import EdgeRecorder
from omnibus.settings import BusSettings
from tests.memory_bus import MemoryBus

KIND = "thinker+talker+vocoder"


def make_invocation(id: str) -> Invocation:
    nodes = tuple(
        GraphNode(part, part, {}, call_digest(part, {}), uses)
        for part, uses in (("thinker", ()), ("talker", ((0, "rows"),)), ("vocoder", ((1, "codes"),)))
    )
    about: dict[str, Any] = {"app": "chat", "model": "m", "type": KIND, "path": "", "epoch": 1, "seed": 1}
    times: dict[str, Any] = {"created": 1.0, "deadline": 2.0, "reply": "omnibus.reply.g"}
    route = ("Th-0", "Ta-0", "V-0")
    return Invocation(WIRE_VERSION, id, **about, **times, nodes=nodes, outputs=(), options=route, route=route)


def publish_edge(bus: MemoryBus, executor: str, *chunks: Chunk) -> None:
    for frame in join_frames([encode(chunk) for chunk in chunks], 1 << 16):
        bus.publish(f"{subjects.ROOT}.edge.{executor}", frame)


async def test_rows_and_codes_are_counted_with_the_largest_message_of_requests_that_end_well():
    bus = MemoryBus(BusSettings())
    recorder = EdgeRecorder("m", KIND)
    await recorder.listen(bus)
    for id, status in (("i-1", "done"), ("i-2", "done"), ("i-3", "failed")):
        bus.publish(f"{subjects.ROOT}.task.think.Th-0", graph.encode_invocation(make_invocation(id)))
        sizes = (7, 8, 2) if id == "i-1" else (8, 8, 5)
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        publish_edge(bus, "Ta-0", *(
            Chunk(id, 0, "rows", seq, rows=(end - size, end)) for seq, (size, end) in enumerate(zip(sizes, ends, strict=True))
        ))  # fmt: skip
        publish_edge(
            bus, "V-0", Chunk(id, 1, "codes", 0, data={"codes": [1] * 12}), Chunk(id, 1, "codes", 1, last=True)
        )
        end = InvocationEnd(id, status)
        bus.publish(f"{subjects.ROOT}.end.{id}", encode(end))
    await asyncio.sleep(0)

    assert recorder.mean_rows() == {
        ("thinker", "talker"): (pytest.approx(19.0), pytest.approx(8.0)),
        ("talker", "vocoder"): (pytest.approx(12.0), pytest.approx(12.0)),
    }
    await recorder.close()
    await bus.drain()


async def test_an_end_that_comes_after_its_answer_is_waited_for():
    bus = MemoryBus(BusSettings())
    recorder = EdgeRecorder("m", KIND)
    await recorder.listen(bus)
    for id in ("i-1", "i-2"):
        bus.publish(f"{subjects.ROOT}.task.think.Th-0", graph.encode_invocation(make_invocation(id)))
    waiting = asyncio.create_task(recorder.wait_until_done(2, 60.0))
    for id in ("i-1", "i-2"):
        await asyncio.sleep(0.01)
        assert not waiting.done()
        bus.publish(f"{subjects.ROOT}.end.{id}", encode(InvocationEnd(id, "done")))

    assert await waiting
    assert not await recorder.wait_until_done(3, 0.01)
    await recorder.close()
    await bus.drain()
