"""Executors for arithmetic, and an office that sends them work. The bus is in-process, the sidecar real."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from omnibus import graph
from omnibus.bus import Delivery, messages, subjects
from omnibus.bus.messages import Chunk, ExecutorStatus, Hop, InvocationEnd, NodeFailed
from omnibus.bus.nats import NatsBus
from omnibus.executor.loop import Executor
from omnibus.executor.runner import Job
from omnibus.executor.status import ExecutorIdentity
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation, call_digest, find_refs
from omnibus.settings import BusSettings
from omnibus.tensors.client import TensorClient
from omnibus_sidecar.server import Sidecar
from tests.memory_bus import MemoryBus
from tests.unit.sidecar import node as nodes
from tests.unit.sidecar.node import NODE, PATIENCE

INLINE = 64  # bytes of a tensor that is sent within its message to another node
LIMIT = 64 * 1024
REPLY = subjects.reply_subject("office")
Work = Callable[[Job], Awaitable[None]]
Of = TypeVar("Of")
_number = count()


class Does:
    """A runner made from one function."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.keeps = bool(getattr(work, "keeps", False))
        self.keeps_prompts = bool(getattr(work, "keeps_prompts", False))
        self.serving = True
        self.loaded = False
        self.closed = False

    async def load(self) -> None:
        self.loaded = True

    async def run(self, job: Job) -> None:
        await self._work(job)

    async def close(self) -> None:
        self.closed = True

    def stats(self) -> dict[str, Any]:
        return {"sums": 1}


# Works


async def put_number(job: Job) -> None:
    """Put ``x`` as a tensor ``y`` of four equal numbers."""
    await job.put("y", {"n": job.inputs["x"]}, np.full(4, job.inputs["x"], np.float32))


async def put_sum(job: Job) -> None:
    """Put the sum of ``items`` (tensors) and ``more`` (a literal) as ``y``."""
    items = await job.value("items")
    total = np.sum([item.array for item in items], axis=0) + np.float32(job.inputs.get("more", 0))
    await job.put("y", {"n": float(total[0])}, total)


async def send_numbers(job: Job) -> None:
    """Send the numbers of tensor ``item`` as the stream ``said``, in JSON."""
    item = await job.value("item")
    for value in item.array:
        await job.send("said", {"n": float(value)})
    job.close("said", {"end": True})


async def wait_forever(job: Job) -> None:
    await asyncio.Event().wait()


# Documents


def task_name(component: str) -> str:
    return f"do-m-{component}"


def make_call(component: str, **inputs: Any) -> GraphNode:
    uses = tuple(dict.fromkeys(reference for value in inputs.values() for reference in find_refs(value)))
    return GraphNode(task_name(component), component, inputs, call_digest(task_name(component), inputs), uses)


def make_invocation(
    calls: list[GraphNode],
    route: list[str],
    outputs: list[tuple[int, str]],
    id: str = "",
    within: float = 60.0,
    **more: Any,
) -> Invocation:
    now = time.time()
    return Invocation(
        v=WIRE_VERSION,
        id=id or f"office-0-{next(_number):x}",
        app="sums",
        model="m",
        type="t",
        path="p",
        epoch=1,
        seed=7,
        created=now,
        deadline=now + within,
        reply=REPLY,
        nodes=tuple(calls),
        outputs=tuple(outputs),
        options=tuple("O" for _ in calls),
        route=tuple(route),
        **more,
    )


# The place


class Office:
    """A manual gateway that sends invocations and collects the replies in order."""

    def __init__(self, bus: MemoryBus | NatsBus, tensors: TensorClient) -> None:
        self.bus = bus
        self.tensors = tensors
        self.replies: list[Any] = []
        self.events: list[Any] = []  # replies and statuses in order of arrival

    async def open(self) -> None:
        await self.bus.subscribe(REPLY, self._heard)
        await self.bus.subscribe(subjects.event_subject(subjects.EXECUTOR), self._collect_status)

    def _heard(self, delivery: Delivery) -> None:
        frame_messages = messages.decode_replies(delivery.data)
        self.replies += frame_messages
        self.events += frame_messages

    def _collect_status(self, delivery: Delivery) -> None:
        self.events.append(messages.decode_status(delivery.data))

    def send(self, invocation: Invocation, *only: str) -> Invocation:
        for node, executor in zip(invocation.nodes, invocation.route, strict=True):
            if executor in (only or invocation.route):
                self.bus.publish(subjects.task_subject(node.task, executor), graph.encode_invocation(invocation))
        return invocation

    def end(self, invocation: Invocation, status: str = "cancelled", attempt: int = 0) -> None:
        end = messages.encode(InvocationEnd(invocation.id, status, attempt))
        for executor in dict.fromkeys(invocation.route):
            self.bus.publish(subjects.edge_subject(executor), next(messages.join_frames([end], LIMIT)))

    def of(self, kind: type[Of], invocation: Invocation) -> list[Of]:
        return [reply for reply in self.replies if isinstance(reply, kind) and reply.inv == invocation.id]  # type: ignore[attr-defined]

    async def until(self, kind: type[Of], invocation: Invocation, number: int = 1) -> list[Of]:
        await nodes.wait_until(lambda: len(self.of(kind, invocation)) >= number)
        return self.of(kind, invocation)

    async def done(self, invocation: Invocation) -> list[Chunk]:
        """Wait for all nodes and return the chunks received."""
        await nodes.wait_until(
            lambda: sum(hop.attempt >= 0 for hop in self.of(Hop, invocation)) >= len(invocation.nodes)
        )
        assert self.of(NodeFailed, invocation) == []
        return self.of(Chunk, invocation)

    def read(self, chunk: Chunk) -> list[float]:
        assert chunk.handle is not None
        array = self.tensors.view(chunk.handle).copy()
        self.tensors.release(chunk.handle)
        return [float(value) for value in array.reshape(-1)]


class Place:
    """One node: a bus, a sidecar, an office and the started executors."""

    def __init__(self, directory: Path, sidecar: Sidecar, office: Office) -> None:
        self.directory = directory
        self.sidecar = sidecar
        self.office = office
        self.bus = office.bus
        self.clients: list[TensorClient] = [office.tensors]
        self.executors: dict[str, Executor] = {}

    async def executor(
        self,
        id: str,
        works: dict[str, Work],
        option: str = "O",
        credits: int = 8,
        model: str = "m",
        named: Callable[[str], str] = task_name,
        origin: str = "",
    ) -> Executor:
        """Start an executor; ``named`` gives the unit task of a component."""
        tensors = await nodes.connect_client(self.directory, id)
        self.clients.append(tensors)
        tasks = {named(component): component for component in works}
        identity = ExecutorIdentity(id, model, option, NODE, tasks, credits, origin, inline=INLINE)
        runners = {component: Does(work) for component, work in works.items()}
        new_executor = self.executors[id] = Executor(identity, runners, self.bus, tensors, LIMIT)
        await new_executor.startup()
        return new_executor

    def status(self, id: str) -> ExecutorStatus:
        return self.executors[id].status()

    async def blocks(self) -> int:
        """Return the arena's block count after clients' pending messages."""
        for client in self.clients:
            await client.stats()
        return int(self.sidecar.snapshot()["blocks"])

    @property
    def granted(self) -> int:
        return int(self.sidecar.snapshot()["granted_total"])

    async def emptied(self) -> None:
        """Wait until the ledger is at zero and executors have no work."""

        async def is_empty() -> bool:
            return not await self.blocks() and not any(self.status(id).inflight for id in self.executors)

        await nodes.wait_until(is_empty)

    async def close(self) -> None:
        for executor in self.executors.values():
            await executor.drain(0.1)
        await self.bus.drain()
        for client in self.clients:
            await client.close()


@asynccontextmanager
async def open_place(
    directory: Path, within: float = PATIENCE * 2, bus: MemoryBus | NatsBus | None = None
) -> AsyncIterator[Place]:
    """Yield a node on ``bus``, drained at the end, or an in-process bus."""
    async with asyncio.timeout(within), nodes.run_sidecar(directory) as sidecar:
        office = Office(
            bus or MemoryBus(BusSettings(max_payload=LIMIT)), await nodes.connect_client(directory, "office")
        )
        await office.open()
        new_place = Place(directory, sidecar, office)
        try:
            yield new_place
        finally:
            await new_place.close()
