"""The way in of one request: a turn or room that it waits for once, and a queue that is short enough.

A gateway with tenants gives each request a turn (``tenancy``), which has to come in time. One without lets it wait for
room while executors can still be added (``waiting_room``), and refuses what would not end in time.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from omnibus.errors import Overloaded
from omnibus.task import Segment
from services.gateway.dispatch.inflight import InflightInvocation
from services.gateway.pricing.quantities import Estimates
from services.gateway.request.entrance import Entrance
from services.gateway.request.load_counters import CountedInvocation
from services.gateway.request.resources import RequestResources
from services.gateway.routing.draining import check_queue_time
from services.gateway.routing.router import NO_PATHS, ExecutorRoute
from services.gateway.tenancy.admission import CAPACITY_REASONS
from services.gateway.tenancy.slot import AdmissionSlot
from services.gateway.tenancy.tenant import Tenant


class AdmissibleRequest(Protocol):
    """Part of ``services.gateway.request.request.ClientRequest`` that its admission looks at."""

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
    """Admission of one request of ``tenant``, which gives itself to each call: two that held each other would be
    garbage that waits to be collected."""

    def __init__(self, resources: RequestResources, tenant: Tenant) -> None:
        self._resources = resources
        self._patient = False
        self._entrance: Entrance | None = None  # where it had to wait for room
        admission = resources.admission
        self._slot = AdmissionSlot(admission, tenant) if admission is not None else None

    def disable_queue_limit(self) -> None:
        """Let it take its turn as late as its deadline, however many wait."""
        self._patient = True
        if self._slot is not None:
            self._slot.patient = True

    async def wait(self, request: AdmissibleRequest, segment: Segment, step: int) -> bool:
        """Wait once, for a turn or for room; return whether there was one to wait for. Raises ``Overloaded``."""
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
        assignment = self._resources.router.assign(segment.nodes, request.model)
        if await self._entrance.wait(assignment, request.estimates, request.seconds_left):
            self._patient = True
            return True
        return False

    @property
    def paths(self) -> Mapping[str, str]:
        """The paths on which it has places, by model; empty where it waited for none."""
        return self._slot.paths if self._slot is not None else NO_PATHS

    def settle_segment(self, running: InflightInvocation, seconds: float) -> None:
        """The executors of ``running`` have reported all that they will, ``seconds`` of GPUs."""
        if self._slot is not None:
            self._slot.settle_segment(running, seconds)

    def take_arrival(self) -> CountedInvocation | None:
        """The arrival that was counted before the request waited for room, once; None where it did not wait."""
        return self._entrance.leave() if self._entrance is not None else None

    def check_queue_time(self, request: AdmissibleRequest, route: ExecutorRoute) -> None:
        """Refuse what would not end in time. Raises ``Overloaded``; what was begun goes on, however long it takes.

        A request that has its turn is in no executor's queue: how long others take there says nothing about it.
        """
        if request.segments or self._patient or self._slot is not None:
            return
        drains = self._resources.router.members.drain_rates(dict.fromkeys(route.executors))
        check_queue_time(drains, request.deadline - time.time(), self._resources.queue_seconds)

    def release(self, segments: Sequence[InflightInvocation]) -> CountedInvocation | None:
        """Give the turn back: none of ``segments`` is at work any more. Returns the arrival of what was not sent."""
        unsent = self.take_arrival()
        if self._slot is not None:
            self._slot.release(segments)
        return unsent
