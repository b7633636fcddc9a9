"""Executors on machines with agents: placement, moves, drains, and a new leader, on a real bus and store."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from omnibus.bus import Delivery, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.bus.nats import NatsBus
from omnibus.cluster.agents import (
    AgentDirectory,
    AgentExecutor,
    AgentStatus,
    AssignedKind,
    decode_assignment,
    digest_message,
)
from omnibus.cluster.presence import DesiredExecutors, ExecutorKind, ReadyExecutors
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus_planner.reconcile import AgentBackend, agent_backend, diff_workloads
from omnibus_planner.reconcile.placement import NoRoom, Room

KIND = ExecutorKind("vl", "L", "0123456789abcdef")


def make_executors(replicas: int, *, gpus: int = 0, epoch: int = 1, **nodes: int) -> DesiredExecutors:
    return DesiredExecutors(KIND, replicas, "llm", gpus, {}, (), "H100" if gpus else "", epoch, nodes)


class ScriptedMachine:
    """A machine whose agent applies each list at once; its executors are ready at once, unless ``loads``."""

    def __init__(self, bus: NatsBus, name: str, slots: int = 4, gpus: int = 0) -> None:
        self._bus = bus
        self.status = AgentStatus(name, time.time_ns() // 1000, slots=slots, gpus=gpus, gpu="H100" if gpus else "")
        self.loads = False
        self.lists = 0
        self._kinds: tuple[AssignedKind, ...] = ()

    async def join(self) -> None:
        await self._bus.subscribe(subjects.assignment_subject(self.status.node), self._on_list)
        await self._bus.subscribe(subjects.event_subject(subjects.CENSUS), lambda _: self.report())
        self.report()

    def report(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)
        self._bus.publish(subjects.event_subject(subjects.AGENT), msgspec.json.encode(self.status))

    @property
    def ids(self) -> set[str]:
        return {each.id for each in self.status.executors}

    def _on_list(self, delivery: Delivery) -> None:
        self.lists += 1
        assignment = decode_assignment(delivery.data)
        kept = [each for each in self.status.executors if each.id in assignment.keep]
        executors = [
            AgentExecutor(
                id, each.executors.kind, each.mark, each.executors.gpus, "starting" if self.loads else "ready"
            )
            for each in assignment.kinds
            for id in each.ids
        ]
        if not self.loads:
            for each in executors:
                self.publish_ready(each.id)
        self.report(executors=(*kept, *executors), digest=digest_message(delivery.data), epoch=assignment.epoch)

    def publish_ready(self, id: str) -> None:
        status = ExecutorStatus(id, *KIND[:2], (), (), self.status.node, "ready", 1, origin=KIND.origin)
        self._bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))


class ScriptedCluster:
    """A planner's backend and machines."""

    def __init__(self, bus: NatsBus, store: Store, stack: AsyncExitStack) -> None:
        self.bus, self.store = bus, store
        self._stack = stack
        self._electing: asyncio.Task[None]
        self.machines: dict[str, ScriptedMachine] = {}

    async def add(self, name: str, **size: int) -> ScriptedMachine:
        machine = self.machines[name] = ScriptedMachine(self.bus, name, **size)
        await machine.join()
        return machine

    async def lead(self) -> AgentBackend:
        """Return the backend of a planner that leads."""
        ready = ReadyExecutors()
        await ready.listen(self.bus)
        backend = AgentBackend(self.store, self.bus, ready)
        await backend.listen()
        self._electing = asyncio.create_task(backend.run_leader_election(lambda: None))
        self._stack.push_async_callback(self.end_leader)
        await wait_until(lambda: backend.is_leader)
        return backend

    async def end_leader(self) -> None:
        """End the election of the last leader, which releases its lead."""
        self._electing.cancel()
        await asyncio.wait({self._electing})

    async def apply(self, backend: AgentBackend, executors: DesiredExecutors) -> None:
        """Take the steps of a reconciler to ``executors``."""
        for step in diff_workloads({KIND: executors}, await backend.list_workloads(), backend.workload_hash):
            match type(step).__name__:
                case "StartWorkload":
                    await backend.start(executors)
                case "ReplaceWorkload":
                    await backend.replace_executors(step.running, executors)  # type: ignore[union-attr]
                case _:
                    await backend.scale(step.running, executors)  # type: ignore[union-attr]

    def counts(self) -> dict[str, int]:
        return {name: len(machine.ids) for name, machine in self.machines.items()}


async def wait_until(condition: Callable[[], bool], within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def open_cluster(nats_url: str, valkey_url: str, prefix: str) -> AsyncIterator[ScriptedCluster]:
    async with AsyncExitStack() as stack:
        bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
        stack.push_async_callback(bus.drain)
        store = Store(StoreSettings(url=valkey_url, prefix=prefix))
        stack.push_async_callback(store.close)
        yield ScriptedCluster(bus, store, stack)


@pytest.fixture
async def cluster(
    nats_url: str, valkey_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ScriptedCluster]:
    monkeypatch.setattr(agent_backend, "SETTLE_SECONDS", 0.3)
    async with open_cluster(nats_url, valkey_url, str(request.node.name)) as cluster:
        yield cluster


async def test_executors_run_on_the_nodes_of_the_plan(cluster: ScriptedCluster) -> None:
    for name in ("n1", "n2", "n3"):
        await cluster.add(name)
    backend = await cluster.lead()

    await cluster.apply(backend, make_executors(3, n2=2, n3=1))

    await wait_until(lambda: cluster.counts() == {"n1": 0, "n2": 2, "n3": 1})


async def test_a_new_placement_moves_executors_when_their_successors_are_ready(cluster: ScriptedCluster) -> None:
    one, other = await cluster.add("n1"), await cluster.add("n2")
    backend = await cluster.lead()
    await cluster.apply(backend, make_executors(1, n1=1))
    await wait_until(lambda: cluster.counts() == {"n1": 1, "n2": 0})
    other.loads = True

    await cluster.apply(backend, make_executors(1, epoch=2, n2=1))

    await wait_until(lambda: len(other.ids) == 1)
    await asyncio.sleep(1.5)
    assert len(one.ids) == 1, "it stays until the other is ready"
    other.publish_ready(*other.ids)
    await wait_until(lambda: cluster.counts() == {"n1": 0, "n2": 1})


async def test_executors_of_a_lost_machine_move_or_have_no_room(cluster: ScriptedCluster) -> None:
    lost = await cluster.add("n1", slots=0, gpus=2)
    await cluster.add("n2", slots=0, gpus=1)
    backend = await cluster.lead()
    await cluster.apply(backend, make_executors(2, gpus=1, n1=2))
    await wait_until(lambda: cluster.counts() == {"n1": 2, "n2": 0})

    lost.report(state="gone", executors=())
    await wait_until(lambda: "n1" not in backend.agents.live())
    with pytest.raises(NoRoom, match=r"no room for 1 of 2 executors of vl/L@0123: each needs 1 GPUs of type H100"):
        await cluster.apply(backend, make_executors(2, gpus=1, n1=2))

    await wait_until(lambda: cluster.counts() == {"n1": 0, "n2": 1})
    assert backend.missing == {KIND: 1}


async def test_a_draining_machine_keeps_its_executor_without_room_elsewhere(cluster: ScriptedCluster) -> None:
    drained = await cluster.add("n1", slots=1)
    backend = await cluster.lead()
    await cluster.apply(backend, make_executors(1))
    await wait_until(lambda: cluster.counts() == {"n1": 1})

    drained.report(state="draining")
    await wait_until(lambda: backend.agents.live()["n1"].state == "draining")
    with pytest.raises(NoRoom):
        await cluster.apply(backend, make_executors(1))
    assert len(drained.ids) == 1

    await cluster.add("n2", slots=1)
    await wait_until(lambda: "n2" in backend.agents.live())
    await cluster.apply(backend, make_executors(1))
    await wait_until(lambda: cluster.counts() == {"n1": 0, "n2": 1})


async def test_a_new_leader_reads_the_placement_from_the_agents(cluster: ScriptedCluster) -> None:
    for name in ("n1", "n2"):
        await cluster.add(name)
    await cluster.apply(await cluster.lead(), make_executors(3))
    await wait_until(lambda: sum(cluster.counts().values()) == 3)
    before = {name: machine.ids for name, machine in cluster.machines.items()}
    await cluster.end_leader()

    await cluster.apply(await cluster.lead(), make_executors(3, epoch=2))
    await asyncio.sleep(0.5)

    assert {name: machine.ids for name, machine in cluster.machines.items()} == before


async def test_a_lost_list_is_sent_again(cluster: ScriptedCluster) -> None:
    machine = await cluster.add("n1")
    backend = await cluster.lead()
    await cluster.apply(backend, make_executors(1))
    await wait_until(lambda: len(machine.ids) == 1)
    lists = machine.lists

    machine.report(digest="", executors=())

    await wait_until(lambda: machine.lists > lists and len(machine.ids) == 1)


def test_silence_that_this_process_caused_loses_no_machine() -> None:
    now = 0.0
    directory = AgentDirectory(lambda: now)
    directory.handle_status(AgentStatus("n1", 1))

    now = 20.0
    directory.excuse_silence()
    assert set(directory.live()) == {"n1"}

    now = 26.0
    assert directory.live() == {}
    assert directory.known()["n1"].state == "lost"


def test_many_executors_are_placed_at_once() -> None:
    """Each of 8,000 executors has its GPU, after as many steps as there are nodes and executors."""
    agents = {f"n{number}": AgentStatus(f"n{number}", 1, gpus=8, gpu="H100") for number in range(1000)}
    executors = make_executors(8000, gpus=1)

    nodes = Counter(Room(agents, []).choose_nodes(executors, []))

    assert set(nodes.values()) == {8}
    assert len(nodes) == 1000
