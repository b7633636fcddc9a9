"""Admission of one request: it waits once, for a turn or for room, and its queue must be short.

A gateway with tenants gives each request a turn (``tenancy``), which must come in time. A gateway without tenants lets
it wait for room while executors can still be added (``waiting_room``), and rejects requests that would miss their
deadline.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from omnibus.errors import Overloaded
from omnibus.task import Segment
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.pricing.quantities import Estimates
from omnibus_gateway.request.entrance import Entrance
from omnibus_gateway.request.load_counters import CountedInvocation
from omnibus_gateway.request.resources import RequestResources
from omnibus_gateway.routing.draining import check_queue_time
from omnibus_gateway.routing.router import NO_PATHS, ExecutorRoute
from omnibus_gateway.tenancy.admission import CAPACITY_REASONS
from omnibus_gateway.tenancy.slot import AdmissionSlot
from omnibus_gateway.tenancy.tenant import Tenant


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
