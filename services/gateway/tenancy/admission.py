"""Admission: a request waits here, not in an executor, until it is its tenant's turn and there is room for it.

Executors take their work in the order in which it comes, so whoever sends most would get most. Here each executor is
given as many requests as it batches and no more; the rest wait in one short queue per tenant, in the order of
``services.gateway.tenancy.fair_queue``. A request waits once: what a graph sends later on goes at once, and is counted.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from omnibus.errors import Overloaded
from omnibus.plan import CANDIDATE_MARK
from omnibus.settings import GatewaySettings
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.router import Router
from services.gateway.tenancy import metrics
from services.gateway.tenancy.cost_model import RequestCost, RequestCostModel
from services.gateway.tenancy.fair_queue import WAITING, FairQueue, QueueEntry
from services.gateway.tenancy.metrics import ModelQueue
from services.gateway.tenancy.rate_limits import RateLimits
from services.gateway.tenancy.tenant import Tenant

#: Reasons of refusals that more executors would have made needless; others are limits of a key.
CAPACITY_REASONS = frozenset({"queue", "turn"})
#: Seconds that the count of places is good for.
CAPACITY_TTL_SECONDS = 0.25
#: Queues that are kept before those in which nobody is are forgotten: apps, and sets of models with them, come and go.
_MAX_QUEUES = 1024


class AdmissionGrant:
    """A request's turn: give it back by ``close``."""

    def __init__(self, admission: "Admission", fair: FairQueue, turn: QueueEntry, tenant: Tenant) -> None:
        self._admission = admission
        self._fair = fair
        self._turn = turn
        self._tenant = tenant
        self._expected = turn.cost
        self.used = 0.0  # GPU-seconds

    def add_cost(self, seconds: float) -> None:
        """Another segment of the request is expected to cost so much; it does not wait."""
        self._expected += seconds
        self._admission.charge(self._tenant, seconds)

    def close(self, used: float) -> None:
        """The request is over and has used ``used`` GPU-seconds. Closing twice is harmless."""
        if self._expected >= 0:
            self._admission.end_request(self._fair, self._turn, self._tenant, used, self._expected)
            self._expected = -1.0


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
        self._router = router
        self._limits = limits
        self._gateways = gateways
        self._clock = clock
        self._queues: dict[str, ModelQueue] = {}
        self._places: dict[tuple[str, frozenset[str]], tuple[float, int]] = {}

    def queues(self) -> Iterable[ModelQueue]:
        """Return the queues that requests have used."""
        return self._queues.values()

    async def acquire_grant(
        self, tenant: Tenant, assignment: Assignment, cost: RequestCost, left: float, patient: bool = False
    ) -> AdmissionGrant:
        """Wait for the turn of a request that has ``left`` seconds; a ``patient`` one waits as long as that.

        Raises ``Overloaded`` when its tenant's queue is full, its key's GPU-seconds are used up, or its turn does not
        come in time.
        """
        queue = self._model_queue(assignment)
        try:
            if tenant.key is not None:
                self._limits.key_allowance(tenant.key).check_gpu_seconds(self._clock())
            turn = await self._enqueue_and_wait(
                queue, tenant, self._slot_limit(assignment), cost.seconds, left, patient
            )
        except Overloaded as error:
            metrics.count_refused(tenant.name, error.reason, *queue.models)
            raise
        self.charge(tenant, cost.seconds)
        return AdmissionGrant(self, queue.fair, turn, tenant)

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
        self, queue: ModelQueue, tenant: Tenant, slots: int, seconds: float, left: float, patient: bool
    ) -> QueueEntry:
        came, fair = self._clock(), queue.fair
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = fair.enqueue(
            tenant.queue or tenant.name, tenant.weight, seconds, slots, lambda: _wake_waiter(woken), patient
        )
        self._start_ready(fair)
        try:
            if turn.state == WAITING:
                await self._wait_in_queue(fair, turn, woken, left if patient else min(left, self._settings.admit_wait))
        finally:
            if not patient:
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
            self._start_ready(fair)  # it may have held up others, who need less room
            raise Overloaded(
                f"it was not this request's turn within {seconds:g} s: its tenant has sent more than its share",
                retry_after=turn.line.retry_after,
                reason="turn",
            ) from None
        except BaseException:
            fair.remove_waiting(turn)
            fair.finish_entry(turn, 0.0)
            self._start_ready(fair)
            raise

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """GPU-seconds that are expected, or known, to be used; negative ones are given back."""
        if tenant.key is not None:
            self._limits.key_allowance(tenant.key).use_gpu_seconds(seconds, self._clock())

    def end_request(self, fair: FairQueue, turn: QueueEntry, tenant: Tenant, used: float, expected: float) -> None:
        self.charge(tenant, used - expected)
        fair.finish_entry(turn, used)
        self._start_ready(fair)
        metrics.count_gpu_seconds(tenant.name, used)

    def _start_ready(self, fair: FairQueue) -> None:
        while (turn := fair.start_next(self._clock())) is not None:
            if turn.begin is not None:
                turn.begin()

    # Room

    def _slot_limit(self, assignment: Assignment) -> int:
        """Requests that may be at work: what the scarcest of its stages batches, divided among the gateways."""
        least = min(self._stage_capacity(part.model, part.used) for part in assignment.parts)
        return max(1, -(-least // self._gateways()))

    def _stage_capacity(self, model: str, used: frozenset[str]) -> int:
        key, now = (model, used), self._clock()
        known = self._places.get(key)
        if known is None or now >= known[0]:
            known = self._places[key] = (now + CAPACITY_TTL_SECONDS, self._count_capacity(model, used))
            if len(self._places) > 4096:
                self._places.clear()
        return known[1]

    def _count_capacity(self, model: str, used: frozenset[str]) -> int:
        tasks = self._router.get_model(model).tasks
        wanted = {component: tasks.get(component, "") for component in used}
        places = dict.fromkeys(used, 0)
        for status in self._router.members.statuses():
            if status.state != "ready" or status.option.endswith(CANDIDATE_MARK):
                continue
            takes = self._settings.admit or status.slots or status.credits
            for component, task in wanted.items():
                own = status.model == model and component in status.components
                if own or (task and task in status.tasks):
                    places[component] += takes
        return min(places.values(), default=1)


def _wake_waiter(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
