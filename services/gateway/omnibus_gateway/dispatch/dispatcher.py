"""Dispatch of invocations: sends each to all executors of its route, and receives the answers.

An executor is replaced if it has no subscriber, replies ``busy``, falls silent or dies. Its nodes move to a route
without it, as the next attempt, together with the nodes that depend on them. Other nodes continue if their outputs are
retained (``omnibus_gateway.dispatch.failures``). The client never receives an output twice.
Nodes that still run when their invocation ends may report late.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import msgspec
import numpy as np

from omnibus import graph, tracing
from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.messages import Accepted, BusyReply, Chunk, ExecutorStatus, Hop, InvocationEnd, NodeFailed
from omnibus.cluster.digests import StatusFilter
from omnibus.cluster.presence import follow_events
from omnibus.errors import (
    NodeUnreachable,
    OmnibusError,
    Overloaded,
    ProtocolError,
    SequenceGap,
    StageUnavailable,
    StaleHandle,
    TooLarge,
    from_problem,
)
from omnibus.graph import Invocation
from omnibus.metrics import GATEWAY
from omnibus.recording import dead_letters
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle
from omnibus_gateway.dispatch.failures import FailureDetector, Quarantine, StageRestarts
from omnibus_gateway.dispatch.inflight import Again, InflightInvocation, OutputPlayer, Tapes
from omnibus_gateway.dispatch.remote import RemoteChunks
from omnibus_gateway.dispatch.retention import OFF, OutputRetention, create_captures
from omnibus_gateway.routing.executors import ExecutorTable

#: Seconds that executors have to report their computation for an invocation that ended early.
REPORT_SECONDS = 1.0


class _Ended:
    """An ended invocation, its missing reports and a callback."""

    def __init__(self, running: InflightInvocation, nodes: set[tuple[int, int]], then: Callable[[], None]) -> None:
        self.running = running
        self.nodes = nodes
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class LateReports:
    """Ended invocations whose executors may still report."""

    def __init__(self, members: ExecutorTable) -> None:
        self._members = members
        self._ended: dict[str, _Ended] = {}

    def wait(self, running: InflightInvocation, then: Callable[[], None]) -> None:
        """Call ``then`` when all nodes of ``running`` have reported or timed out."""
        attempts = running.attempts
        nodes = {
            (node, attempts[node])
            for node, executor in enumerate(running.executors)
            if node not in running.hops and executor not in running.lost and self._members.get(executor) is not None
        } - running.unfinished.keys()
        if not nodes or running.id in self._ended:
            then()
            return
        ended_invocation = self._ended[running.id] = _Ended(running, nodes, then)
        ended_invocation.timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._finish, running.id)

    def add_report(self, hop: Hop) -> None:
        """Add a report of an invocation that is not running."""
        ended_invocation = self._ended.get(hop.inv)
        if ended_invocation is None:
            return
        if hop.attempt < 0:
            ended_invocation.running.add_unfinished(hop)
            ended_invocation.nodes.discard((hop.node, ~hop.attempt))
        elif ended_invocation.running.is_current(hop.node, hop.attempt):  # it finished before it received the end
            ended_invocation.running.hops[hop.node] = hop
            ended_invocation.nodes.discard((hop.node, hop.attempt))
        if not ended_invocation.nodes:
            self._finish(hop.inv)

    def _finish(self, id: str) -> None:
        ended_invocation = self._ended.pop(id, None)
        if ended_invocation is not None:
            if ended_invocation.timer is not None:
                ended_invocation.timer.cancel()
            ended_invocation.then()

    def close(self) -> None:
        """Stop waiting for reports."""
        for id in list(self._ended):
            self._finish(id)


log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.25  # seconds that the last nodes have to report their times
MAX_ATTEMPTS = 4  # routes that an invocation may take
#: Reasons with a known loss, an executor's nodes. For any other reason the whole invocation restarts.
_EXECUTOR_LOSS_REASONS = frozenset({"gone", "busy", "silent", "unavailable"})


class Dispatcher:
    """Sends invocations, receives replies, moves lost work."""

    def __init__(
        self, gateway: str, bus: Bus, tensors: TensorClient, members: ExecutorTable, limit: int, quarantine: float = 0.0
    ) -> None:
        self._gateway = gateway
        self._limit = limit
        self._bus = bus
        self._tensors = tensors
        self._members = members
        self._running: dict[str, InflightInvocation] = {}
        self.late_reports = LateReports(members)
        self._watcher = FailureDetector(gateway, bus, members, self._running, self._reroute, self._on_gone)
        self._quarantine = Quarantine(members, quarantine)
        self._emptied = asyncio.Event()
        self._fresh = StatusFilter()
        #: Retained outputs of running invocations.
        self.retention = OutputRetention(tensors)
        self._restarts = StageRestarts(bus, self.retention, limit)
        self._remote = RemoteChunks(tensors, partial(self._on_chunk, arrived=True), self._on_pull_failed)
        #: Whether to capture the outputs that nodes pass to each other.
        self.keeps = False
        self.reply = subjects.reply_subject(gateway)

    async def startup(self) -> None:
        await self._bus.subscribe(self.reply, self._on_reply)
        await self._bus.subscribe(f"{self.reply}.>", self._on_refused)
        handlers: dict[str, Callable[[Any], None]] = {subjects.EXECUTOR: self._on_status, subjects.GONE: self._on_gone}
        await follow_events(self._bus, handlers, partial(log.warning, "%s"), self._watcher.census, self._fresh)
        await self._bus.subscribe(subjects.DEAD, self._on_dead_letter)
        self._watcher.start()

    async def shutdown(self) -> None:
        await self._watcher.stop()
        for running in list(self._running.values()):
            self.finish(running, "cancelled")
        self.late_reports.close()

    @property
    def is_connected(self) -> bool:
        return self._bus.connected

    @property
    def inflight_count(self) -> int:
        return len(self._running)

    def fail_all(self, error: OmnibusError) -> None:
        """Fail all invocations in flight with ``error``."""
        for running in list(self._running.values()):
            running.fail(error)

    async def wait_idle(self, seconds: float) -> None:
        """Wait until nothing is in flight, at most ``seconds``."""
        self._emptied.clear()
        if self._running:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    # Out

    def submit(
        self,
        invocation: Invocation,
        work: Sequence[float],
        again: Again,
        trace: tracing.Carrier | None = None,
        prepare: Callable[[InflightInvocation], None] | None = None,
        mirrored: bool = False,
    ) -> InflightInvocation:
        """Send ``invocation`` to every executor of its route; ``work`` is in tokens per node.

        ``again`` finds another route when an executor is lost. Pass the function that found the first one, for example
        ``functools.partial(router.route, assignment, ticket, pinned=pinned, pins=pins)``. ``trace`` is the parent
        trace; ``prepare`` is called before anything is sent. If ``mirrored``, all outputs are captured, and a failure
        does not make the input a suspect.
        """
        tapes = create_captures(invocation, self._tensors, mirrored) if mirrored or self.keeps else {}
        running = InflightInvocation(invocation, work, again, self._fetch_array, self._members, tapes)
        running.mirrored = mirrored
        running.span = tracing.start_invocation_span(invocation, trace or {})
        if prepare is not None:
            prepare(running)
        self._running[invocation.id] = running
        try:
            self._quarantine.check_invocation(invocation, time.monotonic())
            self._send_attempt(running)
        except OmnibusError:
            self.finish(running, "failed")
            raise
        return running

    def _send_attempt(self, running: InflightInvocation) -> None:
        invocation = running.invocation
        running.charge_executors()
        running.sent = time.monotonic()
        if running.tapes:
            output_keys = tuple(dict.fromkeys([*invocation.outputs, *running.tapes]))
            invocation = msgspec.structs.replace(invocation, outputs=output_keys)
        elif len(invocation.nodes) > 1 or invocation.attempt:
            invocation = running.invocation = self._restarts.prepare_invocation(running, invocation)
        body = running.body = graph.encode_invocation(running.with_places(invocation, self._tensors.node))
        if len(body) > self._limit:  # the bus would reject it with its own message
            raise TooLarge(
                f"The request has {len(body)} bytes in addition to its media, the limit is {self._limit}: "
                "shorten its fields"
            )
        headers = running.headers if running.tenant or running.span is not None else None
        receivers = set()
        for index, (node, executor) in enumerate(zip(invocation.nodes, invocation.route, strict=True)):
            if executor not in receivers and executor not in running.absent and invocation.starts_node(index):
                receivers.add(executor)
                refusal_subject = subjects.refused_subject(self._gateway, invocation.id, invocation.attempt, executor)
                self._bus.publish(
                    subjects.task_subject(node.task, executor), body, reply=refusal_subject, headers=headers
                )
        if running.on_sent is not None:
            running.on_sent(running)

    def create_player(self, name: str, start: int, tapes: Tapes) -> OutputPlayer:
        """Create a player of ``tapes`` for the nodes before ``start``, without executors."""
        return OutputPlayer(self._bus, self._tensors, self._limit, name, start, tapes)

    def finish(self, running: InflightInvocation, status: str) -> None:
        """End the invocation: one ``end`` event, at which every holder releases its tensors."""
        if running.over:
            return
        running.over = True
        running.discharge_all()
        for tape in running.tapes.values():
            tape.close()
        if running.records:
            self.retention.close_records(running.records)
        self._running.pop(running.id, None)
        if not self._running:
            self._emptied.set()
        for pull in running.pulls:
            pull.cancel()
        self._notify_end(running, status)
        if running.span is not None:
            why = running.failure.code if running.failure is not None else "" if status == "done" else status
            running.span.end(why, {"omnibus.status": status, "omnibus.attempts": running.invocation.attempt + 1})
        if running.may_hold_tensors:
            self._tensors.end_invocation(running.id)
        self._quarantine.release_turn(running)

    def stop_invocation(self, invocation: str, executors: Iterable[str]) -> None:
        """End an invocation that another gateway sent to ``executors`` before it died; idempotent."""
        end = InvocationEnd(invocation, "cancelled", MAX_ATTEMPTS)
        publish_end(self._bus, self._limit, end, ((executor, end) for executor in executors))

    def _notify_end(self, running: InflightInvocation, status: str) -> None:
        """Notify the executors that may still hold tensors, and the observers."""
        invocation = running.invocation
        holders = () if status == "done" and running.all_reported else dict.fromkeys(invocation.route)
        over = InvocationEnd(invocation.id, status, invocation.attempt)
        publish_end(self._bus, self._limit, over, ((executor, over) for executor in holders))
        if elsewhere := running.nodes - {self._tensors.node}:
            publish_end_to_nodes(self._bus, over, elsewhere)

    def complete(self, running: InflightInvocation, then: Callable[[], None]) -> None:
        """Finish an answered invocation once all nodes have reported their times."""
        timer: asyncio.TimerHandle | None = None

        def finish_done() -> None:
            if timer is not None:
                timer.cancel()
            if not running.over:
                self.finish(running, "done")
                then()

        if running.all_reported:
            finish_done()
        else:
            running.on_settled = finish_done
            timer = asyncio.get_running_loop().call_later(SETTLE_SECONDS, finish_done)

    # In

    def _fetch_array(self, handle: Handle) -> np.ndarray:
        array = np.array(self._tensors.view(handle))
        self._tensors.release(handle)
        return array

    def _on_reply(self, delivery: Delivery) -> None:
        for message in messages.decode_replies(delivery.data) if delivery.data else ():  # empty: a probe
            running = self._running.get(message.inv)
            if running is None:
                if type(message) is Hop:
                    self.late_reports.add_report(message)
                continue
            match message:
                case Chunk() if running.attempts.get(message.node) == message.attempt:  # saves a call per token
                    self._on_chunk(running, message)
                case Hop() if running.is_current(message.node, message.attempt):
                    running.finish_node(message)
                    self._quarantine.clear_suspect(running, message.node)
                case Hop() if message.attempt < 0:
                    running.add_unfinished(message)
                case Accepted() if running.holds_nodes(message.executor, message.attempt):
                    running.mark_accepted(message.executor)
                case NodeFailed() if running.is_current(message.node, message.attempt):
                    self._on_failed(running, message)
                case BusyReply() if running.holds_nodes(message.executor, message.attempt):
                    busy = Overloaded(f"executor {message.executor} is at its limit", retry_after=message.retry_after)
                    self._reroute(running, message.executor, busy, "busy")

    def _on_chunk(self, running: InflightInvocation, chunk: Chunk, arrived: bool = False) -> None:
        """Handle ``chunk``. Its tensor is viewed at once, unless it is remote and has not ``arrived``."""
        crosses = chunk.handle is not None and chunk.handle.node != self._tensors.node
        if (crosses or running.arriving) and not arrived and self._remote.must_wait(running, chunk):
            self._remote.add_chunk(running, chunk)
            return
        key = (chunk.node, chunk.output)
        stream, tape = running.streams.get(key), running.tapes.get(key)
        try:
            if tape is not None:
                tape.add_chunk(chunk)
            if stream is not None:
                stream.feed_chunk(chunk)
                if running.on_taken is not None:  # output passed through all executors of the route
                    running.notify_accepted()
            elif key in running.records:
                self._restarts.record_chunk(running, chunk)
        except SequenceGap as error:  # the bus lost a message: rerun, without repeats
            self._reroute(running, "", error, "gap")
        except OmnibusError as error:  # freed memory, or no sidecar
            running.fail(error)

    def _on_failed(self, running: InflightInvocation, failure: NodeFailed) -> None:
        error = from_problem(failure.problem)
        running.failed = failure.node
        if isinstance(error, StageUnavailable):  # the process is alive but its engine is not: others can take the work
            self._reroute(running, error.executor, error, "unavailable")
        elif isinstance(error, NodeUnreachable):
            self._avoid_node(running, error, running.executors[failure.node])
        elif (
            isinstance(error, StaleHandle | ProtocolError | SequenceGap)
            and running.invocation.attempt + 1 < MAX_ATTEMPTS
        ):
            self._retry(running, error, "retry")
        else:
            running.fail(error)

    def _on_pull_failed(self, running: InflightInvocation, chunk: Chunk, error: OmnibusError) -> None:
        """Handle a tensor of ``chunk`` that cannot be pulled."""
        if running.over or running.attempts.get(chunk.node) != chunk.attempt:
            return
        if isinstance(error, NodeUnreachable):
            self._avoid_node(running, error, "")
        elif isinstance(error, StaleHandle) and running.invocation.attempt + 1 < MAX_ATTEMPTS:
            self._retry(running, error, "retry")
        else:
            running.fail(error)

    def _avoid_node(self, running: InflightInvocation, error: NodeUnreachable, reader: str) -> None:
        """Rerun without the unreachable node, or else without ``reader``, an executor."""
        for executors in (running.executors_on(error.node), frozenset({reader} - {""})):
            if not executors:
                continue
            try:
                running.again(frozenset(running.lost | executors))
            except OmnibusError:
                continue
            running.lost |= executors
            self._reroute(running, "", error, "node")
            return
        running.fail(error)

    def _on_refused(self, delivery: Delivery) -> None:
        """Handle the server's reply that an executor's subject has no subscriber."""
        if not delivery.refused:
            return
        invocation, attempt, executor = subjects.parse_refused_subject(delivery.subject)
        is_gone, running = self._watcher.handle_refusal(invocation, attempt, executor), self._running.get(invocation)
        if running is None or is_gone is None or not (is_gone or running.has_alternative(executor)):
            return  # it may only be changing servers, and no other executor can take the work
        if running.invocation.attempt == attempt and executor not in running.lost:
            self._reroute(running, executor, running.gone_error(executor), "gone")

    def _on_status(self, status: ExecutorStatus) -> None:
        self._quarantine.note_status(status)
        if self._watcher.handle_status(status):
            self._on_gone(status.id, died=False)

    def _on_dead_letter(self, delivery: Delivery) -> None:
        """Refuse an input that this or another gateway refused."""
        try:
            self._quarantine.refuse_inputs(dead_letters.decode_dead_letter(delivery.data).refused, time.monotonic())
        except ProtocolError as error:
            log.warning("%s", error)

    def _on_gone(self, executor: str, deaf_since: float = inf, *, died: bool = True) -> None:
        """Move the work of ``executor``, which ``died`` or left. It got no messages since ``deaf_since``, if known."""
        if died:
            self._quarantine.record_death(executor, self._running.values(), time.monotonic(), deaf_since)
        self._members.remove(executor)
        self._fresh.note_gone(executor)
        for running in list(self._running.values()):
            if running.waits_for(executor):
                self._reroute(running, executor, running.gone_error(executor), "gone")

    # Move

    def _reroute(self, running: InflightInvocation, executor: str, error: OmnibusError, reason: str) -> None:
        """Start the next attempt without ``executor``, or fail with ``error``."""
        if executor:
            running.lost.add(executor)
        if running.over or running.failure is not None or running.on_settled is not None:
            return  # no node is missing any more
        refusal = self._quarantine.refusal_error(running)
        if refusal is not None or running.invocation.attempt + 1 >= MAX_ATTEMPTS:
            running.record_failed_attempt(reason, error)
            running.fail(refusal or error)
            return
        self._quarantine.schedule_move(running, partial(self._retry, running, error, reason))

    def _retry(self, running: InflightInvocation, error: OmnibusError, reason: str) -> None:
        running.record_failed_attempt(reason, error)
        lost_nodes = frozenset[int]()
        if reason in _EXECUTOR_LOSS_REASONS:  # of all deaths since the last attempt: a move may have been queued
            lost_nodes = lost_nodes.union(*map(running.unfinished_nodes, running.lost))
        again = self._restarts.nodes_to_restart(running, lost_nodes)
        try:
            route = self._quarantine.find_route(running)
        except OmnibusError as none:
            running.fail(none if reason == "gone" and isinstance(none, StageUnavailable) else error)
            return
        GATEWAY.moved.labels(reason).inc()
        GATEWAY.restarts.labels("again").inc(len(again))
        GATEWAY.restarts.labels("spared").inc(len(running.attempts) - len(again))
        publish_end(
            self._bus,
            self._limit,
            InvocationEnd(running.id, "moved", running.invocation.attempt),
            self._restarts.end_messages(running, again),
        )
        running.begin_attempt(route, again, resumes=self.retention.policy != OFF)
        self._restarts.drop_outputs(running, again)
        log.info("%s moves to attempt %d: %s", running.id, running.invocation.attempt, error)
        try:
            self._send_attempt(running)
            self._restarts.feed_nodes(running, again)
        except OmnibusError as unsent:
            running.fail(unsent)


def publish_end(bus: Bus, limit: int, over: InvocationEnd, holders: Iterable[tuple[str, InvocationEnd]]) -> None:
    """Send executors in ``holders`` their end of an invocation, and observers ``over``."""
    try:
        for executor, end in holders:
            (frame,) = messages.join_frames([messages.encode(end)], limit)
            bus.publish(subjects.edge_subject(executor), frame)
        # Only observers read this one: the executors were notified above.
        bus.publish(subjects.end_subject(over.inv), messages.encode(over), lazy=True)
    except OmnibusError as error:  # holders fall back on the deadline
        log.warning("end of %s not sent: %s", over.inv, error)


def publish_end_to_nodes(bus: Bus, over: InvocationEnd, nodes: Iterable[str]) -> None:
    """Let the sidecars of other ``nodes`` free the tensors of the invocation."""
    for node in nodes:
        try:
            bus.publish(subjects.node_subject(node), messages.encode(over))
        except OmnibusError as error:  # memory there is freed at the deadline
            log.warning("end of %s not sent to node %s: %s", over.inv, node, error)
