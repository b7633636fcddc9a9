"""Admission: a request waits here, not in an executor, until it is its tenant's turn and there is room for it.

Executors take their work in the order in which it comes, so whoever sends most would get most. Here each executor is
given as many requests as it batches and no more; the rest wait in one short queue per tenant, in the order of
``services.gateway.tenancy.fair_queue``. A request waits once: what a graph sends later on goes at once, and is counted.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from omnibus.errors import Overloaded
from omnibus.settings import GatewaySettings
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.router import Router
from services.gateway.tenancy import metrics
from services.gateway.tenancy.cost_model import Cost, Costs
from services.gateway.tenancy.fair_queue import WAITING, Fair, Turn
from services.gateway.tenancy.metrics import Queue
from services.gateway.tenancy.rate_limits import Limits
from services.gateway.tenancy.tenant import Tenant

#: Reasons of refusals that more executors would have made needless; others are limits of a key.
FOR_WANT_OF_ROOM = frozenset({"queue", "turn"})
#: Seconds that the count of places is good for.
COUNTED = 0.25
#: Queues that are kept before those in which nobody is are forgotten: apps, and sets of models with them, come and go.
_KEPT = 1024


class Grant:
    """A request's turn: give it back by ``close``."""

    def __init__(self, admission: "Admission", fair: Fair, turn: Turn, tenant: Tenant) -> None:
        self._admission = admission
        self._fair = fair
        self._turn = turn
        self._tenant = tenant
        self._expected = turn.cost
        self.used = 0.0  # GPU-seconds

    def add(self, seconds: float) -> None:
        """Another segment of the request is expected to cost so much; it does not wait."""
        self._expected += seconds
        self._admission.charge(self._tenant, seconds)

    def close(self, used: float) -> None:
        """The request is over and has used ``used`` GPU-seconds. Closing twice is harmless."""
        if self._expected >= 0:
            self._admission.end(self._fair, self._turn, self._tenant, used, self._expected)
            self._expected = -1.0


class Admission:
    """One gateway's queues: one for each model, or set of models that serve a request together."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        costs: Costs,
        limits: Limits,
        gateways: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.costs = costs
        self._settings = settings
        self._router = router
        self._limits = limits
        self._gateways = gateways
        self._clock = clock
        self._queues: dict[str, Queue] = {}
        self._places: dict[tuple[str, frozenset[str]], tuple[float, int]] = {}

    def queues(self) -> Iterable[Queue]:
        """Return the queues that requests have used."""
        return self._queues.values()

    async def enter(
        self, tenant: Tenant, assignment: Assignment, cost: Cost, left: float, patient: bool = False
    ) -> Grant:
        """Wait for the turn of a request that has ``left`` seconds; a ``patient`` one waits as long as that.

        Raises ``Overloaded`` when its tenant's queue is full, its key's GPU-seconds are used up, or its turn does not
        come in time.
        """
        queue = self._queue(assignment)
        try:
            if tenant.key is not None:
                self._limits.of(tenant.key).check(self._clock())
            turn = await self._turn(queue, tenant, self._slots(assignment), cost.seconds, left, patient)
        except Overloaded as error:
            metrics.refused(tenant.name, error.reason, *queue.models)
            raise
        self.charge(tenant, cost.seconds)
        return Grant(self, queue.fair, turn, tenant)

    def _queue(self, assignment: Assignment) -> Queue:
        found = self._queues.get(assignment.model)
        if found is None:
            if len(self._queues) >= _KEPT:
                self._queues = {
                    name: each for name, each in self._queues.items() if each.fair.working or each.fair.waiting
                }
            models = tuple(part.model for part in assignment.parts)
            found = self._queues[assignment.model] = Queue(models, Fair(self._settings.admit_queue))
        return found

    async def _turn(self, queue: Queue, tenant: Tenant, slots: int, seconds: float, left: float, patient: bool) -> Turn:
        came, fair = self._clock(), queue.fair
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = fair.come(tenant.name, tenant.weight, seconds, slots, lambda: _wake(woken), patient)
        self._go_on(fair)
        try:
            if turn.state == WAITING:
                await self._wait(fair, turn, woken, left if patient else min(left, self._settings.admit_wait))
        finally:
            if not patient:
                metrics.waited(self._clock() - came, queue.models)
        return turn

    async def _wait(self, fair: Fair, turn: Turn, woken: "asyncio.Future[None]", seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await woken
        except TimeoutError:
            if turn.state != WAITING:  # its turn came in the same moment
                return
            fair.leave(turn)
            self._go_on(fair)  # it may have held up others, who need less room
            raise Overloaded(
                f"it was not this request's turn within {seconds:g} s: its tenant has sent more than its share",
                retry_after=turn.line.retry_after,
                reason="turn",
            ) from None
        except BaseException:
            fair.leave(turn)
            fair.over(turn, 0.0)
            self._go_on(fair)
            raise

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """GPU-seconds that are expected, or known, to be used; negative ones are given back."""
        if tenant.key is not None:
            self._limits.of(tenant.key).use(seconds, self._clock())

    def end(self, fair: Fair, turn: Turn, tenant: Tenant, used: float, expected: float) -> None:
        self.charge(tenant, used - expected)
        fair.over(turn, used)
        self._go_on(fair)
        metrics.used(tenant.name, used)

    def _go_on(self, fair: Fair) -> None:
        while (turn := fair.next(self._clock())) is not None:
            if turn.begin is not None:
                turn.begin()

    # Room

    def _slots(self, assignment: Assignment) -> int:
        """Requests that may be at work: what the scarcest of its stages batches, divided among the gateways."""
        least = min(self._at_work(part.model, part.used) for part in assignment.parts)
        return max(1, -(-least // self._gateways()))

    def _at_work(self, model: str, used: frozenset[str]) -> int:
        key, now = (model, used), self._clock()
        known = self._places.get(key)
        if known is None or now >= known[0]:
            known = self._places[key] = (now + COUNTED, self._count(model, used))
            if len(self._places) > 4096:
                self._places.clear()
        return known[1]

    def _count(self, model: str, used: frozenset[str]) -> int:
        tasks = self._router.model(model).tasks
        wanted = {component: tasks.get(component, "") for component in used}
        places = dict.fromkeys(used, 0)
        for status in self._router.members.statuses():
            if status.state != "ready":
                continue
            takes = self._settings.admit or status.slots or status.credits
            for component, task in wanted.items():
                own = status.model == model and component in status.components
                if own or (task and task in status.tasks):
                    places[component] += takes
        return min(places.values(), default=1)


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
