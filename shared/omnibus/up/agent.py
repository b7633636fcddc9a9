"""Agent of one machine: runs the executors that planners assign to it, and reports them on the bus.

Without planner or bus, executors continue. Lists of executors are complete, so that a lost one does not matter.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from omnibus import __version__
from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.census import find_answer_subject
from omnibus.bus.heartbeats import AGENT_HEARTBEAT_SECONDS
from omnibus.cluster.agents import (
    DRAINING,
    GONE,
    READY,
    AgentExecutor,
    AgentStatus,
    AssignedKind,
    NodeAssignment,
    decode_assignment,
    digest_message,
)
from omnibus.cluster.presence import ID, DesiredExecutors
from omnibus.errors import Conflict, OmnibusError, ProtocolError
from omnibus.process.logs import Log
from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import Exit, describe_exit
from omnibus.up.executors import executor_process
from omnibus.up.supervisor import Supervisor

#: Seconds until executors that failed for good are started again.
RECHECK_SECONDS = 30.0
#: Seconds after a list in which one of an older epoch is ignored: it is of a planner that no longer leads.
STALE_SECONDS = 15.0
#: Seconds for another agent of this name to answer, and for an executor to answer a probe.
_CONFLICT_SECONDS, _PROBE_SECONDS = 1.0, 0.5
#: Characters of a cause: all of them are in each heartbeat.
_MAX_CAUSE_CHARS = 160
DRAIN, PING = b"drain", b"ping"
#: Variables of an executor with GPUs.
_DEVICE, _VISIBLE = "OMNIBUS_EXECUTOR_DEVICE", "CUDA_VISIBLE_DEVICES"

#: Makes the process of an executor with this id.
MakeSpec = Callable[[DesiredExecutors, str], ProcessSpec]


class NodeAgent:
    """Agent of the machine that ``facts`` describe. Its executors run under ``supervisor``.

    ``answers`` returns whether the service in a process has started and responds. ``devices`` are its GPUs.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        log: Log,
        make_spec: MakeSpec,
        answers: Callable[[int], Awaitable[bool]],
        facts: AgentStatus,
        devices: Sequence[str] = (),
    ) -> None:
        self._supervisor = supervisor
        self._log = log
        self._make_spec = make_spec
        self._answers = answers
        self._facts = msgspec.structs.replace(facts, boot=time.time_ns() // 1000, version=__version__)
        self._devices = tuple(devices)
        self._bus: Bus | None = None
        self._assignment, self._digest, self._applied_at = NodeAssignment(0), "", -STALE_SECONDS
        self._kinds: dict[str, AssignedKind] = {}  # by id, of all that run
        self._gpus: dict[str, tuple[str, ...]] = {}  # by id
        self._ready: dict[str, int] = {}  # ids, and their processes that have answered
        self._ends: dict[str, tuple[int, str]] = {}  # ids, and the number and cause of their ends
        self._stopping: dict[str, asyncio.Task[None]] = {}
        self._draining = False
        self._changed, self._news = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, bus: Bus) -> None:
        """Register on ``bus`` and follow assignments."""
        self._bus, node = bus, self.node
        await bus.subscribe(subjects.assignment_subject(node), self._on_assignment)
        await bus.add_responder(subjects.drain_subject(node), self._on_request)
        await bus.subscribe(subjects.event_subject(subjects.CENSUS), self._on_census)
        self._tasks = [asyncio.create_task(work) for work in (self._run_reconciler(), self._run_heartbeat())]
        for task in self._tasks:
            task.add_done_callback(self._on_task_done)

    def _on_census(self, delivery: Delivery) -> None:
        if find_answer_subject(delivery, subjects.AGENT):
            self._publish_status()

    async def close(self) -> None:
        """Leave the cluster. The supervisor ends the executors."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._publish(self.status(GONE))

    @property
    def node(self) -> str:
        return self._facts.node

    def note_exit(self, exit: Exit) -> None:
        """Record the end of a process, and announce that of an executor."""
        spec = self._supervisor.specs.get(exit.name)
        if spec is None or ID not in spec.env:
            return
        if not exit.wanted:
            line = self._log.last_message(exit.name)
            self._note_end(exit.name, f"{describe_exit(exit.code)}: {line}" if line else describe_exit(exit.code))
        self._ready.pop(exit.name, None)
        if self._bus is not None:
            with suppress(OmnibusError):  # gateways find out by its silence
                self._bus.publish(subjects.event_subject(subjects.GONE), spec.env[ID].encode())
        self._news.set()

    def _note_end(self, id: str, cause: str) -> None:
        self._ends[id] = (self._ends.get(id, (0, ""))[0] + 1, cause[:_MAX_CAUSE_CHARS])

    def status(self, state: str = "") -> AgentStatus:
        """Return the current status."""
        return msgspec.structs.replace(
            self._facts,
            state=state or (DRAINING if self._draining else READY),
            epoch=self._assignment.epoch,
            digest=self._digest,
            executors=tuple(map(self._executor_status, sorted({*self._running(), *self._assigned_ids()}))),
        )

    # Messages

    def _on_assignment(self, delivery: Delivery) -> None:
        try:
            assignment = decode_assignment(delivery.data)
        except ProtocolError as error:
            self._log.write_line("agent", f"{error}: upgrade this machine")
            return
        now = time.monotonic()
        if assignment.epoch < self._assignment.epoch and now < self._applied_at + STALE_SECONDS:
            return
        self._assignment, self._digest, self._applied_at = assignment, digest_message(delivery.data), now
        self._changed.set()

    async def _on_request(self, delivery: Delivery) -> AsyncIterator[bytes]:
        if delivery.data == DRAIN and not self._draining:
            self._draining = True
            self._log.write_line("agent", "drains: its executors move to other machines")
            self._publish_status()
        yield msgspec.json.encode(self.status())

    def _publish_status(self) -> None:
        self._publish(self.status())

    def _publish(self, status: AgentStatus) -> None:
        if self._bus is not None:
            with suppress(OmnibusError):  # the next heartbeat follows soon
                self._bus.publish(subjects.event_subject(subjects.AGENT), msgspec.json.encode(status))

    async def _run_heartbeat(self) -> None:
        while True:
            await self._probe_executors()
            self._publish_status()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGENT_HEARTBEAT_SECONDS):
                    await self._news.wait()
            self._news.clear()

    async def _probe_executors(self) -> None:
        """Confirm executors that have begun to answer. The supervisor then restarts them forever."""
        pids = {name: pid for name, pid in self._supervisor.pids.items() if name in self._running()}
        await asyncio.gather(*(self._probe(name, pid) for name, pid in pids.items() if self._ready.get(name) != pid))

    async def _probe(self, name: str, pid: int) -> None:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_PROBE_SECONDS):
                if await self._answers(pid):
                    self._ready[name] = pid
                    self._supervisor.confirm(name)

    # Executors

    def _assigned_ids(self) -> list[str]:
        return [id for each in self._assignment.kinds for id in each.ids]

    def _running(self) -> Mapping[str, ProcessSpec]:
        return {name: spec for name, spec in self._supervisor.specs.items() if ID in spec.env}

    def _executor_status(self, id: str) -> AgentExecutor:
        kind = self._kinds.get(id) or next(each for each in self._assignment.kinds if id in each.ids)
        ends, cause = self._ends.get(id, (0, ""))
        if id in self._stopping:
            state = "stopping"
        elif id in self._running():
            state = "ready" if id in self._ready else "starting"
        else:
            state = "failed" if cause else "starting"
        return AgentExecutor(id, kind.executors.kind, kind.mark, kind.executors.gpus, state, ends, cause)

    async def _run_reconciler(self) -> None:
        while True:
            with suppress(TimeoutError):  # then retry executors that failed for good
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            await self._apply_assignment()

    async def _apply_assignment(self) -> None:
        """Stop executors that are not assigned, and start missing ones. An ending one's name is still in use."""
        kinds = {id: each for each in self._assignment.kinds for id in each.ids}
        for name in self._running():
            if name in self._assignment.keep or name in self._stopping or self._is_current(name, kinds.get(name)):
                continue
            self._stopping[name] = asyncio.create_task(self._stop_executor(name))
        missing = [(id, each) for id, each in kinds.items() if id not in self._supervisor.specs]
        await asyncio.gather(*(self._start_executor(id, each) for id, each in missing))
        self._news.set()

    def _is_current(self, id: str, each: AssignedKind | None) -> bool:
        return each is not None and self._kinds[id].mark == each.mark

    async def _start_executor(self, id: str, each: AssignedKind) -> None:
        try:
            spec = self._with_gpus(self._make_spec(each.executors, id), each.executors.gpus)
            self._kinds[id] = each
            await self._supervisor.add(replace(spec, name=id, vital=False))
        except OmnibusError as error:
            self._note_end(id, str(error).splitlines()[0])
            self._log.write_line(id, str(error))

    async def _stop_executor(self, id: str) -> None:
        self._log.write_line(id, "ends: it is no longer assigned to this machine")
        try:
            await self._supervisor.remove(id)
        finally:
            del self._stopping[id]
            for by_id in (self._gpus, self._ready, self._ends, self._kinds):
                by_id.pop(id, None)
        self._changed.set()  # it may be assigned again

    def _with_gpus(self, spec: ProcessSpec, count: int) -> ProcessSpec:
        """Return ``spec`` with ``count`` separate GPUs. Raises ``Conflict`` while others use them."""
        if not count:
            return spec
        id = spec.env[ID]
        others = {gpu for name, gpus in self._gpus.items() if name != id for gpu in gpus}
        free = [device for device in self._devices if device not in others][:count]
        if len(free) < count:
            raise Conflict(f"{id} needs {count} GPUs and {len(free)} are free: it starts when others have ended")
        self._gpus[id] = tuple(free)
        return replace(spec, env={_DEVICE: "cuda", **spec.env, _VISIBLE: ",".join(free)})

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._log.write_line("agent", f"no longer follows planners: {task.exception()!r}; restart it")


async def require_free_name(bus: Bus, node: str) -> None:
    """Raise ``Conflict`` if an agent with this name answers."""
    try:
        await anext(bus.request_stream(subjects.drain_subject(node), PING, _CONFLICT_SECONDS))
    except OmnibusError:
        return
    raise Conflict(f"a node named {node} is in the cluster already: choose another name with --name")


def executor_maker(env: Mapping[str, str], fork_server: str, alive: Callable[[int], Awaitable[bool]]) -> MakeSpec:
    """Return the function that makes processes of executors with the environment ``env``."""

    def make_spec(executors: DesiredExecutors, id: str) -> ProcessSpec:
        return replace(executor_process(executors, id, id, env, fork_server), alive=alive)

    return make_spec
