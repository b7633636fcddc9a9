"""An agent with real processes: it runs its list, reports causes, and goes on without planner and bus."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from io import StringIO

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.cluster.agents import AgentDirectory, AgentStatus, AssignedKind, NodeAssignment, encode_assignment
from omnibus.cluster.presence import ID, DesiredExecutors, ExecutorKind
from omnibus.errors import Conflict
from omnibus.process.logs import Log
from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import Exit
from omnibus.settings import BusSettings
from omnibus.up.agent import DRAIN, NodeAgent, require_free_name
from omnibus.up.supervisor import Supervisor

KIND = ExecutorKind("vl", "L", "0123456789abcdef")
_PROGRAM = "import os, sys, time; print(os.environ.get('CUDA_VISIBLE_DEVICES')); time.sleep(600)"


def make_list(*ids: str, epoch: int = 1, gpus: int = 0, mark: str = "m", keep: tuple[str, ...] = ()) -> NodeAssignment:
    executors = DesiredExecutors(KIND, 0, "llm", gpus, {}, ())
    return NodeAssignment(epoch, (AssignedKind(executors, mark, ids),) if ids else (), keep)


class RunningAgent:
    """An agent, and a planner's view of it."""

    def __init__(self, bus: NatsBus, supervisor: Supervisor, agent: NodeAgent, directory: AgentDirectory) -> None:
        self.bus, self.supervisor, self.agent, self._directory = bus, supervisor, agent, directory

    def assign(self, assignment: NodeAssignment) -> None:
        self.bus.publish(subjects.assignment_subject("n1"), encode_assignment(assignment)[0])

    async def wait_for(self, condition: Callable[[AgentStatus], bool]) -> AgentStatus:
        async with asyncio.timeout(10):
            while (status := self._directory.live().get("n1")) is None or not condition(status):
                await asyncio.sleep(0.01)
        return status

    async def wait_for_ready(self, *ids: str) -> AgentStatus:
        return await self.wait_for(
            lambda status: {each.id: each.state for each in status.executors} == dict.fromkeys(ids, "ready")
        )


def make_spec(executors: DesiredExecutors, id: str) -> ProcessSpec:
    return ProcessSpec(id, (sys.executable, "-uc", _PROGRAM), env={ID: id})


@pytest.fixture
async def running(nats_url: str) -> AsyncIterator[RunningAgent]:
    bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    agents: list[NodeAgent] = []

    async def on_exit(exit: Exit) -> None:
        agents[0].note_exit(exit)

    async def answers(pid: int) -> bool:
        return True

    log = Log(StringIO())
    async with Supervisor(log=log, on_exit=on_exit) as supervisor:
        agent = NodeAgent(supervisor, log, make_spec, answers, AgentStatus("n1", 0, gpus=2, slots=4), ("4", "5"))
        agents.append(agent)
        directory = AgentDirectory()
        await directory.listen(bus)
        await agent.start(bus)
        yield RunningAgent(bus, supervisor, agent, directory)
        await agent.close()
        assert directory.live() == {} or await _wait_gone(directory)
    await bus.drain()


async def _wait_gone(directory: AgentDirectory) -> bool:
    async with asyncio.timeout(5):
        while directory.live():
            await asyncio.sleep(0.01)
    return True


async def test_an_agent_runs_exactly_its_list(running: RunningAgent) -> None:
    running.assign(make_list("a", "b"))
    await running.wait_for_ready("a", "b")
    pid = running.supervisor.pids["b"]

    running.assign(make_list("b", "c", epoch=2))

    status = await running.wait_for_ready("b", "c")
    assert (status.epoch, running.supervisor.pids["b"]) == (2, pid)
    assert status.digest == encode_assignment(make_list("b", "c", epoch=2))[1]


async def test_an_older_list_changes_nothing(running: RunningAgent) -> None:
    running.assign(make_list("a", epoch=5))
    await running.wait_for_ready("a")

    running.assign(make_list(epoch=4))

    await running.bus.request_stream(subjects.drain_subject("n1"), b"ping", 5).__anext__()
    assert set(running.supervisor.specs) == {"a"}


async def test_kept_executors_run_on_and_are_not_started(running: RunningAgent) -> None:
    running.assign(make_list("a"))
    await running.wait_for_ready("a")
    pid = running.supervisor.pids["a"]

    running.assign(make_list(epoch=2, keep=("a", "never")))

    await running.wait_for(lambda status: status.epoch == 2)
    await running.wait_for_ready("a")
    assert running.supervisor.pids == {"a": pid}


async def test_another_configuration_replaces_the_process(running: RunningAgent) -> None:
    running.assign(make_list("a"))
    await running.wait_for_ready("a")
    pid = running.supervisor.pids["a"]

    running.assign(make_list("a", mark="other"))

    await running.wait_for(
        lambda status: any(each.mark == "other" and each.state == "ready" for each in status.executors)
    )
    assert running.supervisor.pids["a"] != pid


async def test_a_killed_executor_is_restarted_and_its_cause_reported(running: RunningAgent) -> None:
    gone: asyncio.Queue[bytes] = asyncio.Queue()
    await running.bus.subscribe(subjects.event_subject(subjects.GONE), lambda each: gone.put_nowait(each.data))
    running.assign(make_list("a"))
    await running.wait_for_ready("a")

    os.kill(running.supervisor.pids["a"], signal.SIGKILL)

    status = await running.wait_for(
        lambda status: any(each.ends and each.state == "ready" for each in status.executors)
    )
    assert status.executors[0].cause.startswith("signal 9")
    assert await asyncio.wait_for(gone.get(), 5) == b"a"


async def test_each_executor_has_gpus_of_its_own(running: RunningAgent) -> None:
    running.assign(make_list("a", "b", gpus=1))
    await running.wait_for_ready("a", "b")
    gpus = {id: running.supervisor.specs[id].env["CUDA_VISIBLE_DEVICES"] for id in ("a", "b")}
    assert sorted(gpus.values()) == ["4", "5"]

    running.assign(make_list("b", "c", epoch=2, gpus=1))  # there is room once `a` has ended

    await running.wait_for_ready("b", "c")
    assert running.supervisor.specs["c"].env["CUDA_VISIBLE_DEVICES"] == gpus["a"]


async def test_a_drain_is_a_state_until_the_agent_restarts(running: RunningAgent) -> None:
    running.bus.publish(subjects.drain_subject("n1"), DRAIN)

    status = await running.wait_for(lambda status: status.state == "draining")

    assert msgspec.structs.asdict(status)["executors"] == ()


async def test_a_name_can_be_used_once(running: RunningAgent) -> None:
    with pytest.raises(Conflict, match="a node named n1 is in the cluster already"):
        await require_free_name(running.bus, "n1")
    await require_free_name(running.bus, "n2")
