"""Failures of executors: silent ones are detected, inputs that kill them are isolated, and lost stages restart.

Executors that stop announce it, and the bus reports dead ones. Periodic checks here find the rest.

An executor that dies holds many invocations, and may have been killed from outside, so one death refuses nothing. Each
unfinished node that it held becomes a suspect, identified by a digest of all its inputs. A node that finishes anywhere
is cleared. Suspects move like other nodes, but avoid executors with more components than the dead one, if possible.

At a further death, the suspects with the most deaths are compared. If they belong to one request, its input is refused.
If they belong to several, these requests run one at a time, so the next death identifies the culprit. An executor
that returns as the same process only lost its connection: no death. Times are seconds of one clock, read by callers.

A lost stage restarts with its dependents, but without its producers: the gateway also receives the outputs of these
(``omnibus_gateway.dispatch.retention``). It forwards them to the executors that restart: first the earlier chunks, then
the new ones.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from math import ceil, inf

import msgspec

from omnibus import graph
from omnibus.bus import Bus, messages, subjects
from omnibus.bus.census import Census
from omnibus.bus.heartbeats import (
    EXECUTOR_LAST_RESORT_SECONDS,
    EXECUTOR_LOST_SECONDS,
    EXECUTOR_PROBE_SECONDS,
    ReconnectMonitor,
    RefusalMonitor,
)
from omnibus.bus.messages import Chunk, ExecutorStatus, InvocationEnd
from omnibus.errors import BadInput, BusUnavailable, OmnibusError, SequenceGap, StageUnavailable
from omnibus.graph import GraphNode, Invocation
from omnibus.service import until_cancelled
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.retention import CHECKPOINT, Key, OutputRetention, affected_nodes
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute

log = logging.getLogger(__name__)

MAX_PROBES = 256  # probes at once, for the executors silent for longest: many are silent if the heartbeats are lost
POLL_SECONDS = 0.25  # seconds between two checks for silent executors
RECONNECT_GRACE_SECONDS = 1.5  # seconds that executors have to reappear after a reconnect
#: Seconds within which a refusal arrives, unless the bus or this process was frozen. Executors leave a frozen bus.
MAX_REFUSAL_SECONDS = 1.0
ACCEPT_TIMEOUT_SECONDS = 3.0  # seconds within which every executor of a route must have answered
MAX_POLL_DELAY_SECONDS = 1.0  # by which a check may be late: messages sent during a longer pause are still unread

_FRAME_OVERHEAD_BYTES = 512  # reserved in a message for its frame
#: Replaces the invocation in the subject of a probe's refusal; milliseconds replace the attempt.
PROBE = "-"

#: Moves an invocation to another route: the executor to avoid, if any, the error, and the reason.
Move = Callable[[InflightInvocation, str, OmnibusError, str], None]


class FailureDetector:
    """Probes silent executors; moves work that was not accepted, or that the bus may have lost."""

    def __init__(
        self,
        gateway: str,
        bus: Bus,
        members: ExecutorTable,
        inflight: Mapping[str, InflightInvocation],
        move: Move,
        on_gone: Callable[[str, float], None],  # of an executor, and since when it gets no messages
    ) -> None:
        self._gateway = gateway
        self._bus = bus
        self._members = members
        self._inflight = inflight  # by id
        self._move = move
        self._on_gone = on_gone
        #: Asks for the status of all executors.
        self.census = Census(bus, subjects.EXECUTOR)
        self._comeback = ReconnectMonitor(bus)
        self._refusals = RefusalMonitor(bus, RECONNECT_GRACE_SECONDS)
        self._returned: set[str] = set()  # executors that reconnected, and monotonic seconds of the last
        self._returned_at = 0.0
        self._stalled_at = -inf  # monotonic seconds of the last late refusal
        self._task: asyncio.Task[None] | None = None

    @property
    def is_returning(self) -> bool:
        """True just after a reconnect, when executors may only be reconnecting."""
        was_stalled = time.monotonic() - self._stalled_at < RECONNECT_GRACE_SECONDS
        return self._comeback.reconnected_within(RECONNECT_GRACE_SECONDS) or was_stalled

    def handle_refusal(self, invocation: str, attempt: int, executor: str) -> bool | None:
        """Handle the server's reply that ``executor`` has no subscriber.

        ``invocation`` and ``attempt`` are those of the message, or of a probe. Returns True if the executor is gone,
        and None while executors reconnect, since their messages are sent again. A late reply means that the bus was
        frozen. Our connection survived, but those of others may not have.
        """
        running = self._inflight.get(invocation)
        sent_at = (attempt + 1) / 1000 if invocation == PROBE else inf  # at the latest
        if running is not None and running.invocation.attempt == attempt:
            sent_at = running.sent
        if time.monotonic() - sent_at > MAX_REFUSAL_SECONDS:
            self._stalled_at = time.monotonic()
        if self.is_returning:
            return None
        is_gone = self._refusals.confirms_loss(executor)
        if is_gone:
            self._on_gone(executor, sent_at)
        return is_gone

    def handle_status(self, status: ExecutorStatus) -> bool:
        """Apply a status event; returns True if the executor just left.

        In a cluster, the executor's server may fail while ours does not. So its status counts its reconnects.
        """
        self._refusals.note_sign_of_life(status.id)
        entry = self._members.get(status.id)
        if entry is not None and entry.status.reconnects != status.reconnects:
            self._returned.add(status.id)
            self._returned_at = time.monotonic()
        return self._members.handle_status(status)

    def start(self) -> None:
        """Start checking, and ask all executors for their status."""
        self._task = asyncio.get_running_loop().create_task(self._watch_executors())
        self.census.ask()

    async def stop(self) -> None:
        if self._task is not None:
            await until_cancelled(self._task)

    async def _watch_executors(self) -> None:
        reconnects, back = self._bus.reconnects, False
        while True:
            slept = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)
            if not self._bus.connected or time.monotonic() - slept > POLL_SECONDS + MAX_POLL_DELAY_SECONDS:
                continue
            if reconnects != self._bus.reconnects:
                reconnects, back = self._bus.reconnects, True
                self._ask_census()
            if back and self.is_returning:
                continue  # the executors are reconnecting as well
            if back:
                back = False
                self._retry_all()
            self._retry_returned()
            late = islice(self._members.silent_executors(EXECUTOR_PROBE_SECONDS), MAX_PROBES)
            for executor in {*late, *self._refusals.overdue_peers()}:
                self._publish_probe(executor)
            self._replace_silent()
            self.replace_overdue()

    def _ask_census(self) -> None:
        try:
            self.census.ask()
        except OmnibusError as error:  # heartbeats follow
            log.warning("cannot ask executors for their status: %s", error)

    def _publish_probe(self, executor: str) -> None:
        reply = subjects.refused_subject(self._gateway, PROBE, int(time.monotonic() * 1000), executor)
        try:
            self._bus.publish(subjects.edge_subject(executor), b"", reply=reply)
        except OmnibusError as error:  # the next check retries
            log.warning("cannot send a probe to %s: %s", executor, error)

    def _retry_all(self) -> None:
        """Rerun all invocations, without repeats: the bus disconnected and may have lost messages."""
        self._returned.clear()
        self._retry_running(list(self._inflight.values()))

    def _retry_returned(self) -> None:
        """Rerun invocations sent to executors before they disconnected, once all have reconnected."""
        if not self._returned or time.monotonic() - self._returned_at < RECONNECT_GRACE_SECONDS:
            return
        returned_executors, self._returned = self._returned, set()
        self._retry_running(
            running
            for running in list(self._inflight.values())
            if running.sent <= self._returned_at and not returned_executors.isdisjoint(running.invocation.route)
        )

    def _retry_running(self, invocations: Iterable[InflightInvocation]) -> None:
        for running in invocations:
            if running.failure is None and not running.all_reported:
                self._move(running, "", BusUnavailable("the bus was disconnected while the request ran: retry"), "bus")

    def _replace_silent(self) -> None:
        """Move the work of executors that accepted it and then fell silent."""
        lost_executors = set(self._members.silent_executors(EXECUTOR_LOST_SECONDS))
        hopeless = set(self._members.silent_executors(EXECUTOR_LAST_RESORT_SECONDS))
        for running in list(self._inflight.values()) if lost_executors else ():
            holders = (executor for executor in lost_executors & running.accepted if running.waits_for(executor))
            silent = next((each for each in holders if each in hopeless or running.has_alternative(each)), None)
            if silent is not None:
                self._move(running, silent, running.gone_error(silent), "silent")

    def replace_overdue(self) -> None:
        """Replace executors that have not accepted their work in time."""
        now = time.monotonic()
        for running in list(self._inflight.values()):
            route = set(running.invocation.route)
            if running.sent > now - ACCEPT_TIMEOUT_SECONDS or len(running.accepted) >= len(route):
                continue
            silent = next((executor for executor in route - running.accepted if running.waits_for(executor)), None)
            if silent is not None and (
                running.sent <= now - EXECUTOR_LAST_RESORT_SECONDS or running.has_alternative(silent)
            ):
                self._move(running, silent, running.gone_error(silent), "silent")


#: Deaths after which an input is refused, if it is the only suspect.
MAX_DEATHS = 2
#: Suspects and refused inputs that are remembered; the oldest are evicted first.
MAX_SUSPECTS = 4096
MAX_REFUSED_INPUTS = 256
#: Dead executors that are remembered, in case they return.
MAX_DEAD_EXECUTORS = 64

#: Digests of nodes that together kill executors.
Culprit = frozenset[str]


def node_keys(nodes: Sequence[GraphNode]) -> list[str]:
    """Return a digest of each node and all its inputs; equal inputs have equal keys for all senders."""
    keys: list[str] = []
    for node in nodes:
        digest = blake2b(node.digest.encode(), digest_size=12)
        for producer, output in node.uses:
            digest.update(f" {keys[producer]}.{output}".encode())
        keys.append(digest.hexdigest())
    return keys


class Quarantine:
    """Inputs that this gateway suspects and refuses for ``seconds``; 0 disables it."""

    def __init__(self, members: ExecutorTable, seconds: float = 0.0) -> None:
        self._members = members
        self._seconds = seconds
        self._suspects: OrderedDict[str, int] = OrderedDict()  # deaths by key
        self._refused: OrderedDict[Culprit, float] = OrderedDict()  # until when
        self._dead: OrderedDict[str, tuple[ExecutorStatus, Culprit]] = OrderedDict()  # last status, and its suspects
        self._single: InflightInvocation | None = None
        self._waiting: deque[tuple[InflightInvocation, int, Callable[[], None]]] = deque()

    # Refusing

    def check_invocation(self, invocation: Invocation, now: float) -> None:
        """Raise ``BadInput`` for a refused input. Replays by an operator are exempt."""
        if not self._refused or invocation.replay_of:
            return
        keys = set(node_keys(invocation.nodes))
        for culprit, until in list(self._refused.items()):
            if until <= now:
                del self._refused[culprit]
            elif culprit <= keys:
                raise _refusal_error(until - now)

    def refuse_inputs(self, culprit: Iterable[str], now: float) -> None:
        """Refuse inputs with all of ``culprit``, for example as another gateway does."""
        refused_keys = frozenset(culprit)
        if refused_keys and self._seconds:
            self._refused[refused_keys] = now + self._seconds
            self._refused.move_to_end(refused_keys)
            while len(self._refused) > MAX_REFUSED_INPUTS:
                self._refused.popitem(last=False)

    # Suspecting

    def record_death(
        self, executor: str, inflight: Iterable[InflightInvocation], now: float, deaf_since: float = inf
    ) -> None:
        """Record the suspects of a dead ``executor``; sets the ``culprit`` of refused invocations.

        Only the first report of a death counts. What was sent since ``deaf_since`` (monotonic seconds) never arrived:
        executors of a machine die together, and requests move from one to the next.
        """
        member = self._members.get(executor)
        if member is None:
            return
        waiting = [running for running in inflight if running.waits_for(executor) and not running.mirrored]
        held_keys = {
            running: _unfinished_keys(running, executor)
            for running in waiting
            if running.sent < deaf_since or executor in running.accepted
        }
        for running in held_keys:
            running.died_with.append(frozenset(member.status.components))
        if not self._seconds or not held_keys:
            return
        suspects: Culprit = frozenset().union(*held_keys.values())
        self._dead[executor] = member.status, suspects
        while len(self._dead) > MAX_DEAD_EXECUTORS:
            self._dead.popitem(last=False)
        for key in suspects:
            self._suspects[key] = self._suspects.get(key, 0) + 1
            self._suspects.move_to_end(key)
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        self._judge_suspects(held_keys, now)

    def note_status(self, status: ExecutorStatus) -> None:
        """Revoke the death of an executor if the same process reconnected."""
        if not self._dead or status.id not in self._dead:
            return
        last, suspects = self._dead.pop(status.id)
        if status.pid != last.pid or status.reconnects <= last.reconnects:
            return  # another process replaced it
        for key in suspects & self._suspects.keys():
            self._suspects[key] -= 1
            if not self._suspects[key]:
                del self._suspects[key]
        for culprit in [each for each in self._refused if each & suspects]:
            del self._refused[culprit]

    def clear_suspect(self, running: InflightInvocation, node: int) -> None:
        """Clear the input of ``node``, which finished."""
        if not self._suspects and not self._refused:
            return
        key = node_keys(running.invocation.nodes)[node]
        self._suspects.pop(key, None)
        for culprit in [each for each in self._refused if key in each]:
            del self._refused[culprit]

    def _judge_suspects(self, held_keys: Mapping[InflightInvocation, Culprit], now: float) -> None:
        """Refuse the input with the most deaths; if there are several, make each run alone."""
        deaths = max((self._suspects.get(key, 0) for keys in held_keys.values() for key in keys), default=0)
        if deaths < MAX_DEATHS:
            return
        worst = {run: frozenset(k for k in keys if self._suspects.get(k) == deaths) for run, keys in held_keys.items()}
        culprits = {keys for keys in worst.values() if keys}
        for running, keys in worst.items():
            if keys and len(culprits) == 1:
                running.culprit = keys
                self.refuse_inputs(keys, now)
            elif keys:
                running.single = True

    def refusal_error(self, running: InflightInvocation) -> BadInput | None:
        """Return the error for an input that killed its executors; None for any other."""
        return _refusal_error(self._seconds) if running.culprit else None

    # Moving

    def find_route(self, running: InflightInvocation) -> ExecutorRoute:
        """Return the next route of ``running``, if possible without suspiciously large executors.

        These run more components than an executor that died with it. Raises as ``running.again`` does.
        """
        lost_executors = frozenset(running.lost)
        larger = frozenset[str]().union(*map(self._members.larger_executors, running.died_with))
        if larger:
            try:
                return running.again(lost_executors | larger)
            except StageUnavailable:  # there are no others
                pass
        return running.again(lost_executors)

    def schedule_move(self, running: InflightInvocation, move: Callable[[], None]) -> None:
        """Call ``move`` now; if ``running`` must run alone, after the other ones that must."""
        if running.single and self._single not in (None, running):
            self._waiting.append((running, running.invocation.attempt, move))
            return
        if running.single:
            self._single = running
        move()

    def release_turn(self, running: InflightInvocation) -> None:
        """Start the next move that must run alone, because ``running`` ended."""
        if self._single is not running:
            return
        self._single = None
        while self._waiting and self._single is None:
            following, attempt, move = self._waiting.popleft()
            if not following.over and following.failure is None and following.invocation.attempt == attempt:
                self.schedule_move(following, move)


def _unfinished_keys(running: InflightInvocation, executor: str) -> Culprit:
    """Return the keys of the unfinished nodes of ``executor``."""
    keys, route = node_keys(running.invocation.nodes), running.invocation.route
    return frozenset(keys[node] for node, by in enumerate(route) if by == executor and node not in running.hops)


def _refusal_error(seconds: float) -> BadInput:
    return BadInput(
        f"this input ended {MAX_DEATHS} executors and is refused for {ceil(seconds)} seconds: send another one, or ask "
        "the operator, who finds it among the dead letters"
    )


class StageRestarts:
    """Determines which nodes of an invocation restart, and feeds them."""

    def __init__(self, bus: Bus, retention: OutputRetention, limit: int) -> None:
        self._bus = bus
        self._limit = limit
        self.retention = retention

    # What is retained

    def prepare_invocation(self, running: InflightInvocation, invocation: Invocation) -> Invocation:
        """Return ``invocation`` with the outputs to retain, and open their records."""
        keys = self.retention.retained_outputs(invocation)
        for key in keys:
            if key not in running.records:
                running.records[key] = self.retention.open_record(key)
        return self._fit_message(msgspec.structs.replace(invocation, retained=keys) if keys else invocation)

    def _fit_message(self, invocation: Invocation) -> Invocation:
        """Return ``invocation`` without the largest resume states that exceed the message size."""
        while invocation.resumes and len(graph.encode_invocation(invocation)) + _FRAME_OVERHEAD_BYTES > self._limit:
            log.info("%s restarts with less progress: its message is full", invocation.id)
            _, _, largest = max(invocation.resumes, key=lambda each: len(msgspec.json.encode(each)))
            left = tuple([each for each in invocation.resumes if each[2] != largest])  # both halves of a model, or none
            invocation = msgspec.structs.replace(invocation, resumes=left)
        return invocation

    def record_chunk(self, running: InflightInvocation, chunk: Chunk) -> None:
        """Record ``chunk`` between two nodes. Raises ``SequenceGap`` if a restarted reader misses it."""
        key = (chunk.node, chunk.output)
        record = running.records[key]
        targets = running.forwards.get(key, ())
        if self.retention.record_chunk(record, chunk):
            self._forward_chunk(chunk, targets)
        elif targets:
            raise SequenceGap(f"{chunk.output} of node {chunk.node} cannot be forwarded: a chunk of it is missing")

    # Which nodes

    def nodes_to_restart(self, running: InflightInvocation, lost_nodes: frozenset[int]) -> frozenset[int]:
        """Return the nodes that restart with the ``lost_nodes`` ones; all of them without retention."""
        everything = frozenset(range(len(running.attempts)))
        if not running.records or not lost_nodes:
            return everything
        usable = {}
        for key, record in running.records.items():
            alive = key[0] not in lost_nodes and running.executors[key[0]] not in running.lost
            usable[key] = (record.whole or alive) and self.retention.is_usable(record)
        return affected_nodes(running.invocation, lost_nodes, running.hops, usable)

    def end_messages(self, running: InflightInvocation, again: frozenset[int]) -> Iterable[tuple[str, InvocationEnd]]:
        """Yield each executor of the nodes ``again`` and its ``InvocationEnd`` message."""
        invocation = running.invocation
        for executor in dict.fromkeys(running.executors[node] for node in sorted(again)):
            own = frozenset(node for node, by in enumerate(running.executors) if by == executor)
            remaining_nodes = running.unfinished_nodes(executor) - again
            yield (
                executor,
                InvocationEnd(
                    invocation.id,
                    "moved",
                    invocation.attempt,
                    nodes=tuple(sorted(own & again)) if remaining_nodes else (),
                ),
            )

    def drop_outputs(self, running: InflightInvocation, again: frozenset[int]) -> None:
        """Drop the outputs of the nodes ``again``, which will send them again."""
        for key in [key for key in running.records if key[0] in again]:
            if key[1] == CHECKPOINT:
                running.records[key].restart()  # its node resumes from it
            else:
                self.retention.drop_record(running.records.pop(key))

    # Feeding them

    def feed_nodes(self, running: InflightInvocation, again: frozenset[int]) -> None:
        """Forward earlier and future outputs to the nodes ``again``."""
        forwards: dict[Key, list[tuple[str, int]]] = {}
        new: dict[Key, list[tuple[str, int]]] = {}
        for reader, node in enumerate(running.invocation.nodes):
            to = (running.executors[reader], running.attempts[reader])
            for use in node.uses if reader not in running.hops else ():
                if running.attempts[use[0]] != to[1]:
                    forwards.setdefault(use, []).append(to)
                    if reader in again:
                        new.setdefault(use, []).append(to)
        running.forwards = {key: list(dict.fromkeys(targets)) for key, targets in forwards.items()}
        for key, targets in new.items():
            for chunk in running.records[key].chunks:
                self._forward_chunk(chunk, dict.fromkeys(targets))

    def _forward_chunk(self, chunk: Chunk, targets: Iterable[tuple[str, int]]) -> None:
        for executor, attempt in targets:
            body = messages.encode(msgspec.structs.replace(chunk, attempt=attempt))
            try:
                for frame in messages.join_frames([body], self._limit):
                    self._bus.publish(subjects.edge_subject(executor), frame)
            except OmnibusError as error:  # the reader's deadline covers it
                log.warning("cannot forward a chunk of %s to %s: %s", chunk.inv, executor, error)
