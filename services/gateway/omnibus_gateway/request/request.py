"""One client's request: the segments that it sends, and the one end that they share.

- open: ``RequestFactory.open_request`` numbers it, within the limit of this gateway.
- admit: it waits for its tenant's turn or for room (``wait_admission``).
- send: it chooses the model of each node, the path and the executors. They all get the invocation at once, and so does
  the record stream (``submit``).
- stream: its outputs arrive, and its answer collects them (``open_answer``, ``read_outputs``).
- end: done, cancelled, expired or failed (``until_end``). All work stops, memory is released, and the end is recorded
  and charged to its tenant.

The factory numbers requests, and limits the requests in flight.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any

from omnibus import tracing
from omnibus.errors import ClientClosed, DeadlineExceeded, OmnibusError, Overloaded, ProtocolError, Rejected
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation
from omnibus.metrics import GATEWAY
from omnibus.plan import choice_point
from omnibus.recording.records import RequestLinks
from omnibus.task import Segment
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.inflight import InflightInvocation, code_resume_states, token_resume_states
from omnibus_gateway.dispatch.streams import MAX_RESUMED_VALUES, Fingerprint, ItemStream, ResultStream, merge_streams
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.pricing.meter import Estimates
from omnibus_gateway.pricing.quotes import PriceCheck
from omnibus_gateway.request.accumulator import AnswerAccumulator, ChoicesAccumulator
from omnibus_gateway.request.admission import (
    RequestAdmission,
    RequestResources,
    fail_open_streams,
    request_over_error,
)
from omnibus_gateway.request.inputs import (
    MAX_READERS,
    TensorPlacer,
    complete_nodes,
    fill_references,
    find_earlier,
    has_references,
    place_input,
    salt_prompt,
    validate_segment,
)
from omnibus_gateway.request.load_report import CountedInvocation, count_paths
from omnibus_gateway.request.record import AppCallLog
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.router import NO_PATHS, InvocationTicket
from omnibus_gateway.tenancy import body_budget
from omnibus_gateway.tenancy import tenant as tenants


@lru_cache(4096)
def app_letters(app: str) -> str:
    """Return a few letters that identify an app in short ids."""
    return sha256(app.encode()).hexdigest()[:4]


class ClientRequest:
    """A running request. It is the ``Runtime`` of the tasks that its app calls."""

    def __init__(
        self, runs: RequestResources, app: str, model: str, number: int, seed: int | None, pinned_path: str
    ) -> None:
        self._runs = runs
        self.app = app
        self.model = self.model_name = model  # the name is the adapter's if the client called one
        self._id = ""
        self.created = time.time()
        self.deadline = self.created + max(0.0, runs.settings.deadline - body_budget.upload_seconds())
        self.segments: list[InflightInvocation] = []
        self.failure: OmnibusError | None = None
        self.known: tuple[int, ...] = ()  # tokens of the answer, from another gateway, after which it continues
        self.known_codes: tuple[Any, ...] = ()  # codes, or frames of them, after which its talker continues
        self.status = ""  # how it ended
        self.estimates: Estimates = ()  # of its first segment
        self.answer: AnswerAccumulator | None = None  # the answer that a chat's client has received
        self.call: AppCallLog | None = None  # the call of its app
        self.on_end: Callable[[], None] | None = None
        self.trace = tracing.current_context()
        self._number = number
        self._seed = seed
        self.early = False  # sent before its client needs it: only into spare room, and not billed until then
        self.cache_key = ""  # of its conversation: it goes where that is cached
        self.is_demand = True  # counted as demand, for which the planner provides
        self.pinned = pinned_path  # the path that it must take, empty for any
        self.called: list[str] = []  # requests that its model called for
        self.caller = ""  # the request whose model called for this one
        self.price: PriceCheck | None = None  # to check before sending
        self._holds = False
        self._assigned: tuple[Segment, Assignment] | None = None  # of the ticket
        self._counted: list[CountedInvocation] = []  # of each segment
        self.tenant = tenants.current_tenant()
        self._admission = RequestAdmission(runs, self.tenant)

    @property
    def id(self) -> str:
        """Its name: that of its first segment, once it has one."""
        if not self._id:
            self._id = self._runs.router.new_id(app_letters(self.app))
        return self._id

    @property
    def seed(self) -> int:
        """The client's seed, or one derived from the id; 63 bits."""
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
        """Call ``notify`` once no executor can reject the last segment; False without segments."""
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
        """Confirm an early request, whose client needs it now."""
        self.early, self.created = False, time.time()

    # Segments

    async def place_input(self, data: bytes, about: tuple[str, str, str]) -> dict[str, Any]:
        """Put a file into the arena for all segments of this request; see ``arena_inputs.place_input``."""
        runs, holder = self._runs, self.inputs_name
        return await place_input(runs.tensors, self.kept, data, about, holder, self.deadline, MAX_READERS, self.salt)

    @property
    def logs_calls(self) -> bool:
        """True if its record includes the calls of its app."""
        return self._runs.records.keeps_content(self.tenant.name)

    @property
    def kept(self) -> MediaStore | None:
        """The media store of its record; None if its content is not recorded."""
        return self._runs.kept if self.logs_calls else None

    @property
    def salt(self) -> str:
        """Salt under which results of this request's media are cached and shared."""
        settings = self._runs.settings
        return self.tenant.salt(settings.salt, settings.isolate)

    @property
    def prompt_salt(self) -> str:
        """Salt of its prompts; empty if tenants share them, or an executor's build rejects it."""
        apart = self.tenant.name and self._runs.settings.isolate
        return self.salt if apart and self._runs.router.members.all_take("cache_salt") else ""

    async def wait_admission(self, segment: Segment, step: int = 0) -> None:
        """Wait once, for a turn or for room. Raises ``Overloaded``, and as ``PriceCheck.choose_path``.

        Call ``release_admission`` if nothing is sent."""
        if self.early:
            self._runs.room.check_spare_room(self._runs.router.assign(segment.nodes, self.model))
        if self.price is not None:
            self.pinned = await self.price.choose_path(self.model, segment, self.pinned)
        if await self._admission.wait(self, segment, step):
            self._check_open()

    def _check_open(self) -> None:
        """Raise the error that ended the request while it waited, if any."""
        if self.status:
            self.release_admission()
            raise self.failure or request_over_error()

    def release_admission(self) -> None:
        """Release the turn, because no segment runs any more."""
        if (unsent := self._admission.release(self.segments)) is not None:
            self._runs.loads.count_failure(unsent, self.failure)

    def resume_until(self, deadline: float) -> None:
        """Continue a request that another gateway admitted, until ``deadline``."""
        self.deadline = deadline
        self.disable_queue_limit()

    def disable_queue_limit(self) -> None:
        """Let it queue until its deadline: its client is not waiting, or it was admitted."""
        self._admission.disable_queue_limit()

    def take_ticket(self, segment: Segment, assignment: Assignment | None = None) -> InvocationTicket:
        """Take the next number of this kind, which becomes this request's name.

        Pass ``assignment`` if it is known already.
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

        Pass ``assignment`` if it is known already, by the plan in force.
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
        counted_invocation = self._admission.take_arrival()
        if counted_invocation is None and self.is_demand:
            counted_invocation = runs.loads.count_arrival(assignment, () if self.segments else self.estimates)
        elif counted_invocation is None:
            counted_invocation = runs.loads.count_optional()
        try:
            running = self._dispatch_segment(segment, assignment, ticket, step)
        except BaseException as error:
            runs.loads.count_failure(counted_invocation, error)
            raise
        self.segments.append(running)
        self._counted.append(counted_invocation)
        runs.records.write_begin(running, self.tenant.name)
        count_paths(assignment, running.invocation.path)
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
            # The pinned path is only for the first attempt: a move may leave it.
            preferred_paths = NO_PATHS if runs.admission is None else self._admission.paths
            route = again(pinned=self.pinned, preferred=preferred_paths)
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
        """Return the states after which the nodes of ``segment`` resume."""
        nodes, frames = assignment.nodes, self.known_codes
        groups = len(frames[0]) if frames and not isinstance(frames[0], int) else 1
        room = max(0, MAX_RESUMED_VALUES - len(self.known))  # both travel in one message
        return (
            *token_resume_states(nodes, segment.outputs, self.known),
            *code_resume_states(nodes, frames[: room // groups]),
        )

    def _invocation_id(self, step: int) -> str:
        """Return the id of segment ``step``; the first segment uses the request's id."""
        return f"{self.id}_{step}" if self.segments else self.id

    @property
    def inputs_name(self) -> str:
        """Name in the arena of inputs that all segments may read."""
        self._holds = True
        return f"{self.id}_in"

    # The answer

    def open_answer(self) -> AnswerAccumulator:
        """Start to collect the answer that the client receives, for its usage and its record."""
        self.answer = AnswerAccumulator(self.model_name, self.created)
        return self.answer

    def open_choices(self, count: int) -> ChoicesAccumulator:
        """Start to collect ``count`` answers to one prompt."""
        choices = self.answer = ChoicesAccumulator(self.model_name, self.created, count)
        return choices

    def read_outputs(self, streams: Mapping[str, ItemStream]) -> AsyncIterator[list[tuple[str, Item]]]:
        """Yield the items of ``streams`` as they arrive, once the answer has them, if there is one."""
        return merge_streams(streams) if self.answer is None else merge_streams(streams, self.answer.add_batch)

    # The end

    @asynccontextmanager
    async def until_end(self, rejection: Rejected | None = None) -> AsyncIterator[None]:
        """Context of all work for the request, within its deadline: every exit ends it once.

        ``rejection`` is the reason for a cancellation; if None, the client disconnected. Raises ``DeadlineExceeded``.
        """
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.time())):
                yield
        except TimeoutError:
            error = self.deadline_error()
            self.end_with(error, "expired")
            raise error from None
        except (asyncio.CancelledError, GeneratorExit):
            self.end_with(rejection or ClientClosed("the client left"), "cancelled")
            raise
        except BaseException as error:
            self.end_with(error)
            raise
        self.end("done")

    def deadline_error(self) -> DeadlineExceeded:
        """Return the error after its deadline."""
        if self.model:
            return DeadlineExceeded("the request took longer than its deadline")
        return DeadlineExceeded.of_app(self.app)

    def end_with(self, error: BaseException, status: str = "failed") -> None:
        """End the request as ``status``, and fail its results with a typed ``error``."""
        if isinstance(error, OmnibusError):
            self.fail(error)
        self.end(status)

    def fail(self, error: OmnibusError) -> None:
        """Fail all results of this request with ``error``."""
        self.failure = self.failure or error
        for running in self.segments:
            running.fail(error)

    def end(self, status: str) -> None:
        """End the request, once. Each segment is recorded when its times have arrived."""
        if self.status:
            return
        self.status = status
        figures = self.answer.record_latency() if self.answer is not None and status == "done" else {}
        model = self.answer.model if self.answer is not None else self.model
        if model and not self.early and (self.segments or status == "done"):  # a rejected request took no time
            GATEWAY.duration_histogram(model).observe(time.time() - self.created)
        for running, counted_invocation in zip(self.segments, self._counted, strict=True):
            first = running is self.segments[0]
            estimates, end_figures = (self.estimates, figures) if first else ((), {})
            waited_since = self.created if first else running.invocation.created  # Unix seconds
            self._runs.loads.count_end(
                counted_invocation, running, status == "done", waited_since, estimates, end_figures
            )
            end_callback = partial(self._record_end, running, status)
            if status == "done":
                self._runs.dispatcher.complete(running, end_callback)
                self._runs.records.publish_begin(running.id)  # its client may look for it from now on
            else:
                self._runs.dispatcher.finish(running, status)
                self._runs.dispatcher.late_reports.wait(running, end_callback)
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


class RequestFactory(RequestResources):
    """Opens requests, which share its resources."""

    def open_request(
        self, app: str, model: str = "", *, seed: int | None = None, pinned_path: str = ""
    ) -> ClientRequest:
        """Open a request to ``app``, for ``model`` if it is one model's. Raises ``Overloaded`` at the limit."""
        inflight = self.dispatcher.inflight_count + self.room.waiting
        if inflight >= self.settings.max_inflight:
            self.loads.count_limit_refusal(model)
            raise Overloaded(f"{inflight} requests are in flight here: try again later")
        return ClientRequest(self, app, model, next(self.numbers[app_letters(app)]), seed, pinned_path)
