"""One client's request: the segments that it sends, and the one end that they share.

record     a composite task ran with placeholders; out came a ``Segment``
assign     whose plan runs each node
route      path by the planned rates, executors by least outstanding work
dispatch   the invocation to every executor at once, and to the record stream
end        done, cancelled, expired or failed: everything stops, memory is released
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from omnibus import tracing
from omnibus.errors import OmnibusError, ProtocolError
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation
from omnibus.metrics import GATEWAY
from omnibus.plan import choice_point
from omnibus.recording.records import RequestLinks
from omnibus.task import Segment
from services.gateway.dispatch.digest import Fingerprint
from services.gateway.dispatch.inflight import InflightInvocation, code_resume_states, token_resume_states
from services.gateway.dispatch.streams import MAX_RESUMED_VALUES, ResultStream
from services.gateway.media.blob_store import MediaStore
from services.gateway.pricing.quantities import Estimates
from services.gateway.pricing.quotes import PriceCheck
from services.gateway.request import metrics
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.app_call import AppCallLog
from services.gateway.request.arena_inputs import MAX_READERS, TensorPlacer, place_input
from services.gateway.request.ends import fail_open_streams, request_over_error
from services.gateway.request.load_counters import CountedInvocation
from services.gateway.request.names import app_letters
from services.gateway.request.node_sampling import complete_nodes
from services.gateway.request.prompt_salt import salt_prompt
from services.gateway.request.request_admission import RequestAdmission
from services.gateway.request.resources import RequestResources
from services.gateway.request.segment_inputs import fill_references, find_earlier, has_references
from services.gateway.request.validate import validate_segment
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.router import NO_PATHS, InvocationTicket
from services.gateway.tenancy import body_budget
from services.gateway.tenancy import tenant as tenants


class ClientRequest:
    """A request under way. It is the ``Runtime`` of the tasks that its app calls."""

    def __init__(
        self, runs: RequestResources, app: str, model: str, number: int, seed: int | None, pinned: str
    ) -> None:
        self._runs = runs
        self.app = app
        self.model = self.model_name = model  # the name is an adapter's where the client called one
        self._id = ""
        self.created = time.time()
        self.deadline = self.created + max(0.0, runs.settings.deadline - body_budget.upload_seconds())
        self.segments: list[InflightInvocation] = []
        self.failure: OmnibusError | None = None
        self.known: tuple[int, ...] = ()  # tokens of the answer, made at another gateway, that it goes on behind
        self.known_codes: tuple[Any, ...] = ()  # and those, or frames of them, that its talker goes on behind
        self.status = ""  # how it ended
        self.estimates: Estimates = ()  # of its first segment
        self.answer: AnswerAccumulator | None = None  # what a chat's client has received
        self.call: AppCallLog | None = None  # what its app was asked
        self.on_end: Callable[[], None] | None = None
        self.trace = tracing.current_context()
        self._number = number
        self._seed = seed
        self.early = False  # sent before its client wants it: only into spare room, and not billed until then
        self.cache_key = ""  # of its conversation: it goes where what was computed of that is kept
        self.is_demand = True  # counted among what the planner provides for
        self.pinned = pinned  # the path that it must take, empty for any
        self.called: list[str] = []  # requests that its model called for
        self.caller = ""  # the request whose model called for this one
        self.price: PriceCheck | None = None  # to be checked before it is sent
        self._holds = False
        self._assigned: tuple[Segment, Assignment] | None = None  # of the ticket
        self._counted: list[CountedInvocation] = []  # of each segment
        self.tenant = tenants.current_tenant()
        self._admission = RequestAdmission(runs, self.tenant)

    @property
    def id(self) -> str:
        """Its name: that of its first segment, once that has one."""
        if not self._id:
            self._id = self._runs.router.new_id(app_letters(self.app))
        return self._id

    @property
    def seed(self) -> int:
        """The client's seed, or one that follows from the id; 63 bits."""
        if self._seed is None:
            self._seed = int.from_bytes(sha256(self.id.encode()).digest()[:7], "big")
        return self._seed & (2**63 - 1)

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.time()

    @property
    def age_seconds(self) -> float:
        return time.time() - self.created

    @property
    def path(self) -> str:
        return self.segments[0].invocation.path if self.segments else ""

    @property
    def epoch(self) -> int:
        return self.segments[0].invocation.epoch if self.segments else 0

    def notify_when_accepted(self, notify: Callable[[], None]) -> bool:
        """Call ``notify`` once no executor can refuse what was sent last; False when nothing was sent."""
        if not self.segments:
            return False
        self.segments[-1].notify_when_accepted(notify)
        return True

    # Runtime

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], ResultStream]:
        """Send ``segment``; returns its results as they arrive.

        Raises ``Rejected`` for a graph that no plan runs, ``StageUnavailable`` without executors, and
        ``TooLarge`` for one over the limits.
        """
        validate_segment(segment, step)
        await self.wait_admission(segment, step)
        nodes = segment.nodes
        if has_references(nodes):
            runs, name = self._runs, self._invocation_id(step)
            try:
                nodes = await fill_references(
                    nodes,
                    partial(find_earlier, self.segments),
                    TensorPlacer(runs.tensors, self.kept, name, self.deadline),
                )
            except BaseException:
                runs.tensors.end_invocation(name)
                raise
        streams = self.send_segment(segment, nodes, step).streams
        for stream in streams.values():
            stream.fingerprint = Fingerprint()
        return streams

    def choice_point(self, site: int) -> float:
        salt = int.from_bytes(sha256(f"{self._runs.router.gateway}/{self.app}/{site}".encode()).digest()[:8], "big")
        return choice_point(self._number, site, salt / 2**64)

    def confirm(self) -> None:
        """Its client wants what was sent early, from now on."""
        self.early, self.created = False, time.time()

    # Segments

    async def place_input(self, data: bytes, about: tuple[str, str, str]) -> dict[str, Any]:
        """Put a file into the arena for all segments of this request; see ``arena_inputs.place_input``."""
        runs, holder = self._runs, self.inputs_name
        return await place_input(runs.tensors, self.kept, data, about, holder, self.deadline, MAX_READERS, self.salt)

    @property
    def logs_calls(self) -> bool:
        """True if its record has what an app was asked."""
        return self._runs.records.rules.keeps_content(self.tenant.name)

    @property
    def kept(self) -> MediaStore | None:
        """The store of its media beside its record; None where nothing of its content is recorded."""
        return self._runs.kept if self.logs_calls else None

    @property
    def salt(self) -> str:
        """Under which what is computed of this request's media is kept, and shared with others."""
        settings = self._runs.settings
        return self.tenant.salt(settings.salt, settings.isolate)

    @property
    def prompt_salt(self) -> str:
        """The same for its prompts; empty where tenants share them, or executors of an earlier build refuse it."""
        apart = self.tenant.name and self._runs.settings.isolate
        return self.salt if apart and self._runs.router.members.all_take("cache_salt") else ""

    async def wait_admission(self, segment: Segment, step: int = 0) -> None:
        """Wait once, for a turn or for room. Raises ``Overloaded``, and as ``PriceCheck.choose_path``.
        ``release_admission`` if nothing is sent."""
        if self.early:
            self._runs.room.check_spare_room(self._runs.router.assign(segment.nodes, self.model))
        if self.price is not None:
            self.pinned = await self.price.choose_path(self.model, segment, self.pinned)
        if await self._admission.wait(self, segment, step):
            self._check_open()

    def _check_open(self) -> None:
        """Raise what ended the request while it waited, if anything did."""
        if self.status:
            self.release_admission()
            raise self.failure or request_over_error()

    def release_admission(self) -> None:
        """Give the turn back: nothing is at work any more."""
        if (unsent := self._admission.release(self.segments)) is not None:
            self._runs.loads.count_failure(unsent, self.failure)

    def resume_until(self, deadline: float) -> None:
        """Go on with a request that another gateway admitted: by its deadline, Unix seconds, however many wait."""
        self.deadline = deadline
        self.disable_queue_limit()

    def disable_queue_limit(self) -> None:
        """It may take its turn as late as its deadline, however many wait: its client does not, or was let in."""
        self._admission.disable_queue_limit()

    def take_ticket(self, segment: Segment, assignment: Assignment | None = None) -> InvocationTicket:
        """Take the next number among requests of this kind; it is this request's name from now on.

        ``assignment`` is for who knows it already.
        """
        assignment = assignment or self._runs.router.assign(segment.nodes, self.model)
        self._assigned = segment, assignment
        ticket = self._runs.router.issue_ticket(assignment.model, assignment.kind, cache_key=self.cache_key)
        self._id = ticket.id
        return ticket

    def send_segment(
        self,
        segment: Segment,
        nodes: Sequence[GraphNode] = (),
        step: int = 0,
        ticket: InvocationTicket | None = None,
        assignment: Assignment | None = None,
    ) -> InflightInvocation:
        """Route and dispatch one segment now; ``nodes`` are its own with inputs filled in.

        ``assignment`` is for who knows it already, by the plan in force.
        """
        if self.status:
            raise self.failure or request_over_error()
        if any(running.invocation.step == step for running in self.segments):
            raise ProtocolError(f"segment {step} of {self.id} was sent already")
        runs = self._runs
        try:
            if assignment is None and self._assigned is not None and self._assigned[0] is segment:
                assignment = self._assigned[1]  # just now, with its ticket
            elif assignment is None:
                assignment = runs.router.assign(nodes or segment.nodes, self.model)
        except BaseException:
            runs.tensors.end_invocation(self._invocation_id(step))
            raise
        counted = self._admission.take_arrival()
        if counted is None and self.is_demand:
            counted = runs.loads.count_arrival(assignment, () if self.segments else self.estimates)
        elif counted is None:
            counted = runs.loads.count_optional()
        try:
            running = self._dispatch_segment(segment, assignment, ticket, step)
        except BaseException as error:
            runs.loads.count_failure(counted, error)
            raise
        self.segments.append(running)
        self._counted.append(counted)
        runs.records.write_begin(running, self.tenant.name)
        metrics.count_paths(assignment, running.invocation.path)
        return running

    def _dispatch_segment(
        self, segment: Segment, assignment: Assignment, ticket: InvocationTicket | None, step: int
    ) -> InflightInvocation:
        runs, plan = self._runs, self._runs.router.plan
        try:
            ticket = ticket or runs.router.issue_ticket(
                assignment.model, assignment.kind, self._invocation_id(step), self.cache_key
            )
            again = partial(runs.router.route, assignment, ticket, pins=segment.pins, work=segment.work)
            # A header asks for where to begin, not for failing there.
            preferred = NO_PATHS if runs.admission is None else self._admission.paths
            route = again(pinned=self.pinned, preferred=preferred)
            self._admission.check_queue_time(self, route)
        except BaseException:
            runs.tensors.end_invocation(self._invocation_id(step))
            raise
        salt, nodes = self.prompt_salt, assignment.nodes
        if not self.model:  # chats of a model are complete
            nodes = complete_nodes(nodes, assignment.model, runs.router.sampling.of_model)
        invocation = Invocation(
            v=WIRE_VERSION,
            id=ticket.id,
            app=self.app,
            model=assignment.model,
            type=assignment.kind,
            path=route.path,
            epoch=plan.epoch if plan else 0,
            seed=self.seed,
            created=time.time(),
            deadline=self.deadline,
            reply=runs.dispatcher.reply,
            nodes=tuple([salt_prompt(node, salt) for node in nodes]) if salt else nodes,
            outputs=segment.outputs,
            options=route.options,
            route=route.executors,
            parent=self.id if self.segments else "",
            step=step,
            choices=segment.choices,
            resumes=self._resume_states(assignment, segment) if self.known else (),
        )
        return runs.dispatcher.submit(
            invocation, route.work, again, self.trace, self._name_tenant if self.tenant.name else None
        )

    def _name_tenant(self, running: InflightInvocation) -> None:
        running.tenant = f"{self.tenant.weight:g} {self.tenant.queue or self.tenant.name}"

    def _resume_states(self, assignment: Assignment, segment: Segment) -> tuple[tuple[int, str, dict[str, Any]], ...]:
        """States behind which the nodes of ``segment`` begin, by what is known of the answer."""
        nodes, frames = assignment.nodes, self.known_codes
        groups = len(frames[0]) if frames and not isinstance(frames[0], int) else 1
        room = max(0, MAX_RESUMED_VALUES - len(self.known))  # both travel in one message
        return (
            *token_resume_states(nodes, segment.outputs, self.known),
            *code_resume_states(nodes, frames[: room // groups]),
        )

    def _invocation_id(self, step: int) -> str:
        """The first segment that is sent has the request's own id."""
        return f"{self.id}_{step}" if self.segments else self.id

    @property
    def inputs_name(self) -> str:
        """Name under which the arena holds the inputs that all segments may read."""
        self._holds = True
        return f"{self.id}_in"

    # The end

    def fail(self, error: OmnibusError) -> None:
        """Everybody who waits for a result of this request gets ``error``."""
        self.failure = self.failure or error
        for running in self.segments:
            running.fail(error)

    def end(self, status: str) -> None:
        """The one end. Each segment is recorded once its times are in."""
        if self.status:
            return
        self.status = status
        figures = self.answer.record_latency() if self.answer is not None and status == "done" else {}
        model = self.answer.model if self.answer is not None else self.model
        if model and not self.early and (self.segments or status == "done"):  # what was refused took no time
            GATEWAY.duration_histogram(model).observe(time.time() - self.created)
        for running, counted in zip(self.segments, self._counted, strict=True):
            first = running is self.segments[0]
            estimates, seen = (self.estimates, figures) if first else ((), {})
            waited_since = self.created if first else running.invocation.created  # Unix seconds
            self._runs.loads.count_end(counted, running, status == "done", waited_since, estimates, seen)
            ended = partial(self._record_end, running, status)
            if status == "done":
                self._runs.dispatcher.complete(running, ended)
                self._runs.records.publish_begin(running.id)  # its client may look for it from now on
            else:
                self._runs.dispatcher.finish(running, status)
                self._runs.dispatcher.late_reports.wait(running, ended)
        self.release_admission()
        if self._holds:
            self._runs.tensors.end_invocation(self.inputs_name)
        if self.on_end is not None:
            self.on_end()

    def _record_end(self, running: InflightInvocation, status: str) -> None:
        first = running is self.segments[0]
        later = tuple([each.id for each in self.segments[1:]]) if first else ()
        links = RequestLinks(later, tuple(self.called) if first else (), self.caller)
        answer, call = (self.answer, self.call) if first else (None, None)
        usage = self._runs.records.write_end(
            running, status, answer, links, self.tenant.name, billed=not self.early, call=call
        )
        if self._runs.admission is not None:
            self._admission.settle_segment(running, usage.gpu_seconds)
        self._runs.records.meter.learn(running, self.estimates if first else (), by_work=first and self.model != "")
        fail_open_streams(running, self.failure)
