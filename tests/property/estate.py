"""A system of two models for tests, with real parts.

Bus, sidecar, executors' loops and the inside of a gateway are real. The tasks of ``tests.unit.task.tasks`` are spread
over executors, alone and together. Edges of one graph therefore are inside executors, between them, and between models.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path as File
from typing import Any

import numpy as np

from omnibus.bus.nats import NatsBus
from omnibus.executor.loop import Executor
from omnibus.executor.runner import Job
from omnibus.executor.status import ExecutorIdentity
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus.settings import BusSettings, GatewaySettings
from omnibus.task import UnitTask, use
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.request.load_report import LoadReporter
from omnibus_gateway.request.record import RecordRules, Records
from omnibus_gateway.request.request import ClientRequest, RequestFactory
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router
from omnibus_sidecar.server import Sidecar
from tests.unit.executor.arithmetic import LIMIT, Does
from tests.unit.sidecar import node as nodes
from tests.unit.task.memory import hosting
from tests.unit.task.tasks import ADD, ALL, ECHO, FOLD, ONE, ROLL, SPELL, STRICT, TWO

#: Model to its tasks by component, and to the options of each of its paths.
MODELS: dict[str, tuple[dict[str, UnitTask], tuple[tuple[str, ...], ...]]] = {
    "sums": ({"one": ONE, "two": TWO, "add": ADD}, (("one+two", "add"), ("one+two+add",), ("one", "two", "add"))),
    "words": (
        {"fold": FOLD, "spell": SPELL, "echo": ECHO, "roll": ROLL, "strict": STRICT},
        (("fold", "spell+echo+roll+strict"), ("fold+spell+echo+roll+strict",)),
    ),
}
CREDITS = 64


def make_model(tasks: dict[str, UnitTask], paths: tuple[tuple[str, ...], ...]) -> ModelPlan:
    """A model with equal shares of ``paths``; components name the options."""
    options = {name: DeploymentOption(tuple(name.split("+")), "generator") for path in paths for name in path}
    ways = tuple(
        Path(">".join(path), {component: option for option in path for component in option.split("+")}, 1.0)
        for path in paths
    )
    task_names = {component: task.name for component, task in tasks.items()}
    return ModelPlan("python", "", tuple(tasks), {}, options, {"+".join(tasks): ways}, tasks=task_names)


class GraphSystem:
    """The place, and one gateway's inside; ``ask`` runs one client's request to its end."""

    def __init__(self, url: str, directory: File, sidecar: Sidecar, replicas: int) -> None:
        self.sidecar = sidecar
        self.executors: list[Executor] = []
        self._bus = BusSettings(url=url, max_payload=LIMIT, replicas=replicas)
        self._directory = directory
        self._closing: list[Callable[[], Awaitable[None]]] = []

    async def open(self) -> None:
        bus, tensors = await self._connect("gateway")
        self.members = ExecutorTable()
        self.router = Router("gw", self.members)
        self.router.plan = Plan(1, 0, 1000.0, {name: make_model(*spec) for name, spec in MODELS.items()})
        self.dispatcher = Dispatcher("gw", bus, tensors, self.members, LIMIT, quarantine=600.0)
        settings = GatewaySettings(media_dir=str(self._directory / "kept"), deadline=30.0)
        keep = MediaStore(settings.media_dir, settings.media_bytes)
        records = Records(bus, UsageMeter(self.router), RecordRules(True), keep)
        loads = LoadReporter(self.router, bus, LIMIT)
        self.runs = RequestFactory(settings, self.router, self.dispatcher, tensors, records, keep, loads)
        await bus.open_records(600.0, 1 << 30)
        await self.dispatcher.startup()
        self._closing.append(self.dispatcher.shutdown)
        self._keep = keep
        for name, (tasks, paths) in MODELS.items():
            for option in dict.fromkeys(option for path in paths for option in path):
                await self._executor(name, option, {part: tasks[part] for part in option.split("+")})
        await self.ready()

    async def ready(self) -> None:
        """Wait for a recent heartbeat of every executor.

        Their loop may have rested.
        """

        def are_fit() -> bool:
            entries = [self.members.get(executor.identity.id) for executor in self.executors]
            return all(member is not None and member.is_fit(time.monotonic()) for member in entries)

        await nodes.wait_until(are_fit)

    async def _connect(self, name: str) -> tuple[NatsBus, Any]:
        bus = await NatsBus.connect(self._bus, name)
        tensors = await nodes.connect_client(self._directory, name)
        self._closing += [tensors.close, bus.drain]
        return bus, tensors

    async def _executor(self, name: str, option: str, tasks: dict[str, UnitTask]) -> None:
        id = f"{name}-{option.replace('+', '_')}"
        bus, tensors = await self._connect(id)
        identity = ExecutorIdentity(
            id, name, option, nodes.NODE, {task.name: part for part, task in tasks.items()}, CREDITS
        )
        runners = {part: Does(_make_work(task)) for part, task in tasks.items()}
        executor = Executor(identity, runners, bus, tensors, LIMIT)
        await executor.startup()
        self.executors.append(executor)

    @asynccontextmanager
    async def request(self, **more: Any) -> AsyncIterator[ClientRequest]:
        """One client's request, around the tasks that are called for it."""
        run = self.runs.open_request("app", **more)
        status = "failed"
        try:
            with use(run):
                yield run
            status = "done"
        finally:
            run.end(status)

    async def settled(self) -> None:
        """Wait until nothing runs or is pending, and the arena is empty."""
        await nodes.wait_until(lambda: self.dispatcher.inflight_count == 0)
        await nodes.wait_until(lambda: not any(executor.status().inflight for executor in self.executors))

        async def is_empty() -> bool:
            return not self.sidecar.snapshot()["blocks"]

        await nodes.wait_until(is_empty)
        members = [self.members.get(status.id) for status in self.members.statuses()]
        assert [member.outstanding for member in members if member is not None] == [0] * len(self.executors)

    async def close(self) -> None:
        for executor in self.executors:
            await executor.drain(1.0)
        for close in reversed(self._closing):
            await close()
        self._keep.close()


def _make_work(task: UnitTask) -> Callable[[Job], Awaitable[None]]:
    return lambda job: hosting(task, job)


@asynccontextmanager
async def start_graph_system(url: str, directory: File, replicas: int = 1) -> AsyncIterator[GraphSystem]:
    async with nodes.run_sidecar(directory, size=64 << 20) as sidecar:
        new_system = GraphSystem(url, directory, sidecar, replicas)
        try:
            await new_system.open()
            yield new_system
        finally:
            await new_system.close()


def to_plain(value: Any) -> Any:
    """Convert arrays to lists for comparisons."""
    return value.tolist() if isinstance(value, np.ndarray) else value


assert {task.name for tasks, _ in MODELS.values() for task in tasks.values()} == {task.name for task in ALL}
