"""Admission: a request waits here, not in an executor, for its tenant's turn and for room.

Executors receive as many requests as they batch (``omnibus_gateway.tenancy.places``). The others wait in one short
queue per tenant, in the order of ``omnibus_gateway.tenancy.fair_queue``. A request waits once: later segments of its
graph are sent and counted at once. Its cost is the one that executors report, even if it failed or was cancelled.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from omnibus.errors import Overloaded
from omnibus.settings import GatewaySettings
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tenancy import metrics
from omnibus_gateway.tenancy.cost_model import RequestCost, RequestCostModel
from omnibus_gateway.tenancy.fair_queue import WAITING, FairQueue, QueueEntry
from omnibus_gateway.tenancy.metrics import ModelQueue
from omnibus_gateway.tenancy.places import ExecutorPlaces, RequestClaim, find_choices
from omnibus_gateway.tenancy.rate_limits import RateLimits
from omnibus_gateway.tenancy.tenant import Tenant

#: Reasons of rejections that more executors would avoid; others are limits of a key.
CAPACITY_REASONS = frozenset({"queue", "turn"})
#: Queues that are kept before empty ones are evicted: apps, and sets of models with them, change over time.
_MAX_QUEUES = 1024


class PlaceRequest(NamedTuple):
    """Request for places.

    ``left`` are the seconds until its deadline. A ``patient`` request waits that long, others for ``admit_wait`` at
    most, and not longer than the goals of their type. ``pinned`` and ``pins`` are as for ``Router.route``."""

    assignment: Assignment
    cost: RequestCost
    left: float
    patient: bool = False
    pinned: str = ""
    pins: Sequence[str] = ()
    conversation: str = ""


class AdmissionGrant:
    """Turn of a request: ``close`` releases its places, and ``settle`` records its usage."""

    def __init__(
        self, admission: "Admission", fair: FairQueue, turn: QueueEntry, tenant: Tenant, paths: Mapping[str, str]
    ) -> None:
        self.paths = paths  # by model
        self._admission = admission
        self._fair = fair
        self._turn = turn
        self._tenant = tenant
        self._expected = turn.cost
        self._settled = False

    def add_cost(self, seconds: float) -> None:
        """Add the expected cost of another segment, which does not wait."""
        self._expected += seconds
        self._admission.charge(self._tenant, seconds)

    def close(self) -> None:
        """Release the places of the request, which runs no more; idempotent."""
        self._admission.end_request(self._fair, self._turn)

    def settle(self, gpu_seconds: float) -> None:
        """Record that the request ``gpu_seconds`` so many GPU-seconds; idempotent."""
        if not self._settled:
            self._settled = True
            self._admission.charge(self._tenant, gpu_seconds - self._expected)
            self._fair.settle_entry(self._turn, gpu_seconds)
            metrics.count_gpu_seconds(self._tenant.name, gpu_seconds)


class Admission:
    """Queues of one gateway, one for each combination of models."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        costs: RequestCostModel,
        limits: RateLimits,
        gateways: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.costs = costs
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._router = router
        self._queues: dict[str, ModelQueue] = {}
        self._places = ExecutorPlaces(settings, router, gateways, clock)

    def queues(self) -> Iterable[ModelQueue]:
        """Return the queues that requests have used."""
        return self._queues.values()

    async def acquire_grant(self, tenant: Tenant, request: PlaceRequest) -> AdmissionGrant:
        """Wait for the turn of a request of ``tenant``.

        Raises ``Overloaded`` if its tenant's queue is full, its key has no GPU-seconds left, or its turn does not come
        in time. Also raises as ``Router.admissible_paths``.
        """
        queue = self._model_queue(request.assignment)
        line = tenant.queue or tenant.name
        choices = find_choices(self._places, request.assignment, request.pinned, request.pins, request.conversation)
        claim = RequestClaim(self._places, line, choices)
        try:
            if tenant.key is not None:
                self._limits.key_allowance(tenant.key).check_gpu_seconds(self._clock())
            turn = await self._enqueue_and_wait(queue, tenant, claim, request)
        except Overloaded as error:
            metrics.count_refused(tenant.name, error.reason, *queue.models)
            raise
        self.charge(tenant, request.cost.seconds)
        return AdmissionGrant(self, queue.fair, turn, tenant, claim.paths)

    def _model_queue(self, assignment: Assignment) -> ModelQueue:
        model_queue = self._queues.get(assignment.model)
        if model_queue is None:
            if len(self._queues) >= _MAX_QUEUES:
                self._queues = {
                    name: each for name, each in self._queues.items() if each.fair.working or each.fair.waiting
                }
            models = tuple(part.model for part in assignment.parts)
            model_queue = self._queues[assignment.model] = ModelQueue(models, FairQueue(self._settings.admit_queue))
        return model_queue

    async def _enqueue_and_wait(
        self, queue: ModelQueue, tenant: Tenant, claim: RequestClaim, request: PlaceRequest
    ) -> QueueEntry:
        came, fair = self._clock(), queue.fair
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = fair.enqueue(
            tenant.queue or tenant.name,
            tenant.weight,
            request.cost.seconds,
            claim,
            lambda: _wake_waiter(woken),
            request.patient,
        )
        self._start_ready()
        try:
            if turn.state == WAITING:
                most = request.left
                if not request.patient:
                    most = min(most, self._settings.admit_wait, self._router.longest_wait(request.assignment))
                await self._wait_in_queue(fair, turn, woken, most)
        finally:
            if not request.patient:
                metrics.observe_wait(self._clock() - came, queue.models)
        return turn

    async def _wait_in_queue(
        self, fair: FairQueue, turn: QueueEntry, woken: "asyncio.Future[None]", seconds: float
    ) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await woken
        except TimeoutError:
            if turn.state != WAITING:  # its turn came at the same moment
                return
            fair.remove_waiting(turn)
            self._start_ready()  # it may have blocked others
            raise Overloaded(
                f"the request did not get its turn within {seconds:g} s: its tenant has sent more than its share",
                retry_after=turn.line.retry_after,
                reason="turn",
            ) from None
        except BaseException:
            fair.remove_waiting(turn)
            fair.settle_entry(turn, 0.0)
            self.end_request(fair, turn)
            raise

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """Charge ``seconds`` that are expected or used; negative ones are refunded."""
        if tenant.key is not None:
            self._limits.key_allowance(tenant.key).use_gpu_seconds(seconds, self._clock())

    def end_request(self, fair: FairQueue, turn: QueueEntry) -> None:
        """Release the places of ``turn`` and start waiting requests, for any model."""
        fair.finish_entry(turn)
        self._start_ready()

    def _start_ready(self) -> None:
        for queue in list(self._queues.values()):
            while queue.fair.waiting and (turn := queue.fair.start_next(self._clock())) is not None:
                if turn.begin is not None:
                    turn.begin()


def _wake_waiter(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
