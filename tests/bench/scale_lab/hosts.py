"""Processes of the lab: each hosts many executors, many gateways, or one gateway that answers chats.

    python -m tests.bench.scale_lab.hosts executors|gateways|chat URL FIRST COUNT PER_CONNECTION

Executors, dispatchers, routers, relays and connections are those of the product. Executors have a toy engine, and those
of one process share a sidecar. A line of stdin is a command in JSON, and each gets one line as its answer.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from omnibus.bus import subjects
from omnibus.bus.census import Census
from omnibus.bus.nats import NatsBus
from omnibus.cluster.digests import HeartbeatRelay
from omnibus.cluster.presence import ReadyExecutors, follow_events
from omnibus.executor.loop import Executor
from omnibus.executor.status import ExecutorIdentity
from omnibus.families import catalog
from omnibus.plan import ModelPlan, Plan
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.plan_follower import PlanFollower
from omnibus_gateway.routing.router import Router
from omnibus_planner.declared import declarations_file
from tests.unit.executor.arithmetic import LIMIT, Does
from tests.unit.gateway.house import HEARS, TEXT, build_chat_body, start_toy_gateway, write_chat_words
from tests.unit.gateway.wires import build_post, open_doorway
from tests.unit.sidecar import node as nodes

#: Executors on each node of the lab.
PER_NODE = 8
_GATEWAY_HEARTBEAT_SECONDS = 2.0
_STARTS_AT_ONCE = 16
_READY_WITHIN = 300.0
_CHATS_AT_ONCE = 16

Command = Callable[[dict[str, Any]], Awaitable[Any]]


def make_model() -> ModelPlan:
    """Return a model for text with one component."""
    declared = {TEXT: {**catalog.model_declaration("qwen2", ""), **HEARS}}
    models = msgspec.convert(declared, dict[str, declarations_file.DeclaredModel])
    return declarations_file.build_static_plans(models)[TEXT]


async def _connect(stack: AsyncExitStack, url: str, name: str) -> NatsBus:
    bus = await NatsBus.connect(BusSettings(url=url), name)
    stack.push_async_callback(bus.drain)
    return bus


async def _run_concurrently(starts: list[Callable[[], Awaitable[None]]]) -> None:
    places = asyncio.Semaphore(_STARTS_AT_ONCE)

    async def run_start(start: Callable[[], Awaitable[None]]) -> None:
        async with places:
            await start()

    await asyncio.gather(*map(run_start, starts))


async def _read_cpu(_: dict[str, Any]) -> float:
    return time.process_time()


@asynccontextmanager
async def host_executors(url: str, first: int, count: int, per_connection: int) -> AsyncIterator[dict[str, Command]]:
    """Run executors ``first`` and following; ``per_connection`` of them share a connection to the bus."""
    model = make_model()
    [(option, spec)] = model.options.items()
    tasks = {model.tasks[component]: component for component in spec.components}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        await stack.enter_async_context(nodes.run_sidecar(directory))
        tensors = await nodes.connect_client(directory, "lab")
        stack.push_async_callback(tensors.close)

        async def start(numbers: range) -> None:
            bus = await _connect(stack, url, f"lab-{numbers[0]}")
            for number in numbers:
                identity = ExecutorIdentity(
                    f"lab-{number}", TEXT, option, f"n{number // PER_NODE}", tasks, 64, model.option_origin(option)
                )
                runners = {component: Does(write_chat_words) for component in spec.components}
                executor = Executor(identity, runners, bus, tensors, LIMIT)
                await executor.startup()
                stack.push_async_callback(executor.drain, 0.1)

        ends = range(first, first + count, per_connection)
        await _run_concurrently([partial(start, range(at, min(at + per_connection, first + count))) for at in ends])
        yield {"cpu": _read_cpu}


class LabGateway:
    """The parts of a gateway that follow executors."""

    def __init__(self, id: str, bus: NatsBus, tensors: Any) -> None:
        self.members = ExecutorTable()
        self.router = Router(id, self.members)
        self.router.plan = Plan(1, 0, 1.0, {TEXT: make_model()})
        self._bus = bus
        self._dispatcher = Dispatcher(id, bus, tensors, self.members, LIMIT)
        self._relay = HeartbeatRelay(id, bus)
        self._plans = PlanFollower(self.router, Store(StoreSettings(url="redis://127.0.0.1:1")), bus, "lab")
        self._beat: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        census = Census(self._bus, subjects.GATEWAY)
        await follow_events(self._bus, {subjects.GATEWAY: self._relay.handle_gateway}, census=census)
        await self._bus.subscribe(subjects.event_subject(subjects.CENSUS), self._plans.answer_census)
        census.ask()
        await self._dispatcher.startup()
        self._relay.startup()
        self._beat = asyncio.get_running_loop().create_task(self._send_heartbeats())

    async def shutdown(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        await self._relay.shutdown()
        await self._dispatcher.shutdown()
        self._plans.announce_status("gone")

    async def _send_heartbeats(self) -> None:
        while True:
            self._plans.announce_status("ready")
            await asyncio.sleep(_GATEWAY_HEARTBEAT_SECONDS)

    def count_fit(self) -> int:
        """Return the number of executors that get requests."""
        now = time.monotonic()
        return sum(
            entry.is_fit(now)
            for status in self.members.statuses()
            if (entry := self.members.get(status.id)) is not None
        )


@asynccontextmanager
async def host_gateways(url: str, first: int, count: int, _: int) -> AsyncIterator[dict[str, Command]]:
    """Run ``count`` gateways without HTTP, and a reader as the planner's if ``first`` is 0."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        await stack.enter_async_context(nodes.run_sidecar(directory))
        tensors = await nodes.connect_client(directory, "lab")
        stack.push_async_callback(tensors.close)
        gateways: list[LabGateway] = []
        for number in range(first, first + count):
            id = f"g{number:03}"
            gateways.append(LabGateway(id, await _connect(stack, url, f"gateway-{id}"), tensors))
            await gateways[-1].startup()
            stack.push_async_callback(gateways[-1].shutdown)
        ready = ReadyExecutors()
        if not first:
            await ready.listen(await _connect(stack, url, "planner"))

        async def wait_ready(command: dict[str, Any]) -> float:
            """Return the monotonic time at which all know ``count`` executors."""
            async with asyncio.timeout(_READY_WITHIN):
                while first == 0 and len(ready.ready_ids()) < command["count"]:
                    await asyncio.sleep(0.05)
                while min(len(each.members.statuses()) for each in gateways) < command["count"]:
                    await asyncio.sleep(0.05)
            return time.monotonic()

        async def wait_lost(command: dict[str, Any]) -> float:
            """Return the monotonic time at which no gateway sends requests to ``ids``."""
            async with asyncio.timeout(_READY_WITHIN):
                while any(self_knows(each, command["ids"]) for each in gateways):
                    await asyncio.sleep(0.02)
            return time.monotonic()

        async def count_fit(_: dict[str, Any]) -> list[int]:
            return [each.count_fit() for each in gateways]

        yield {"cpu": _read_cpu, "ready": wait_ready, "lost": wait_lost, "fit": count_fit}


def self_knows(gateway: LabGateway, ids: list[str]) -> bool:
    """Return whether ``gateway`` would send a request to one of ``ids``."""
    now = time.monotonic()
    return any((entry := gateway.members.get(id)) is not None and entry.is_fit(now) for id in ids)


@asynccontextmanager
async def host_chat(url: str, first: int, count: int, _: int) -> AsyncIterator[dict[str, Command]]:
    """Run a whole gateway, and its client."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bus = await _connect(stack, url, "gateway-chat")
        home = await stack.enter_async_context(start_toy_gateway(directory, within=3600.0, bus=bus, record="digest"))
        home.serve(TEXT)
        door = await stack.enter_async_context(open_doorway(home))
        body = msgspec.json.encode(build_chat_body(TEXT, "hello there"))
        request = build_post("/v1/chat/completions", len(body)) + body

        async def wait_ready(command: dict[str, Any]) -> float:
            async with asyncio.timeout(_READY_WITHIN):
                while len(home.members.statuses()) < command["count"]:
                    await asyncio.sleep(0.05)
            return time.monotonic()

        async def send_chats(command: dict[str, Any]) -> None:
            async def use_connection() -> None:
                wire = await door.wire()
                for _ in range(command["count"] // _CHATS_AT_ONCE):
                    await wire.send(request)
                    status, answer = await wire.answer()
                    if status != 200:
                        raise RuntimeError(answer.decode())
                wire.close()

            await asyncio.gather(*(use_connection() for _ in range(_CHATS_AT_ONCE)))

        yield {"cpu": _read_cpu, "ready": wait_ready, "chats": send_chats}


_HOSTS = {"executors": host_executors, "gateways": host_gateways, "chat": host_chat}


async def serve_commands(role: str, url: str, first: int, count: int, per_connection: int) -> None:
    """Run a host until stdin closes."""
    loop = asyncio.get_running_loop()
    async with _HOSTS[role](url, first, count, per_connection) as commands:
        print(json.dumps("up"), flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            print(json.dumps(await commands[command["do"]](command)), flush=True)


if __name__ == "__main__":
    uvloop.run(serve_commands(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
