"""The executor: takes invocations from the bus, runs their nodes, sends results.

- take: an invocation arrives. Reply ``busy``, or start one job per node that is routed here and reply ``accepted``.
- feed: edges bring inputs, possibly before the invocation itself.
- run: the component's runner works on the job. Outputs are sent as they are made.
- end: done, failed, cancelled, expired or moved. Stop within one step, and release everything.

Confirmations of accepted work, batched: one frame per gateway and interval.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping

import msgspec

from omnibus import graph, tracing
from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.census import find_answer_subject
from omnibus.bus.coalescer import Outbox
from omnibus.bus.heartbeats import EXECUTOR_HEARTBEAT_SECONDS, ReconnectMonitor, RefusalMonitor
from omnibus.bus.messages import Accepted, BusyReply, Chunk, ExecutorStatus, Hop, InvocationEnd, NodeFailed
from omnibus.bus.relays import RelayChoice
from omnibus.errors import DeadlineExceeded, OmnibusError, ProtocolError, StageFailed
from omnibus.executor.attempts import Attempts, LiveAttempt
from omnibus.executor.edges import ChannelChunk, EarlyMessages
from omnibus.executor.energy_meters import EnergyBill, EnergyMeter
from omnibus.executor.job import LiveJob
from omnibus.executor.job_clock import set_current_clock
from omnibus.executor.runner import Item, Runner
from omnibus.executor.status import ExecutorIdentity, Vitals
from omnibus.executor.task_subscriptions import TaskSubscriptions, select_own_nodes
from omnibus.executor.tenant_order import NO_TENANT, read_tenant
from omnibus.graph import Invocation
from omnibus.metrics import EXECUTOR
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import unpack_tensor

ACK_DELAY_SECONDS = 0.2  # longest delay until the gateway learns that an invocation was accepted
#: The same for one that resumes an earlier attempt: its client has waited for long enough.
RESUMED_ACK_DELAY_SECONDS = 0.01


class Confirmations:
    """Collects ``accepted`` messages and times of finished nodes until the interval ends."""

    def __init__(self, executor: str, outbox: Outbox) -> None:
        self._executor = executor
        self._outbox = outbox
        self._taken: dict[str, tuple[Invocation, list[bytes]]] = {}
        self._records: dict[str, list[bytes]] = {}  # by reply subject, chunks in order
        self._timer: asyncio.TimerHandle | None = None
        self._timer_seconds = 0.0  # the delay that it was started with

    def add_retained_chunk(self, invocation: Invocation, chunk: bytes) -> None:
        """Queue ``chunk`` for the gateway, which retains it; it was sent to another node. Chunks keep their order."""
        self._records.setdefault(invocation.reply, []).append(chunk)
        self._start_timer(ACK_DELAY_SECONDS)

    def add_accepted(self, invocation: Invocation) -> None:
        """Queue the confirmation that this executor works on ``invocation``."""
        self._taken[invocation.id] = (invocation, [])
        self._start_timer(RESUMED_ACK_DELAY_SECONDS if invocation.resumes else ACK_DELAY_SECONDS)

    def _start_timer(self, seconds: float) -> None:
        if self._timer is not None:
            if seconds >= self._timer_seconds:  # as nearly always: no need to read the clock
                return
            self._timer.cancel()
        self._timer_seconds = seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self.send_pending)

    def add_finished_node(self, invocation: Invocation, hop: Hop) -> None:
        """Queue the times of a finished node; they also travel with its outputs."""
        pending = self._taken.get(invocation.id)
        if pending is not None:
            pending[1].append(messages.encode(hop))
        else:
            self._outbox.send(invocation.reply, messages.encode(hop), lazy=True)

    def discard_accepted(self, invocation: str) -> None:
        """Drop the confirmation: the gateway has this executor's results, which imply it."""
        self._taken.pop(invocation, None)

    def send_pending(self) -> None:
        """Send everything that is queued now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._taken = self._taken, {}
        for invocation, extra_messages in pending.values():
            acceptance = Accepted(invocation.id, self._executor, invocation.attempt)
            for message in (messages.encode(acceptance), *extra_messages):
                self._outbox.send(invocation.reply, message)
        records, self._records = self._records, {}
        for subject, chunks in records.items():
            for chunk in chunks:
                self._outbox.send(subject, chunk)


log = logging.getLogger(__name__)

_STATUS_SUBJECT = subjects.event_subject(subjects.EXECUTOR)
RECONNECT_GRACE_SECONDS = 1.5  # seconds that gateways have to reappear after a reconnect


class Executor:
    """One replica of a deployment option. ``runners`` maps a component to its engine."""

    def __init__(
        self,
        identity: ExecutorIdentity,
        runners: Mapping[str, Runner],
        bus: Bus,
        tensors: TensorClient,
        limit: int,
        meter: EnergyMeter | None = None,
    ) -> None:
        """``limit`` is the size of a message in bytes; ``meter`` is the device's energy meter, if it has one."""
        self.identity = identity
        self._runners = runners
        self._bus = bus
        self._tensors = tensors
        self._outbox = Outbox(bus, limit, subjects.no_responders_prefix(identity.id))
        self._live = Attempts()
        self._early = EarlyMessages()
        self._state = "ready"
        self._vitals = Vitals(identity, runners)
        self._energy = EnergyBill(meter, self._vitals.busy_seconds) if meter is not None else None
        self._tasks = TaskSubscriptions(bus, self._on_invocation, self._on_manual_request, self._vitals.component_stats)
        self._heart: asyncio.Task[None] | None = None
        self._metering: asyncio.Task[None] | None = None
        self._confirmations = Confirmations(identity.id, self._outbox)
        self._relay = RelayChoice(identity.id)
        self._told_state = ""  # the state that all were told last
        self._beat = int(time.time() * 1000)  # larger than that of an earlier process with this id
        self._comeback = ReconnectMonitor(bus)
        self._refusals = RefusalMonitor(bus, RECONNECT_GRACE_SECONDS)

    @property
    def runners(self) -> Mapping[str, Runner]:
        """The runners by component."""
        return self._runners

    # Life

    async def startup(self) -> None:
        """Load the engines, then publish the executor: requests are routed here only once it can serve them."""
        for runner in self._runners.values():
            await runner.load()
        me = self.identity
        self._vitals.register_metrics(lambda: len(self._live))
        await self._bus.subscribe(subjects.edge_subject(me.id), self._on_edges)
        await self._bus.subscribe(f"{subjects.no_responders_prefix(me.id)}.*", self._on_no_responders)
        await self._bus.subscribe(subjects.event_subject(subjects.CENSUS), self._on_census)
        await self._bus.subscribe(subjects.event_subject(subjects.RELAY), self._relay.handle_announcement)
        await self._tasks.open(me)
        loop = asyncio.get_running_loop()
        self._heart = loop.create_task(self._send_heartbeats())
        self._metering = loop.create_task(self._energy.follow_meter()) if self._energy is not None else None
        log.info("ready: %s of %s on %s", "+".join(me.tasks.values()), me.model, me.node)

    async def drain(self, seconds: float) -> None:
        """Reject new work, finish accepted work within ``seconds``, then stop."""
        await self._finish_work(seconds)
        if self._heart is not None:
            self._heart.cancel()
        if self._metering is not None:
            self._metering.cancel()
        for runner in self._runners.values():
            await runner.close()

    async def take_role(self, identity: ExecutorIdentity, runners: Mapping[str, Runner], seconds: float) -> None:
        """Finish accepted work within ``seconds``, then continue as ``identity`` with ``runners``.

        Gateways see one executor end and another one start, and move unfinished work. Engines that both roles use stay
        loaded.
        """
        await self._finish_work(seconds)
        await self._stop_unfinished()
        await self._tasks.close()
        before, self._runners = self._runners, runners
        for component, runner in runners.items():
            if before.get(component) is not runner:
                await runner.load()
        for component, runner in before.items():
            if runners.get(component) is not runner:
                await runner.close()
        self.identity = identity
        self._vitals.change_role(identity, runners)
        await self._tasks.open(identity)
        self._state = "ready"
        self._publish_status()
        log.info("now %s of %s", "+".join(identity.tasks.values()), identity.model)

    async def _stop_unfinished(self) -> None:
        """Cancel the work that the drain did not wait for; it runs again elsewhere."""
        tasks = [task for live in self._live for task in live.tasks.values()]
        for invocation in {live.invocation.id for live in self._live}:
            self._stop_invocation(invocation)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish_work(self, seconds: float) -> None:
        """Reject new work, finish accepted work within ``seconds``, then publish ``gone``."""
        self._state = "draining"
        self._publish_status()
        tasks = [task for live in self._live for task in live.tasks.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        # Before the state ``gone``: a gateway runs a node again elsewhere unless it has the node's result.
        self._confirmations.send_pending()
        self._outbox.flush()
        self._state = "gone"
        self._publish_status()

    async def _send_heartbeats(self) -> None:
        while True:
            self._publish_heartbeat()
            self._end_expired()
            self._comeback.reconnected_within(RECONNECT_GRACE_SECONDS)  # records the time of a reconnect
            for gateway in self._refusals.overdue_peers():
                self._probe_gateway(gateway)
            await asyncio.sleep(EXECUTOR_HEARTBEAT_SECONDS)

    def _publish_heartbeat(self) -> None:
        """Publish the status to a relay if there is one, and a new state to all."""
        is_new = self._vitals.find_state(self._state) != self._told_state
        self._publish_status("" if is_new else self._relay.heartbeat_subject())

    def _on_census(self, delivery: Delivery) -> None:
        if subject := find_answer_subject(delivery, subjects.EXECUTOR):
            self._publish_status(subject)

    def _publish_status(self, subject: str = "") -> None:
        """Publish the status on ``subject``, or to all."""
        self._beat += 1
        status = self.status()
        if not subject:
            self._told_state = status.state
        try:
            self._bus.publish(subject or _STATUS_SUBJECT, msgspec.json.encode(status))
        except OmnibusError as error:
            log.warning("status not sent: %s", error)

    def _probe_gateway(self, reply_subject: str) -> None:
        """Publish to the gateway again; if it is gone, the server reports no responders."""
        answer_to = f"{subjects.no_responders_prefix(self.identity.id)}.{reply_subject.rpartition('.')[2]}"
        try:
            self._bus.publish(reply_subject, b"", reply=answer_to)
        except OmnibusError as error:
            log.warning("cannot look for %s: %s", reply_subject, error)

    def status(self) -> ExecutorStatus:
        status = self._vitals.make_status(self._state, len(self._live))
        return msgspec.structs.replace(status, reconnects=self._bus.reconnects, beat=self._beat)

    def _end_expired(self) -> None:
        """Fail jobs past their deadline, even if their gateway is gone; drop expired early edges."""
        now = time.time()
        for live in [live for live in self._live if live.invocation.deadline < now]:
            for job in live.jobs.values():
                self._fail_job(live, job, DeadlineExceeded(f"the deadline passed in {job.node.component}"))
            self._stop_invocation(live.invocation.id, over=True)
        self._early.drop_expired()

    # Take

    def _on_invocation(self, delivery: Delivery) -> None:
        try:
            invocation = graph.decode_invocation(delivery.data)
        except ProtocolError as error:
            log.error("%s: %s", delivery.subject, error)
            return
        invocation = invocation.by_own_clock(self.identity.node, time.time())
        self._refusals.note_sign_of_life(invocation.reply)
        live_attempt = self._live.newest_attempt(invocation.id)
        if live_attempt is not None:
            if live_attempt.invocation.attempt >= invocation.attempt:
                return
            self._live.stop_superseded(invocation)
            live_attempt = self._live.newest_attempt(invocation.id)
        if self._state != "ready" or self._is_full(live_attempt) or not self._vitals.is_serving:
            EXECUTOR.refused.inc()
            self._send_reply(invocation, BusyReply(invocation.id, self.identity.id, invocation.attempt))
            return
        self._start_attempt(invocation, delivery.headers, graph.may_hold_handles(delivery.data))
        self._confirmations.add_accepted(invocation)

    def _is_full(self, attempt: LiveAttempt | None) -> bool:
        """Return whether the executor is full. An invocation with an earlier attempt here keeps that place."""
        return attempt is None and len(self._live) >= self.identity.credits

    def _start_attempt(
        self, invocation: Invocation, headers: Mapping[str, str] | None, handles: bool = True
    ) -> LiveAttempt:
        """Start the jobs of ``invocation``; without ``handles``, its message contains no handles."""
        live = LiveAttempt(invocation)
        self._live.add(live)
        if tracing.tracer is not None:
            live.trace = tracing.extract_context(headers)
        me, tenant = self.identity.id, read_tenant(headers) if headers else NO_TENANT
        for index, executor in enumerate(invocation.route):
            if executor == me and invocation.starts_node(index):
                record = self._confirmations.add_retained_chunk
                live.jobs[index] = LiveJob(
                    invocation, index, me, self._outbox, self._tensors, record, self.identity.inline, handles
                )
        loop = asyncio.get_running_loop()
        for job in live.jobs.values():
            job.clock.tenant = tenant
            job.connect_outputs(live.jobs)
        for message in self._early.take_messages(invocation.id):
            self._deliver_message(live, message)
        for job in live.jobs.values():
            live.tasks[job.index] = loop.create_task(self._run_job(live, job))
        return live

    async def _run_job(self, live: LiveAttempt, job: LiveJob) -> None:
        component = self.identity.tasks.get(job.node.task, "")
        set_current_clock(job.clock)
        try:
            runner = self._runners.get(component)
            if runner is None:
                raise StageFailed(f"executor {self.identity.id} has no {job.node.task}: the route is stale")
            if live.invocation.resumes:
                await job.open_checkpoints()
            await runner.run(job)
            hop = job.finish_outputs()
            if self._energy is not None:
                hop = self._energy.charge_hop(component, hop)
            self._send_hops(live, job, hop)
            tracing.record_node_spans(live.trace, live.invocation, hop)
            EXECUTOR.observe_finished(component, hop.taken, hop.ready, hop.first, hop.end)
            self._vitals.done[component] += 1
        except asyncio.CancelledError:
            self._report_unfinished(live, job)
            raise
        except OmnibusError as error:
            self._fail_job(live, job, error)
        except Exception as error:  # an error of the engine fails one request; the executor continues
            log.exception("%s failed on %s", component, job.invocation)
            self._fail_job(live, job, StageFailed(f"{component} failed on this request ({type(error).__name__})"))
        finally:
            self._vitals.steps += 1
            job.release_memory()
            self._finish_job(live, job)

    def _send_hops(self, live: LiveAttempt, job: LiveJob, hop: Hop) -> None:
        """Send the times after the last output, to its executor or gateway.

        The next executor may work for long. The gateway therefore also gets the times from here, with low priority.
        """
        hops, live.hops = [*live.hops, hop], []
        if job.next_edge is None and len(live.jobs) > 1 and not job.answers:
            live.hops = hops  # a later node in this process sends them
            return
        for each in hops:
            self._outbox.send(job.next_edge or live.invocation.reply, messages.encode(each))
        if job.next_edge is not None:
            self._confirmations.add_finished_node(live.invocation, hop)

    def _fail_job(self, live: LiveAttempt, job: LiveJob, error: OmnibusError) -> None:
        error.stage = error.stage or job.node.component
        error.executor = self.identity.id
        error.attempt = live.invocation.attempt
        EXECUTOR.job_counter(self.identity.tasks.get(job.node.task, ""), error.code).inc()
        tracing.record_node_spans(live.trace, live.invocation, job.make_hop(), error.code)
        self._send_reply(
            live.invocation, NodeFailed(job.invocation, job.index, error.to_problem(), live.invocation.attempt)
        )
        self._report_unfinished(live, job)

    def _report_unfinished(self, live: LiveAttempt, job: LiveJob) -> None:
        """Report the seconds computed for an unfinished job; they are charged as well."""
        by_hand = not live.invocation.reply.startswith(subjects.reply_subject(""))
        if not (job.clock.closed or by_hand):
            job.clock.closed = True
            hop = job.make_hop()
            self._send_reply(live.invocation, msgspec.structs.replace(hop, attempt=~hop.attempt))

    def _finish_job(self, live: LiveAttempt, job: LiveJob) -> None:
        live.jobs.pop(job.index, None)
        if live.over and not live.jobs:
            self._tensors.end_invocation(job.invocation)
        if not live.jobs and self._live.remove_attempt(live) and job.answers and job.next_edge is None:
            self._confirmations.discard_accepted(job.invocation)

    # Feed

    def _on_edges(self, delivery: Delivery) -> None:
        if not delivery.data:
            return  # a probe whether this executor still listens
        for message in messages.decode_edges(delivery.data):
            if isinstance(message, InvocationEnd):
                self._on_end(message)
                continue
            live = self._live.find_attempt(message.inv, message.attempt)
            newest = self._live.newest_attempt(message.inv)
            if live is not None:
                self._deliver_message(live, message)
            elif newest is None or newest.invocation.attempt < message.attempt:
                self._early.add_message(message)

    def _deliver_message(self, live: LiveAttempt, message: Chunk | Hop) -> None:
        if message.attempt != live.invocation.attempt:
            return
        if isinstance(message, Hop):
            live.hops.append(message)
            return
        try:
            item = Item(message.data, None if message.inline is None else unpack_tensor(message.inline))
        except ProtocolError as error:
            log.error("%s: %s", message.inv, error)
            return
        piece = ChannelChunk(message.seq, item, message.handle, message.rows, message.last, message.empty)
        self._vitals.steps += 1
        for job in live.jobs.values():
            job.feed_input(message.node, message.output, piece)

    # End

    def _on_end(self, end: InvocationEnd) -> None:
        live = self._live.newest_attempt(end.inv)
        over = end.status != "moved"
        if end.nodes and not over:
            for each in list(live.iter_attempts()) if live is not None else ():
                if each.invocation.attempt <= end.attempt:
                    self._live.cancel_nodes(each, end.nodes)
        elif live is not None and (over or end.attempt >= live.invocation.attempt):
            self._stop_invocation(end.inv, over)
        elif live is None:
            self._early.take_messages(end.inv)
            if over:
                self._tensors.end_invocation(end.inv)

    def _on_no_responders(self, delivery: Delivery) -> None:
        """Stop the invocations of a gateway that the server reports as gone: without it they have no client."""
        if not delivery.refused or self._comeback.reconnected_within(RECONNECT_GRACE_SECONDS):
            return
        gateway = subjects.reply_subject(delivery.subject.rpartition(".")[2])
        if not self._refusals.confirms_loss(gateway):
            return
        for invocation in dict.fromkeys(live.invocation.id for live in self._live if live.invocation.reply == gateway):
            log.warning("stopping %s: its gateway is gone", invocation)
            self._stop_invocation(invocation, over=True)

    def _stop_invocation(self, invocation: str, over: bool = False) -> None:
        """Cancel the jobs; each runner stops before its next step.

        If the invocation is ``over``, this executor also reports its end to the sidecar. The sidecar may have granted
        memory to a runner after the gateway's message arrived there and before it arrived here.
        """
        for live in self._live.pop(invocation):
            live.over = over
            for task in live.tasks.values():
                task.cancel()

    # By hand

    async def _on_manual_request(self, delivery: Delivery) -> AsyncIterator[bytes]:
        """Run this executor's nodes of a recorded invocation; stream the frames back."""
        if not delivery.reply:
            log.warning("%s: ignored a request without a reply subject", delivery.subject)
            return
        try:
            own_nodes = select_own_nodes(delivery.data, self.identity, delivery.reply)
        except ProtocolError as error:
            yield msgspec.json.encode(error.to_problem())
            return
        live = self._start_attempt(own_nodes, delivery.headers)
        if live.tasks:
            await asyncio.wait(live.tasks.values())
        self._outbox.flush()
        self._stop_invocation(live.invocation.id)

    def _send_reply(self, invocation: Invocation, message: messages.Reply, lazy: bool = False) -> None:
        self._outbox.send(invocation.reply, messages.encode(message), lazy)
