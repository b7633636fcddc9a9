"""Executors on machines of ``omnibus node``: their agents get lists of executors, and report what runs.

The placement is not stored: a new leader reads it from the agents' reports.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from itertools import islice

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.cluster.agents import (
    DRAINING,
    GONE,
    AgentDirectory,
    AgentStatus,
    AssignedKind,
    NodeAssignment,
    encode_assignment,
)
from omnibus.cluster.presence import DesiredExecutors, ExecutorKind, ReadyExecutors
from omnibus.errors import OmnibusError
from omnibus.store import Store
from omnibus_planner.reconcile.backend import RunningWorkload
from omnibus_planner.reconcile.placement import NoRoom, PlacedExecutor, Room, count_by_node, surplus_executors

log = logging.getLogger(__name__)

#: Name of the lead in the store, and seconds until it expires and between two renewals.
LEAD, LEAD_SECONDS, RENEW_SECONDS = "agents", 6.0, 1.0
#: Seconds for all agents to report, before a new leader assigns anything.
SETTLE_SECONDS = 3.0
#: Seconds for agents to report before the first plan.
REPORT_SECONDS = 0.5
#: Seconds in which changes of machines are joined.
UPDATE_SECONDS = 0.05
#: Seconds until a list that its agent has not applied is sent again.
RESEND_SECONDS = 1.0


class AgentBackend:
    """A ``Backend``. ``ready`` are the executors that serve."""

    resync = 10.0

    def __init__(self, store: Store, bus: Bus, ready: ReadyExecutors) -> None:
        self._store = store
        self._bus = bus
        self._ready = ready
        self._me = secrets.token_hex(4)
        self._leads_until = 0.0
        self._settled = asyncio.Event()
        self._tell: Callable[[], None] = lambda: None
        self.leadership_error: OmnibusError | None = None
        self.agents = AgentDirectory()
        #: Executors without room by kind, at the last attempt.
        self.missing: dict[ExecutorKind, int] = {}
        self._desired: dict[ExecutorKind, DesiredExecutors] = {}
        self._placed: dict[str, PlacedExecutor] = {}  # by id
        self._adopted: dict[str, int] = {}  # nodes, and the start of the agent whose executors were adopted
        self._sent: dict[str, tuple[str, float]] = {}  # nodes, the digest of the last list, and its time
        self._machines: dict[str, str] = {}  # nodes, and their states at the last update
        self._states: dict[str, object] = {}  # nodes, and their last reports
        self._updating: asyncio.TimerHandle | None = None

    async def listen(self) -> None:
        """Follow the agents, and wait for their first reports."""
        await self.agents.listen(self._bus, self._on_status)
        await asyncio.sleep(REPORT_SECONDS)

    # Lead

    @property
    def is_leader(self) -> bool:
        return time.monotonic() < self._leads_until

    async def run_leader_election(self, tell: Callable[[], None]) -> None:
        """Take and renew the lead, and check the machines, until cancelled; then release the lead."""
        self._tell = tell
        try:
            while True:
                before = (self.is_leader, self.leadership_error is None)
                await self._renew_lead()
                self._update()
                if before != (self.is_leader, self.leadership_error is None):
                    tell()
                asleep = time.monotonic()
                await asyncio.sleep(RENEW_SECONDS)
                if time.monotonic() > asleep + 2 * RENEW_SECONDS:  # this process was busy, and read no reports
                    self.agents.excuse_silence()
        finally:
            with suppress(OmnibusError):
                if self.is_leader:
                    await self._store.take_lead(LEAD, self._me, 0.001)

    async def _renew_lead(self) -> None:
        began, was_leader = time.monotonic(), self.is_leader
        try:
            if await self._store.take_lead(LEAD, self._me, LEAD_SECONDS):
                self._leads_until = began + LEAD_SECONDS - RENEW_SECONDS
            self.leadership_error = None
        except OmnibusError as error:
            self.leadership_error = error
        if self.is_leader and not was_leader:
            self._forget_placement()
            log.info("this planner assigns executors to machines")
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settled.set)

    def _forget_placement(self) -> None:
        """Forget the placement, which another planner may have changed."""
        self._settled.clear()
        self._placed, self._adopted, self._sent, self._desired = {}, {}, {}, {}

    # Machines

    def _on_status(self, status: AgentStatus) -> None:
        """Update after a change, or if the agent has not applied its list."""
        state = (status.boot, status.state, tuple((each.id, each.state) for each in status.executors))
        if self._states.get(status.node) != state or status.digest != self._sent.get(status.node, ("", 0.0))[0]:
            self._states[status.node] = state
            self._update_soon()

    def _update_soon(self) -> None:
        """Update within ``UPDATE_SECONDS``, once for all changes until then."""
        if self._updating is None and self._settled.is_set():
            self._updating = asyncio.get_running_loop().call_later(UPDATE_SECONDS, self._update)

    def _update(self) -> None:
        self._updating = None
        if self.is_leader and self._settled.is_set() and self._update_machines():
            self._tell()

    def _update_machines(self) -> bool:
        """Follow machines that appear, drain or end; returns True if executors must move."""
        before = dict(self._placed)
        live = self.agents.live()
        for node, agent in live.items():
            if self._adopted.get(node) != agent.boot:
                self._adopt_executors(agent)
        self._adopted = {node: boot for node, boot in self._adopted.items() if node in live}
        for id, each in before.items():
            if each.node not in live:
                del self._placed[id]
            elif live[each.node].state == DRAINING and not each.leaving:
                self._placed[id] = each._replace(leaving=True)
        self._end_replaced()
        self._send_lists()
        machines, self._machines = self._machines, {node: agent.state for node, agent in live.items()}
        for node in machines.keys() - live.keys():
            log.warning("%s is no longer up: its executors move to other machines", node)
        return before != self._placed or machines != self._machines

    def _adopt_executors(self, agent: AgentStatus) -> None:
        self._adopted[agent.node] = agent.boot
        for each in agent.executors:
            if each.state not in ("stopping", GONE):
                self._placed.setdefault(each.id, PlacedExecutor(each.id, agent.node, each.kind, each.mark, each.gpus))

    def _end_replaced(self) -> None:
        """Drop leaving executors of kinds that are complete and ready without them."""
        leaving = [each for each in self._placed.values() if each.leaving]
        ready = self._ready.ready_ids() if leaving else set()
        for each in leaving:
            own = self._own(each.kind)
            executors = self._desired.get(each.kind)
            if executors is None or (len(own) >= executors.replicas and all(one.id in ready for one in own)):
                del self._placed[each.id]

    def _own(self, kind: ExecutorKind) -> list[PlacedExecutor]:
        """Return the executors of ``kind`` that stay."""
        return [each for each in self._placed.values() if each.kind == kind and not each.leaving]

    # Lists

    def _send_lists(self) -> None:
        """Send each agent a list that it has not applied yet."""
        now = time.monotonic()
        here: dict[str, list[PlacedExecutor]] = {}
        for each in self._placed.values():
            here.setdefault(each.node, []).append(each)
        for node, agent in self.agents.live().items():
            body, digest = encode_assignment(self._list_executors(here.get(node, [])))
            last_digest, at = self._sent.get(node, ("", 0.0))
            if agent.digest == digest or (last_digest == digest and now < at + RESEND_SECONDS):
                continue
            try:
                self._bus.publish(subjects.assignment_subject(node), body)
                self._sent[node] = (digest, now)
            except OmnibusError as error:  # the agent's next status sends it again
                log.warning("the list of %s is not sent: %s", node, error)

    def _list_executors(self, here: Iterable[PlacedExecutor]) -> NodeAssignment:
        ids: dict[tuple[ExecutorKind, str], list[str]] = {}
        keep = []
        for each in here:
            executors = self._desired.get(each.kind)
            if executors is not None and each.mark == self.workload_hash(executors):
                ids.setdefault((each.kind, each.mark), []).append(each.id)
            else:  # of an earlier configuration, or not compared with the plan yet
                keep.append(each.id)
        kinds = [
            AssignedKind(_without_plan(self._desired[kind]), mark, tuple(sorted(ids[kind, mark])))
            for kind, mark in sorted(ids)
        ]
        epoch = max((each.epoch for each in self._desired.values()), default=0)
        return NodeAssignment(epoch, tuple(kinds), tuple(sorted(keep)))

    # Workloads

    def workload_hash(self, executors: DesiredExecutors) -> str:
        same = msgspec.json.encode(
            [executors.kind, executors.service, executors.gpus, executors.gpu, sorted(executors.env.items())]
        )
        return blake2b(same, digest_size=8).hexdigest()

    async def list_workloads(self) -> list[RunningWorkload]:
        await self._settled.wait()
        self._update_machines()
        self.missing = {}
        kinds = {each.kind for each in self._placed.values()}
        return [self._describe(kind) for kind in sorted(kinds)]

    def _describe(self, kind: ExecutorKind) -> RunningWorkload:
        own = self._own(kind)
        marks = {each.mark for each in own}
        executors = self._desired.get(kind)
        current = self.workload_hash(executors) if executors is not None else ""
        mark = next(iter(marks - {current}), current)
        return RunningWorkload(str(kind), kind, len(own), mark, executors.epoch if executors is not None else 0)

    async def start(self, executors: DesiredExecutors) -> None:
        self._place(executors)

    async def scale(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        self._place(executors)

    async def replace_executors(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        """Replace executors of another configuration, where possible before they end."""
        mark = self.workload_hash(executors)
        old = [each for each in self._own(running.kind) if each.mark != mark]
        for each in old:
            self._placed[each.id] = each._replace(leaving=True)
        try:
            self._place(executors)
        except NoRoom:  # on the same GPUs
            for each in old:
                del self._placed[each.id]
            self._place(executors)

    async def stop(self, running: RunningWorkload) -> None:
        self._remove(each for each in self._placed.values() if each.kind == running.kind)
        self._desired.pop(running.kind, None)
        self._update_soon()

    def _place(self, executors: DesiredExecutors) -> None:
        """Place the required number, on the nodes of the plan if possible. Raises ``NoRoom``."""
        self._desired[executors.kind] = executors
        own = self._own(executors.kind)
        if len(own) > executors.replicas:
            self._remove(self._worst_first(executors, own)[: len(own) - executors.replicas])
        lacks, room = max(0, executors.replicas - len(own)), Room(self.agents.live(), self._placed.values())
        for node in islice(room.choose_nodes(executors, own), lacks):
            self._add(executors, node)
            lacks -= 1
        self._move_to_plan(executors)
        self._update_soon()
        if lacks > 0:
            self.missing[executors.kind] = lacks
            raise NoRoom(executors, lacks, self.agents.live())

    def _move_to_plan(self, executors: DesiredExecutors) -> None:
        """Start executors on the nodes of the plan that have room; those elsewhere end when these are ready."""
        own = self._own(executors.kind)
        leavers = surplus_executors(executors, own)
        room = Room(self.agents.live(), self._placed.values()) if leavers else None
        nodes = room.choose_nodes(executors, own) if room is not None else iter(())
        counts = Counter(count_by_node(own))
        for leaver, node in zip(leavers, nodes, strict=False):
            if counts[node] >= executors.nodes.get(node, 0):
                return
            counts[node] += 1
            self._placed[leaver.id] = leaver._replace(leaving=True)
            self._add(executors, node)

    def _worst_first(self, executors: DesiredExecutors, own: list[PlacedExecutor]) -> list[PlacedExecutor]:
        """Sort executors to end: those that do not serve yet, then those on nodes that are not in the plan."""
        ready, surplus = self._ready.ready_ids(), set(surplus_executors(executors, own))
        return sorted(own, key=lambda each: (each.id in ready, each not in surplus, each.id))

    def _add(self, executors: DesiredExecutors, node: str) -> None:
        kind, mark = executors.kind, self.workload_hash(executors)
        name = subjects.subject_token(f"{kind.model}-{kind.option}-{kind.origin[:4]}-{node}")
        id = next(
            f"{name}-{number}" for number in range(len(self._placed) + 1) if f"{name}-{number}" not in self._placed
        )
        self._placed[id] = PlacedExecutor(id, node, kind, mark, executors.gpus)
        log.info("%s runs on %s", id, node)

    def _remove(self, leaving: Iterable[PlacedExecutor]) -> None:
        for each in list(leaving):
            del self._placed[each.id]


def _without_plan(executors: DesiredExecutors) -> DesiredExecutors:
    """Return ``executors`` without values that change with each plan."""
    return msgspec.structs.replace(executors, replicas=0, epoch=0, nodes={})
