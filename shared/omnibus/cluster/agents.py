"""Agents of machines: their status, and the executors that planners assign to them. Only ``listen`` does I/O.

A planner sends each agent the complete list of its executors. Lists may repeat and arrive late: an agent applies the
last one, and reports its digest, so that the planner sees what it has applied.
"""

import math
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TypeVar

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.census import Census
from omnibus.bus.heartbeats import AGENT_LOST_SECONDS, NODE_FORGOTTEN_SECONDS
from omnibus.cluster.presence import DesiredExecutors, ExecutorKind, PresenceTracker
from omnibus.errors import ProtocolError
from omnibus.graph import UNREADABLE, WIRE_VERSION

#: States of a machine.
READY, DRAINING, GONE, LOST = "ready", "draining", "gone", "lost"


class AssignedKind(msgspec.Struct, frozen=True):
    """Executors of one kind on one machine, by their ids. ``mark`` changes with their configuration."""

    executors: DesiredExecutors
    mark: str
    ids: tuple[str, ...]


class NodeAssignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """All executors of one machine at a plan ``epoch``.

    Those in ``keep`` run on as they are if they run, and are not started.
    """

    epoch: int
    kinds: tuple[AssignedKind, ...] = ()
    keep: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class AgentExecutor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An executor as its agent sees it. ``cause`` is the reason of its last unplanned end; ``ends`` counts these."""

    id: str
    kind: ExecutorKind
    mark: str = ""
    gpus: int = 0
    state: str = "starting"  # starting | ready | stopping | failed
    ends: int = 0
    cause: str = ""


class AgentStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Status of a machine's agent, sent on change, on census and as a heartbeat.

    The machine has ``gpus`` of type ``gpu`` with ``gpu_gb`` of memory each, and ``slots`` for executors without a GPU.
    ``address`` is that of its sidecar. ``epoch`` and ``digest`` are those of the last applied ``NodeAssignment``.
    """

    node: str
    boot: int
    state: str = READY
    gpu: str = ""
    gpus: int = 0
    gpu_gb: float = 0.0
    slots: int = 0
    memory_bytes: int = 0
    address: str = ""
    labels: dict[str, str] = {}
    version: str = ""
    epoch: int = 0
    digest: str = ""
    executors: tuple[AgentExecutor, ...] = ()
    v: int = WIRE_VERSION


Message = TypeVar("Message", NodeAssignment, AgentStatus)

_encode = msgspec.json.Encoder(order="deterministic").encode


def encode_assignment(assignment: NodeAssignment) -> tuple[bytes, str]:
    """Return the message and its digest."""
    body = _encode(assignment)
    return body, digest_message(body)


def digest_message(body: bytes) -> str:
    return blake2b(body, digest_size=8).hexdigest()


def decode_assignment(body: bytes) -> NodeAssignment:
    """Decode a list of executors. Raises ``ProtocolError``."""
    return _decode(body, NodeAssignment)


def decode_agent(body: bytes) -> AgentStatus:
    """Decode the status of an agent. Raises ``ProtocolError``."""
    return _decode(body, AgentStatus)


def _decode(body: bytes, kind: type[Message]) -> Message:
    try:
        message = msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise ProtocolError(f"cannot decode a message of an agent: {error}") from error
    if message.v != WIRE_VERSION:
        raise ProtocolError(f"a message of an agent has version {message.v}, this build reads {WIRE_VERSION}")
    return message


class AgentDirectory:
    """Agents by node. An agent that is silent for ``AGENT_LOST_SECONDS`` is lost; later it is forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known = PresenceTracker[AgentStatus](NODE_FORGOTTEN_SECONDS, clock)
        self._tell: Callable[[AgentStatus], None] = lambda status: None
        self._excused = -math.inf

    async def listen(self, bus: Bus, tell: Callable[[AgentStatus], None] | None = None) -> None:
        """Follow agents, starting with all of them. ``tell`` is called with each status."""
        self._tell = tell or self._tell
        await bus.subscribe(subjects.event_subject(subjects.AGENT), self._on_delivery)
        Census(bus, subjects.AGENT).ask()  # agents answer it to all

    def live(self) -> dict[str, AgentStatus]:
        """Return the agents that run, by node."""
        return {node: status for node, status, state in self._states() if state in (READY, DRAINING)}

    def known(self) -> dict[str, AgentStatus]:
        """Return all agents by node, with the state ``lost`` for silent ones."""
        return {node: msgspec.structs.replace(status, state=state) for node, status, state in self._states()}

    def handle_status(self, status: AgentStatus) -> None:
        """Handle a status. Late ones of an earlier process are ignored."""
        existing = self._known.get(status.node)
        if existing is None or status.boot >= existing.boot:
            self._known.record(status.node, status)
            self._tell(status)

    def excuse_silence(self) -> None:
        """Lose no agent for ``AGENT_LOST_SECONDS``, because this process did not read their reports."""
        self._excused = self._clock()

    def _states(self) -> Iterator[tuple[str, AgentStatus, str]]:
        late = self._clock() - AGENT_LOST_SECONDS
        for node, status in sorted(self._known.entries().items()):
            is_lost = status.state != GONE and max(self._known.last_seen(node), self._excused) < late
            yield node, status, LOST if is_lost else status.state

    def _on_delivery(self, delivery: Delivery) -> None:
        try:
            status = decode_agent(delivery.data)
        except ProtocolError:  # of another build: its machine gets nothing until it is upgraded
            return
        self.handle_status(status)
