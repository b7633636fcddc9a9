"""The executor: takes invocations from the bus, runs their nodes here, sends results on.

take     an invocation arrives: busy, or one job per node that is routed here, and ``accepted``
feed     edges bring inputs, maybe before the invocation itself
run      the component's runner works on the job; outputs leave as they come
end      done, failed, cancelled, expired or moved: stop within one step, release everything
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping

import msgspec

from omnibus import graph, tracing
from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.coalescer import Outbox
from omnibus.bus.messages import Busy, Chunk, End, ExecutorStatus, Failed, Hop
from omnibus.bus.reconnect import Comeback
from omnibus.errors import DeadlineExceeded, OmnibusError, ProtocolError, StageFailed
from omnibus.executor import manual
from omnibus.executor.acks import Confirmations
from omnibus.executor.attempts import Attempts, Live
from omnibus.executor.early_edges import Early
from omnibus.executor.identity import Identity
from omnibus.executor.inputs import Piece
from omnibus.executor.job import LiveJob
from omnibus.executor.runner import Item, Runner
from omnibus.executor.start_time import enter
from omnibus.executor.status import Vitals
from omnibus.graph import Invocation
from omnibus.metrics import EXECUTOR
from omnibus.tensors.client import TensorClient

log = logging.getLogger(__name__)

HEARTBEAT = 0.5  # seconds between status events
RETURN = 1.5  # seconds after a reconnect that gateways have to show up again


class Executor:
    """One replica of a deployment option. ``runners`` maps a component to its engine."""

    def __init__(
        self, identity: Identity, runners: Mapping[str, Runner], bus: Bus, tensors: TensorClient, limit: int
    ) -> None:
        self.identity = identity
        self._runners = runners
        self._bus = bus
        self._tensors = tensors
        self._outbox = Outbox(bus, limit, subjects.unheard(identity.id))
        self._live = Attempts()
        self._early = Early()
        self._state = "ready"
        self._vitals = Vitals(identity, runners)
        self._heart: asyncio.Task[None] | None = None
        self._confirmations = Confirmations(identity.id, self._outbox)
        self._comeback = Comeback(bus)

    # Life

    async def startup(self) -> None:
        """Load the engines, then become visible: nothing is routed here before it can be served."""
        for runner in self._runners.values():
            await runner.load()
        me = self.identity
        self._vitals.measure(lambda: len(self._live))
        for task in me.tasks:  # one by one: its user on the bus may be allowed these alone
            await self._bus.subscribe(subjects.task(task, me.id), self._take)
        await self._bus.subscribe(subjects.edge(me.id), self._feed)
        await self._bus.subscribe(f"{subjects.unheard(me.id)}.*", self._nobody)
        await self._bus.subscribe(subjects.event(subjects.CENSUS), lambda _: self._announce())
        await self._bus.register(
            f"omnibus-{subjects.token(me.option)}",
            {"executor": me.id, "model": me.model, "option": me.option, "node": me.node},
            {task: (subjects.task(task), self._by_hand) for task in me.tasks},
            lambda task: self._vitals.stats(me.tasks[task]),
        )
        self._heart = asyncio.get_running_loop().create_task(self._beat())
        log.info("ready: %s of %s on %s", "+".join(me.tasks.values()), me.model, me.node)

    async def drain(self, seconds: float) -> None:
        """Refuse new work, finish what was accepted, then leave."""
        self._state = "draining"
        self._announce()
        tasks = [task for live in self._live for task in live.tasks.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        # Before the last word: what a gateway does not know to be finished runs again elsewhere.
        self._confirmations.tell()
        self._outbox.flush()
        self._state = "gone"
        self._announce()
        if self._heart is not None:
            self._heart.cancel()
        for runner in self._runners.values():
            await runner.close()

    async def _beat(self) -> None:
        while True:
            self._announce()
            self._purge()
            self._comeback.within(RETURN)  # so that it knows when
            await asyncio.sleep(HEARTBEAT)

    def _announce(self) -> None:
        try:
            self._bus.publish(subjects.event(subjects.EXECUTOR), msgspec.json.encode(self.status()))
        except OmnibusError as error:
            log.warning("status not sent: %s", error)

    def status(self) -> ExecutorStatus:
        return self._vitals.status(self._state, len(self._live))

    def _purge(self) -> None:
        """End what is past its deadline, whether or not its gateway still lives; forget early edges."""
        now = time.time()
        for live in [live for live in self._live if live.invocation.deadline < now]:
            for job in live.jobs.values():
                self._fail(live, job, DeadlineExceeded(f"the deadline passed in {job.node.component}"))
            self._stop(live.invocation.id, over=True)
        self._early.purge()

    # Take

    def _take(self, delivery: Delivery) -> None:
        try:
            invocation = graph.decode(delivery.data)
        except ProtocolError as error:
            log.error("%s: %s", delivery.subject, error)
            return
        known = self._live.newest(invocation.id)
        if known is not None:
            if known.invocation.attempt >= invocation.attempt:
                return
            self._live.supersede(invocation)
            known = self._live.newest(invocation.id)
        if self._state != "ready" or self._full(known) or not self._vitals.serving:
            EXECUTOR.refused.inc()
            self._reply(invocation, Busy(invocation.id, self.identity.id, invocation.attempt))
            return
        self._begin(invocation, delivery.headers)
        self._confirmations.taken(invocation)

    def _full(self, known: Live | None) -> bool:
        """Return whether there is no room for an invocation; one whose earlier attempt goes on here has its place."""
        return known is None and len(self._live) >= self.identity.credits

    def _begin(self, invocation: Invocation, headers: Mapping[str, str] | None) -> Live:
        live = Live(invocation)
        self._live.add(live)
        if tracing.tracer is not None:
            live.trace = tracing.carried(headers)
        me = self.identity.id
        for index, executor in enumerate(invocation.route):
            if executor == me and invocation.runs(index):
                record = self._confirmations.record
                live.jobs[index] = LiveJob(invocation, index, me, self._outbox, self._tensors, record)
        loop = asyncio.get_running_loop()
        for job in live.jobs.values():
            job.connect(live.jobs)
        for message in self._early.take(invocation.id):
            self._deliver(live, message)
        for job in live.jobs.values():
            live.tasks[job.index] = loop.create_task(self._run(live, job))
        return live

    async def _run(self, live: Live, job: LiveJob) -> None:
        component = self.identity.tasks.get(job.node.task, "")
        enter(job.began)
        try:
            runner = self._runners.get(component)
            if runner is None:
                raise StageFailed(f"executor {self.identity.id} has no {job.node.task}: the route is stale")
            await runner.run(job)
            hop = job.finish()
            self._report(live, job, hop)
            tracing.node(live.trace, live.invocation, hop)
            EXECUTOR.finished(component, hop.taken, hop.ready, hop.first, hop.end)
            self._vitals.done[component] += 1
        except OmnibusError as error:
            self._fail(live, job, error)
        except Exception as error:  # the engine's own failure: one request fails, the executor lives
            log.exception("%s failed on %s", component, job.invocation)
            self._fail(live, job, StageFailed(f"{component} failed on this request ({type(error).__name__})"))
        finally:
            self._vitals.steps += 1
            job.release()
            self._finished(live, job)

    def _report(self, live: Live, job: LiveJob, hop: Hop) -> None:
        """Times go with the last output: to the next executor, or to the gateway.

        The next executor may work for long, so the gateway hears of it by itself as well, without haste.
        """
        hops, live.hops = [*live.hops, hop], []
        if job.next_edge is None and len(live.jobs) > 1 and not job.answers:
            live.hops = hops  # a later node in this process takes them along
            return
        for each in hops:
            self._outbox.send(job.next_edge or live.invocation.reply, messages.encode(each))
        if job.next_edge is not None:
            self._confirmations.finished(live.invocation, hop)

    def _fail(self, live: Live, job: LiveJob, error: OmnibusError) -> None:
        error.stage = error.stage or job.node.component
        error.executor = self.identity.id
        error.attempt = live.invocation.attempt
        EXECUTOR.done(self.identity.tasks.get(job.node.task, ""), error.code).inc()
        tracing.node(live.trace, live.invocation, job.times(), error.code)
        self._reply(live.invocation, Failed(job.invocation, job.index, error.problem(), live.invocation.attempt))

    def _finished(self, live: Live, job: LiveJob) -> None:
        live.jobs.pop(job.index, None)
        if live.over and not live.jobs:
            self._tensors.end(job.invocation)
        if not live.jobs and self._live.forget(live) and job.answers and job.next_edge is None:
            self._confirmations.answered(job.invocation)

    # Feed

    def _feed(self, delivery: Delivery) -> None:
        if not delivery.data:
            return  # somebody asks whether this executor still listens
        for message in messages.decode_edges(delivery.data):
            if isinstance(message, End):
                self._end(message)
                continue
            live = self._live.find(message.inv, message.attempt)
            newest = self._live.newest(message.inv)
            if live is not None:
                self._deliver(live, message)
            elif newest is None or newest.invocation.attempt < message.attempt:
                self._early.keep(message)

    def _deliver(self, live: Live, message: Chunk | Hop) -> None:
        if message.attempt != live.invocation.attempt:
            return
        if isinstance(message, Hop):
            live.hops.append(message)
            return
        piece = Piece(message.seq, Item(message.data), message.handle, message.rows, message.last, message.empty)
        self._vitals.steps += 1
        for job in live.jobs.values():
            job.feed(message.node, message.output, piece)

    # End

    def _end(self, end: End) -> None:
        live = self._live.newest(end.inv)
        over = end.status != "moved"
        if end.nodes and not over:
            for each in list(live.chain()) if live is not None else ():
                if each.invocation.attempt <= end.attempt:
                    self._live.cancel(each, end.nodes)
        elif live is not None and (over or end.attempt >= live.invocation.attempt):
            self._stop(end.inv, over)
        elif live is None:
            self._early.take(end.inv)
            if over:
                self._tensors.end(end.inv)

    def _nobody(self, delivery: Delivery) -> None:
        """The server says that a receiver is gone. Without its gateway an invocation has no client."""
        if not delivery.refused or self._comeback.within(RETURN):
            return
        gateway = subjects.reply(delivery.subject.rpartition(".")[2])
        for invocation in dict.fromkeys(live.invocation.id for live in self._live if live.invocation.reply == gateway):
            log.warning("stopping %s: its gateway is gone", invocation)
            self._stop(invocation, over=True)

    def _stop(self, invocation: str, over: bool = False) -> None:
        """Cancel the jobs; each runner stops before its next step.

        When all is ``over`` the sidecar is told here as well: memory may have been granted to a runner
        after the gateway's word reached the sidecar and before it reached this executor.
        """
        for live in self._live.pop(invocation):
            live.over = over
            for task in live.tasks.values():
                task.cancel()

    # By hand

    async def _by_hand(self, delivery: Delivery) -> AsyncIterator[bytes]:
        """Run the nodes of a recorded invocation that are of this executor's tasks; stream frames back."""
        if not delivery.reply:
            log.warning("%s: asked without a reply subject, so there is nothing to do", delivery.subject)
            return
        try:
            asked = manual.part(delivery.data, self.identity, delivery.reply)
        except ProtocolError as error:
            yield msgspec.json.encode(error.problem())
            return
        live = self._begin(asked, delivery.headers)
        if live.tasks:
            await asyncio.wait(live.tasks.values())
        self._outbox.flush()
        self._stop(live.invocation.id)

    def _reply(self, invocation: Invocation, message: messages.Reply, lazy: bool = False) -> None:
        self._outbox.send(invocation.reply, messages.encode(message), lazy)
