"""Admission of a request: it waits once, for its tenant's turn or for room at executors.

While the planner can still add executors, requests wait in the waiting room instead of failing.

Work stays with the executor that received it, so an executor that starts serves only requests that still wait here. So
each executor receives twice its batch, and the rest waits in order, within its deadline. A batch consists of rows, and
each item of an encoder is a row: requests with ten images fill a batch ten times as fast. Models that the planner does
not report as growing (``PlanEvent.growth``) have no waiting room: they reject by time alone.

A gateway with tenants gives each request a turn (``tenancy``), which must come in time. A gateway without tenants lets
it wait for room while executors can still be added (``waiting_room``), and rejects requests that would miss their
deadline.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from omnibus.bus.messages import ModelGrowth, PlanEvent
from omnibus.errors import Fatal, OmnibusError, Overloaded
from omnibus.settings import GatewaySettings
from omnibus.task import Segment
from omnibus.tensors.client import TensorClient
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.pricing.meter import Estimates
from omnibus_gateway.pricing.quotes import Quotes
from omnibus_gateway.request.load_report import CountedInvocation, LoadReporter
from omnibus_gateway.request.record import Records
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.draining import check_queue_time
from omnibus_gateway.routing.executors import ExecutorEntry
from omnibus_gateway.routing.router import NO_PATHS, ExecutorRoute, Router
from omnibus_gateway.tenancy.admission import CAPACITY_REASONS, Admission, AdmissionSlot
from omnibus_gateway.tenancy.tenant import Tenant


def request_over_error() -> Fatal:
    """Return the error for readers of a request that has ended."""
    return Fatal("the request is over: nothing of it runs any more")


def fail_open_streams(running: InflightInvocation, failure: OmnibusError | None = None) -> None:
    """Fail the open streams of ``running`` with ``failure``, or a generic error."""
    for stream in running.streams.values():
        if not stream.ended:
            stream.fail(failure or request_over_error())


#: Work that an executor receives, as a multiple of its batch: the next batch waits there.
_BATCHES = 2
#: Seconds for which a report of the planner is valid: it repeats twice as often.
GROWTH_TTL_SECONDS = 10.0
#: Seconds between two checks for room while a request waits.
_LOOK_SECONDS = 0.02
#: How many times its mean a request may take longer than predicted and still meet its deadline.
_DEADLINE_MARGIN = 1.25


class _Waiter(NamedTuple):
    """A request that waits; ``woken`` is done once there is room."""

    assignment: Assignment
    woken: "asyncio.Future[None]"


class _Stage(NamedTuple):
    """Executors of a component, and the rows that a request takes there.

    A request has one row for each of its items.
    """

    entries: list[ExecutorEntry]
    rows: int


class WaitingRoom:
    """Queues of one gateway, one for each combination of models.

    ``waiting`` counts the requests in them, ``entering`` the admitted requests that have not been sent yet.
    """

    def __init__(self, router: Router) -> None:
        self.waiting = 0
        self._router = router
        self._forget: asyncio.TimerHandle | None = None
        self._queues: dict[str, deque[_Waiter]] = {}
        self._entering: dict[str, int] = {}
        self._looking: dict[str, asyncio.TimerHandle] = {}

    def growth(self, assignment: Assignment) -> ModelGrowth | None:
        """Return the growth of the least growing model of ``assignment``; None if one cannot grow."""
        growing = self._router.growing
        if not growing or not all(part.model in growing for part in assignment.parts):
            return None
        return min((growing[part.model] for part in assignment.parts), key=lambda each: each.factor, default=None)

    def handle_plan_event(self, event: PlanEvent) -> None:
        """Apply the growth that the planner reports; its silence means none."""
        self._router.growing = event.growth
        if self._forget is not None:
            self._forget.cancel()
        loop = asyncio.get_running_loop()
        self._forget = loop.call_later(GROWTH_TTL_SECONDS, self._forget_growth) if event.growth else None

    def _forget_growth(self) -> None:
        self._router.growing, self._forget = {}, None

    def close(self) -> None:
        """Cancel the timer that expires the growth."""
        if self._forget is not None:
            self._forget.cancel()

    def has_room(self, assignment: Assignment) -> bool:
        """Return True if a request finds room without waiting."""
        queue = assignment.model
        return not self._queues.get(queue) and self._free_places(assignment) > self._entering.get(queue, 0)

    def check_spare_room(self, assignment: Assignment) -> None:
        """Check that no request waits and each eligible option has spare room.

        That is an executor with less than half a batch. Raises ``Overloaded``."""
        spare = not self._queues.get(assignment.model) and all(
            any(map(_is_spare, entries)) for entries in self._options(assignment) if entries
        )
        if not spare:
            raise Overloaded("the executors are busy: early requests need spare capacity")

    async def enter(self, assignment: Assignment, growth: ModelGrowth, left: float) -> None:
        """Wait until there is room for a request that has ``left`` seconds.

        Call ``leave_entrance`` once it is sent or abandoned. Raises ``Overloaded`` after a timeout, or if even with all
        executors that can be added it would miss its deadline.
        """
        if not self.has_room(assignment):
            self._check_time(assignment, growth, left)
            await self._wait_in_queue(assignment, left)
        self._entering[assignment.model] = self._entering.get(assignment.model, 0) + 1

    def leave_entrance(self, assignment: Assignment) -> None:
        """Note that an admitted request was sent or ended."""
        self._entering[assignment.model] -= 1

    async def _wait_in_queue(self, assignment: Assignment, left: float) -> None:
        queue = self._queues.setdefault(assignment.model, deque())
        waiter = _Waiter(assignment, asyncio.get_running_loop().create_future())
        queue.append(waiter)
        self.waiting += 1
        self._schedule_check(assignment.model)
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await waiter.woken
        except TimeoutError:
            wait_seconds = time.monotonic() - began
            raise Overloaded(
                f"there was no room for the request within {wait_seconds:.0f} s: try again later"
            ) from None
        finally:
            self.waiting -= 1
            if waiter in queue:
                queue.remove(waiter)

    def _schedule_check(self, name: str) -> None:
        if name not in self._looking:
            loop = asyncio.get_running_loop()
            self._looking[name] = loop.call_later(_LOOK_SECONDS, self._let_in, name)

    def _let_in(self, name: str) -> None:
        """Wake the requests that there is room for, in order of arrival."""
        del self._looking[name]
        queue, place_count = self._queues[name], self._entering.get(name, 0)
        while queue and self._free_places(queue[0].assignment) > place_count:
            waiter = queue.popleft()
            if not waiter.woken.done():
                waiter.woken.set_result(None)
                place_count += 1
        if queue:
            self._schedule_check(name)
        else:
            del self._queues[name]

    def _check_time(self, assignment: Assignment, growth: ModelGrowth, left: float) -> None:
        """Reject a request that would get its turn too late. Raises ``Overloaded``."""
        before = len(self._queues.get(assignment.model, ()))
        rate = min((self._drain_rate(stage.entries) for stage in self._stages(assignment)), default=0.0)
        seconds = (before + 1) / rate if rate > 0 else 0.0
        wait_seconds = min(seconds, growth.seconds + max(0.0, seconds - growth.seconds) / growth.factor)
        if wait_seconds > left / _DEADLINE_MARGIN:
            raise Overloaded(
                f"too many requests wait already: even with more executors this one would take {wait_seconds:.0f} "
                f"s, and it has {left:.0f} s",
                retry_after=wait_seconds - left / _DEADLINE_MARGIN,
            )

    # Executors

    def _free_places(self, assignment: Assignment) -> float:
        """Return the requests that the scarcest stage of ``assignment`` can accept.

        Stages without executors do not count; routing reports them."""
        free = [
            sum(_free_places(entry, stage.rows) for entry in stage.entries)
            for stage in self._stages(assignment)
            if stage.entries
        ]
        return min(free, default=float("inf"))

    def _stages(self, assignment: Assignment) -> Iterator[_Stage]:
        """Yield the executors of each component, over all options."""
        router = self._router
        for part in assignment.parts:
            options: dict[str, set[str]] = {}
            for path in router.find_paths(part):
                for component in part.used:
                    options.setdefault(component, set()).add(path.options[component])
            for component, names in options.items():
                entries = [entry for name in sorted(names) for entry in router.serving_executors(part.model, name)]
                yield _Stage(entries, part.components.count(component))

    def _options(self, assignment: Assignment) -> Iterator[list[ExecutorEntry]]:
        """Yield the executors of each option on a path."""
        for part in assignment.parts:
            paths = self._router.find_paths(part)
            for name in sorted({path.options[component] for path in paths for component in part.used}):
                yield self._router.serving_executors(part.model, name)

    @staticmethod
    def _drain_rate(entries: list[ExecutorEntry]) -> float:
        return sum(entry.drain.rate for entry in entries)


def _is_spare(entry: ExecutorEntry) -> bool:
    return 2 * (entry.own + entry.foreign) < min(entry.status.slots or entry.credits, entry.credits)


def _free_places(entry: ExecutorEntry, rows: int) -> float:
    """Return how many more requests of ``rows`` rows an executor can receive."""
    slots, credit = entry.status.slots, entry.available_credit
    return max(0.0, min(credit, (_BATCHES * slots - entry.rows) / rows) if slots else credit)


#: Part of the time until the deadline that a queue may take; more counts as an overload.
MAX_QUEUE_OVER_DEADLINE = 0.5


class RequestResources:
    """The parts of a gateway that every request shares. Media are stored if content is recorded."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        dispatcher: Dispatcher,
        tensors: TensorClient,
        records: Records,
        keep: MediaStore,
        loads: LoadReporter,
        admission: Admission | None = None,
    ) -> None:
        self.settings = settings
        self.router = router
        self.dispatcher = dispatcher
        self.tensors = tensors
        self.records = records
        self.quotes = Quotes(router, records.meter)
        self.kept = keep if records.rules.any_full else None
        self.loads = loads
        self.admission = admission
        #: Maximum queue time in seconds: less with short deadlines, which it would use up.
        self.queue_seconds = min(settings.queue_seconds, MAX_QUEUE_OVER_DEADLINE * settings.deadline)
        self.room = WaitingRoom(router)
        self.numbers: dict[str, count[int]] = defaultdict(count)  # by the letters in ids, which apps may share


class Entrance:
    """Passage of a request through the ``WaitingRoom``, before its first segment."""

    def __init__(self, room: WaitingRoom, loads: LoadReporter) -> None:
        self._room = room
        self._loads = loads
        self._entered: tuple[Assignment, CountedInvocation] | None = None  # admitted, not sent yet

    async def wait(self, assignment: Assignment, estimates: Estimates, seconds_left: float) -> bool:
        """Wait while executors can still be added; returns True if it waited. Raises ``Overloaded``."""
        growth = self._room.growth(assignment)
        if growth is None:
            return False
        counted_invocation = self._loads.count_arrival(assignment, estimates)
        self._loads.count_waiting(counted_invocation, 1)
        try:
            await self._room.enter(assignment, growth, seconds_left)
        except BaseException as error:
            self._loads.count_failure(counted_invocation, error)
            raise
        finally:
            self._loads.count_waiting(counted_invocation, -1)
        self._entered = assignment, counted_invocation
        return True

    def leave(self) -> CountedInvocation | None:
        """Return the arrival counted before the wait, once; None if the request did not wait."""
        if self._entered is None:
            return None
        (assignment, counted_invocation), self._entered = self._entered, None
        self._room.leave_entrance(assignment)
        return counted_invocation


class AdmissibleRequest(Protocol):
    """The part of ``omnibus_gateway.request.request.ClientRequest`` that its admission reads."""

    model: str
    deadline: float
    early: bool
    estimates: Estimates
    segments: list[InflightInvocation]
    pinned: str
    cache_key: str

    @property
    def seconds_left(self) -> float:
        """Seconds until its deadline."""
        ...


class RequestAdmission:
    """Admission of one request of ``tenant``.

    Each call gets the request: references in both directions would make garbage that waits for collection."""

    def __init__(self, resources: RequestResources, tenant: Tenant) -> None:
        self._resources = resources
        self._patient = False
        self._entrance: Entrance | None = None  # if it had to wait for room
        admission = resources.admission
        self._slot = AdmissionSlot(admission, tenant) if admission is not None else None

    def disable_queue_limit(self) -> None:
        """Let the request queue until its deadline, however many requests wait."""
        self._patient = True
        if self._slot is not None:
            self._slot.patient = True

    async def wait(self, request: AdmissibleRequest, segment: Segment, step: int) -> bool:
        """Wait once, for a turn or for room; returns True if it had to. Raises ``Overloaded``."""
        if self._slot is not None:
            await self._acquire_slot(self._slot, request, segment, step)
            return True
        if self._resources.router.growing and not (request.segments or self._patient):
            return await self._wait_for_room(request, segment)
        return False

    async def _acquire_slot(self, slot: AdmissionSlot, request: AdmissibleRequest, segment: Segment, step: int) -> None:
        assignment = self._resources.router.assign(segment.nodes, request.model)
        slot.pinned, slot.conversation = request.pinned, request.cache_key
        try:
            await slot.acquire(assignment, segment.work, step, request.seconds_left, segment.pins)
        except Overloaded as error:
            if error.reason in CAPACITY_REASONS and not request.early:
                self._resources.loads.count_rejection(assignment, request.estimates)
            raise

    async def _wait_for_room(self, request: AdmissibleRequest, segment: Segment) -> bool:
        self._entrance = Entrance(self._resources.room, self._resources.loads)
        router, seconds = self._resources.router, request.seconds_left
        assignment = router.assign(segment.nodes, request.model)
        if router.has_goals:
            seconds = min(seconds, router.longest_wait(assignment))
        if await self._entrance.wait(assignment, request.estimates, seconds):
            self._patient = True
            return True
        return False

    @property
    def paths(self) -> Mapping[str, str]:
        """The paths of its slots, by model; empty if it waited for none."""
        return self._slot.paths if self._slot is not None else NO_PATHS

    def settle_segment(self, running: InflightInvocation, seconds: float) -> None:
        """Settle ``running`` at ``seconds`` of GPUs, after its last reports."""
        if self._slot is not None:
            self._slot.settle_segment(running, seconds)

    def take_arrival(self) -> CountedInvocation | None:
        """Return the arrival counted before the wait for room, once; None without one."""
        return self._entrance.leave() if self._entrance is not None else None

    def check_queue_time(self, request: AdmissibleRequest, route: ExecutorRoute) -> None:
        """Reject a request that would miss its deadline, or that the plan has no credit for. Raises ``Overloaded``.

        A request that has begun continues, however long it takes. A request with a turn is in no executor's queue, so
        the time of others there does not matter.
        """
        if request.segments or self._patient or self._slot is not None:
            return
        members, executors = self._resources.router.members, dict.fromkeys(route.executors)
        if members.has_credits:
            members.check_credits(executors)
        drains = members.drain_rates(executors)
        check_queue_time(drains, request.deadline - time.time(), self._resources.queue_seconds)

    def release(self, segments: Sequence[InflightInvocation]) -> CountedInvocation | None:
        """Release the turn when none of ``segments`` runs; returns the arrival of an unsent request."""
        unsent = self.take_arrival()
        if self._slot is not None:
            self._slot.release(segments)
        return unsent
