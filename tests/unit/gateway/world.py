"""A gateway's internals on an in-process bus, with puppets as executors. The sidecar is real."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path as File
from typing import Any

import numpy as np

from omnibus import graph
from omnibus.bus import Delivery, messages, subjects
from omnibus.bus.messages import Accepted, Chunk, ExecutorStatus, Hop, InvocationEnd
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus.settings import BusSettings
from omnibus.tensors.client import TensorClient
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router
from omnibus_sidecar.server import Sidecar
from tests.memory_bus import MemoryBus
from tests.unit.executor.arithmetic import LIMIT, make_call
from tests.unit.sidecar import node as nodes

KIND = "vision+thinker"
WORK = [10, 100]  # tokens per node
APART = Path("E>L", {"vision": "E", "thinker": "L"}, 1.0)
COMPONENTS = {"E": ("vision",), "L": ("thinker",), "EL": ("vision", "thinker")}
TOGETHER = Path("EL", {"vision": "EL", "thinker": "EL"}, 0.0)


def make_dispatch_plan(*paths: Path) -> Plan:
    options = {
        "E": DeploymentOption(("vision",), "encoder"),
        "L": DeploymentOption(("thinker",), "llm"),
        "EL": DeploymentOption(("vision", "thinker"), "llm"),
    }
    model = ModelPlan("f", "", ("vision", "thinker"), {"image": "vision"}, options, {KIND: paths or (APART, TOGETHER)})
    return Plan(1, 0, 1000.0, {"m": model})


class Puppet:
    """A scripted executor: it accepts its messages and sends only the replies that a test scripts."""

    def __init__(self, bus: MemoryBus, id: str, option: str) -> None:
        self.bus = bus
        self.id = id
        self.option = option
        self.taken: list[Invocation] = []
        self.ends: list[InvocationEnd] = []
        self.fed: list[Chunk] = []
        self.accepts = False  # at once
        self.node = "n1"
        self.reconnects = 0
        self._stops: list[Any] = []
        self._heart: asyncio.Task[None] | None = None

    async def live(self) -> "Puppet":
        self._stops = [
            await self.bus.subscribe(subjects.task_subject("*", self.id), self._take),
            await self.bus.subscribe(subjects.edge_subject(self.id), self._feed),
        ]
        self._heart = asyncio.get_running_loop().create_task(self._beat())
        return self

    async def _beat(self) -> None:
        while True:
            self.say()
            await asyncio.sleep(0.3)

    def say(self, state: str = "ready", **more: Any) -> None:
        more = {"reconnects": self.reconnects, **more}
        status = ExecutorStatus(self.id, "m", self.option, COMPONENTS[self.option], (), self.node, state, 8, **more)
        self.bus.publish(subjects.event_subject(subjects.EXECUTOR), messages.encode(status))

    def _take(self, delivery: Delivery) -> None:
        self.taken.append(graph.decode_invocation(delivery.data))
        if self.accepts:
            self.accept()

    def _feed(self, delivery: Delivery) -> None:
        if delivery.data:
            came = messages.decode_edges(delivery.data)
            self.ends += [message for message in came if isinstance(message, InvocationEnd)]
            self.fed += [message for message in came if isinstance(message, Chunk)]

    def freeze(self) -> None:
        """Stop all messages. The bus still delivers messages to it."""
        if self._heart is not None:
            self._heart.cancel()

    async def die(self) -> None:
        """Stop all messages and subscriptions."""
        self.freeze()
        for stop in self._stops:
            await stop()
        self._stops = []

    def reply(self, *replies: Any) -> None:
        body = next(messages.join_frames([messages.encode(reply) for reply in replies], LIMIT))
        self.bus.publish(self.taken[-1].reply, body)

    @property
    def attempt(self) -> int:
        return self.taken[-1].attempt

    def accept(self) -> None:
        self.reply(Accepted(self.taken[-1].id, self.id, self.attempt))

    def hop(self, node: int) -> Hop:
        now = time.time()
        return Hop(self.taken[-1].id, node, self.id, now, now, now, now, self.attempt)

    def chunk(self, seq: int, text: str = "", last: bool = False, node: int = 1, **more: Any) -> Chunk:
        data = {"text": text} if text else {}
        return Chunk(self.taken[-1].id, node, "said", seq, self.attempt, data, last=last, empty=not text, **more)


class DispatcherWorld:
    """Members, router and dispatcher; ``ends`` lists the published ends.

    Of two equal executors this gateway takes the first one first.
    """

    def __init__(self, bus: MemoryBus, sidecar: Sidecar, tensors: TensorClient, directory: File) -> None:
        self.bus = bus
        self.sidecar = sidecar
        self.tensors = tensors
        self.directory = directory
        self.members = ExecutorTable()
        self.router = Router("g", self.members)
        self.router.plan = make_dispatch_plan()
        self.dispatcher = Dispatcher("g", bus, tensors, self.members, LIMIT, quarantine=600.0)
        self.puppets: dict[str, Puppet] = {}
        self.ends: list[InvocationEnd] = []

    async def open(self) -> None:
        await self.bus.subscribe(
            subjects.end_subject("*"), lambda delivery: self.ends.append(messages.decode_end(delivery.data))
        )
        await self.dispatcher.startup()

    async def puppet(self, id: str, option: str) -> Puppet:
        new_puppet = self.puppets[id] = await Puppet(self.bus, id, option).live()
        await nodes.wait_until(lambda: self.members.get(id) is not None)
        return new_puppet

    async def puppets_of(self, **options: str) -> list[Puppet]:
        return [await self.puppet(id, option) for id, option in options.items()]

    def submit(self, within: float = 60.0, routing: Mapping[str, Any] = {}, **more: Any) -> InflightInvocation:
        """Submit a request of two nodes on the planned path. ``routing`` contains other arguments of the router."""
        return self.run(
            make_call("vision", x=1),
            make_call("thinker", item=graph.make_ref(0, "y"), **more),
            within=within,
            **routing,
        )

    def run(self, *calls: GraphNode, within: float = 60.0, **asked: Any) -> InflightInvocation:
        """Submit a request of ``calls``, the last of which answers."""
        assignment = self.router.assign(calls, "m")
        ticket = self.router.issue_ticket(assignment.model, assignment.kind)
        choose = partial(self.router.route, assignment, ticket, **asked)
        route = choose()
        now = time.time()
        return self.dispatcher.submit(
            Invocation(
                v=WIRE_VERSION, id=ticket.id, app="chat", model="m", type=assignment.kind, path=route.path, epoch=1, seed=7,
                created=now, deadline=now + within, reply=self.dispatcher.reply, nodes=assignment.nodes, outputs=((len(calls) - 1, "said"),),
                options=route.options, route=route.executors,
            ),
            WORK[-len(calls) :],
            choose,
        )  # fmt: skip

    async def sent(self, puppet: Puppet, count: int = 1) -> Invocation:
        """Return the ``count``th invocation that reached ``puppet``."""
        await nodes.wait_until(lambda: len(puppet.taken) >= count)
        return puppet.taken[count - 1]

    async def turn(self) -> None:
        """Run the loop until all messages and their consequences are delivered."""
        for _ in range(6):
            await asyncio.sleep(0)

    def outstanding(self) -> dict[str, int]:
        members = {id: self.members.get(id) for id in self.puppets}
        return {id: member.outstanding for id, member in members.items() if member is not None}

    async def put(self, invocation: str, *values: float) -> Any:
        """Return a handle of float32 samples, as sent by an executor."""
        samples = np.array(values, np.float32)
        return await self.tensors.put(samples, invocation=invocation, deadline=time.time() + 60)

    async def blocks(self) -> int:
        await self.tensors.stats()
        return int(self.sidecar.snapshot()["blocks"])

    async def close(self) -> None:
        for puppet in self.puppets.values():
            await puppet.die()
        await self.dispatcher.shutdown()
        await self.bus.drain()
        await self.tensors.close()


@asynccontextmanager
async def open_dispatcher_world(directory: File, limit: int = LIMIT) -> AsyncIterator[DispatcherWorld]:
    async with asyncio.timeout(nodes.PATIENCE * 2), nodes.run_sidecar(directory) as sidecar:
        bus = MemoryBus(BusSettings(max_payload=limit))
        new_world = DispatcherWorld(bus, sidecar, await nodes.connect_client(directory, "gateway"), directory)
        await new_world.open()
        try:
            yield new_world
        finally:
            await new_world.close()


def take_texts(running: InflightInvocation) -> list[str]:
    """Return the texts that are ready, or raise the answer's error."""
    return [item.data["text"] for item in running.streams[1, "said"].take_ready()]


async def finish_work(
    there: DispatcherWorld, running: InflightInvocation, vision: Puppet, thinker: Puppet, *words: str
) -> list[str]:
    """Complete the work of both executors and return the client's text."""
    await there.sent(thinker)
    vision.reply(vision.hop(0))
    chunks = [thinker.chunk(seq, word) for seq, word in enumerate(words)]
    thinker.reply(*chunks, thinker.chunk(len(words), last=True), thinker.hop(1))
    await there.turn()
    answer_texts = take_texts(running)
    there.dispatcher.finish(running, "done")
    return answer_texts
