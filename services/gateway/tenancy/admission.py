"""Admission: a request waits here, not in an executor, until it is its tenant's turn and there is room for it.

Executors are given as many requests as they batch and no more (``services.gateway.tenancy.places``); the rest wait in
one short queue per tenant, in the order of ``services.gateway.tenancy.fair_queue``. A request waits once: what a graph
sends later on goes at once, and is counted. What it costs is what executors report of it, also when it failed or was
cancelled.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from omnibus.errors import Overloaded
from omnibus.settings import GatewaySettings
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.router import Router
from services.gateway.tenancy import metrics
from services.gateway.tenancy.cost_model import RequestCost, RequestCostModel
from services.gateway.tenancy.fair_queue import WAITING, FairQueue, QueueEntry
from services.gateway.tenancy.metrics import ModelQueue
from services.gateway.tenancy.places import ExecutorPlaces, RequestClaim, find_choices
from services.gateway.tenancy.rate_limits import RateLimits
from services.gateway.tenancy.tenant import Tenant

#: Reasons of refusals that more executors would have made needless; others are limits of a key.
CAPACITY_REASONS = frozenset({"queue", "turn"})
#: Queues that are kept before those in which nobody is are forgotten: apps, and sets of models with them, come and go.
_MAX_QUEUES = 1024


class PlaceRequest(NamedTuple):
    """Request for places. ``left`` are the seconds that it has: a ``patient`` one waits as long as that, others
    for ``admit_wait`` at most. ``pinned`` and ``pins`` are as for ``Router.route``."""

    assignment: Assignment
    cost: RequestCost
    left: float
    patient: bool = False
    pinned: str = ""
    pins: Sequence[str] = ()
    conversation: str = ""


class AdmissionGrant:
    """A request's turn: give its places back by ``close``, and say by ``settle`` what it has used."""

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
        """Another segment of the request is expected to cost so much; it does not wait."""
        self._expected += seconds
        self._admission.charge(self._tenant, seconds)

    def close(self) -> None:
        """Nothing of the request is at work any more. Closing twice is harmless."""
        self._admission.end_request(self._fair, self._turn)

    def settle(self, used: float) -> None:
        """The request has ``used`` so many GPU-seconds. Settling twice is harmless."""
        if not self._settled:
            self._settled = True
            self._admission.charge(self._tenant, used - self._expected)
            self._fair.settle_entry(self._turn, used)
            metrics.count_gpu_seconds(self._tenant.name, used)


class Admission:
    """One gateway's queues: one for each model, or set of models that serve a request together."""

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
        self._queues: dict[str, ModelQueue] = {}
        self._places = ExecutorPlaces(settings, router, gateways, clock)

    def queues(self) -> Iterable[ModelQueue]:
        """Return the queues that requests have used."""
        return self._queues.values()

    async def acquire_grant(self, tenant: Tenant, request: PlaceRequest) -> AdmissionGrant:
        """Wait for the turn of a request of ``tenant``.

        Raises ``Overloaded`` when its tenant's queue is full, its key's GPU-seconds are used up, or its turn does not
        come in time, and as ``Router.admissible_paths``.
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
        found = self._queues.get(assignment.model)
        if found is None:
            if len(self._queues) >= _MAX_QUEUES:
                self._queues = {
                    name: each for name, each in self._queues.items() if each.fair.working or each.fair.waiting
                }
            models = tuple(part.model for part in assignment.parts)
            found = self._queues[assignment.model] = ModelQueue(models, FairQueue(self._settings.admit_queue))
        return found

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
                most = request.left if request.patient else min(request.left, self._settings.admit_wait)
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
            if turn.state != WAITING:  # its turn came in the same moment
                return
            fair.remove_waiting(turn)
            self._start_ready()  # it may have held up others
            raise Overloaded(
                f"it was not this request's turn within {seconds:g} s: its tenant has sent more than its share",
                retry_after=turn.line.retry_after,
                reason="turn",
            ) from None
        except BaseException:
            fair.remove_waiting(turn)
            fair.settle_entry(turn, 0.0)
            self.end_request(fair, turn)
            raise

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """GPU-seconds that are expected, or known, to be used; negative ones are given back."""
        if tenant.key is not None:
            self._limits.key_allowance(tenant.key).use_gpu_seconds(seconds, self._clock())

    def end_request(self, fair: FairQueue, turn: QueueEntry) -> None:
        """Give the places of ``turn`` back, if it has them, and to those who wait, whichever model they ask for."""
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
