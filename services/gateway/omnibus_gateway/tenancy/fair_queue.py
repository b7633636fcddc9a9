"""Start-time fair queueing of GPU-seconds among tenants.

This is pure state: no clock, no waits. The method is start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with
several requests in service, SFQ(D) (Jin, Chase, Kaur, SIGMETRICS 2004). Each tenant has a mark: the GPU-seconds that it
has used, divided by its weight. It is ahead of its mark by the expected cost of its requests in service. The waiting
tenant with the lowest sum is next. The actual cost of a request replaces its expectation when it ends. That follows the
virtual token counter (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). As there, a tenant that
returns after a pause begins at the lowest mark of the waiting tenants. So a pause earns nothing, and requests of others
in service do not delay it, even if their estimates are wrong.

A request needs a place at each of the executors on one of its paths (``omnibus_gateway.tenancy.admission``). The tenant
with the lowest sum goes first. If its request finds no place, others may pass it, but only at executors that it does
not wait for. So no executor is idle for its sake, and no stream of other requests starves it.

While two tenants both wait for the same executors, their usage divided by their weights stays close. It differs at most
by the cost of their requests in service plus one request, divided by their weights.

Prometheus metrics of admission; requests of several models count for each.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import NamedTuple, Protocol

from omnibus.errors import Overloaded
from omnibus.metrics import GATEWAY, TENANTS

WAITING, WORKING, OVER = "waiting", "working", "over"
#: Bounds of ``Retry-After`` in seconds for a client whose queue is full.
MIN_RETRY_AFTER_SECONDS, MAX_RETRY_AFTER_SECONDS = 1.0, 60.0
#: Weight of the last pause in the mean pause between two turns of a tenant.
_NEWEST_WEIGHT = 0.2
#: Tenants that are kept before idle ones are evicted.
_MAX_TENANTS = 1024


class PlaceClaim(Protocol):
    """The places that one request needs to run."""

    @property
    def pools(self) -> Collection[Hashable]:
        """The executors that it may need, on any of its paths."""
        ...

    def take(self, claimed_pools: Collection[Hashable]) -> bool:
        """Take places outside ``claimed_pools``, where earlier requests wait; False if there are none."""
        ...

    def release(self) -> None:
        """Release the places."""
        ...


class QueueEntry:
    """One request: waiting, in service, or over. ``begin`` is called when its turn comes."""

    __slots__ = ("begin", "claim", "cost", "line", "settled", "state", "weight")

    def __init__(
        self, line: "TenantQueue", weight: float, cost: float, claim: PlaceClaim, begin: Callable[[], None] | None
    ) -> None:
        self.line = line
        self.weight = weight
        self.cost = cost
        self.claim = claim
        self.state = WAITING
        self.settled = False
        self.begin = begin


class TenantQueue:
    """One tenant. ``mark`` and ``ahead`` are in GPU-seconds per weight, ``pace`` in seconds between two turns.

    ``unsettled`` counts its requests with unknown cost: those in service and those that have just ended.
    """

    __slots__ = ("ahead", "last", "mark", "pace", "tenant", "turns", "unsettled", "waiting", "working")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.mark = 0.0
        self.ahead = 0.0
        self.turns: deque[QueueEntry] = deque()  # cancelled ones are removed on reaching the front
        self.waiting = 0
        self.working = 0
        self.unsettled = 0
        self.pace = 0.0
        self.last = 0.0

    @property
    def retry_after(self) -> float:
        """Seconds in which about half of the queue gets its turn."""
        return min(MAX_RETRY_AFTER_SECONDS, max(MIN_RETRY_AFTER_SECONDS, self.pace * self.waiting / 2))

    def first_waiting(self) -> QueueEntry:
        """Return the next entry that still waits; there must be one."""
        while self.turns[0].state != WAITING:
            self.turns.popleft()
        return self.turns[0]


class FairQueue:
    """Tenants of one model. ``queue`` requests of each may wait."""

    def __init__(self, queue: int) -> None:
        self.working = 0
        self._queue = queue
        self._lines: dict[str, TenantQueue] = {}
        self._waiting: dict[str, TenantQueue] = {}  # lines with waiting requests
        self._last: TenantQueue | None = None  # the line of the last turn

    @property
    def waiting(self) -> int:
        return sum(line.waiting for line in self._waiting.values())

    def tenant_mark(self, tenant: str) -> float:
        """Return the mark of ``tenant``: its usage, in GPU-seconds per weight."""
        line = self._lines.get(tenant)
        return line.mark if line is not None else self._lowest_mark

    @property
    def _lowest_mark(self) -> float:
        """Mark of a new tenant: the lowest of the waiting tenants, else the last one served."""
        if self._waiting:
            return min(map(_queue_mark, self._waiting.values()))
        return self._last.mark if self._last is not None else 0.0

    def enqueue(
        self,
        tenant: str,
        weight: float,
        cost: float,
        claim: PlaceClaim,
        begin: Callable[[], None] | None = None,
        patient: bool = False,
    ) -> QueueEntry:
        """Add a request of ``cost`` GPU-seconds, which begins when its ``claim`` succeeds.

        Raises ``Overloaded`` if the queue is full, unless it is ``patient``. Call ``start_next`` afterwards.
        """
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = TenantQueue(tenant)
        if line.waiting >= self._queue and not patient:
            raise Overloaded(
                f"{line.waiting} requests of this tenant wait for their turn: try again later",
                retry_after=line.retry_after,
                reason="queue",
            )
        if not line.waiting:
            line.mark = max(line.mark, self._lowest_mark)
            line.turns.clear()
            self._waiting[tenant] = line
        turn = QueueEntry(line, weight, cost, claim, begin)
        line.turns.append(turn)
        line.waiting += 1
        return turn

    def start_next(self, now: float) -> QueueEntry | None:
        """Begin the next request, if one waits and there is room; ``now`` is in seconds of any clock."""
        claimed_pools: set[Hashable] = set()
        for line in sorted(self._waiting.values(), key=_expected_mark):
            turn = line.first_waiting()
            if turn.claim.take(claimed_pools):
                self._begin_turn(line, turn, now)
                return turn
            claimed_pools.update(turn.claim.pools)
        return None

    def _begin_turn(self, line: TenantQueue, turn: QueueEntry, now: float) -> None:
        line.turns.popleft()
        self._decrement_waiting(line)
        turn.state = WORKING
        self.working += 1
        line.working += 1
        line.unsettled += 1
        self._last = line
        line.ahead += turn.cost / turn.weight
        if line.last:
            pause = now - line.last
            line.pace += _NEWEST_WEIGHT * (pause - line.pace) if line.pace else pause
        line.last = now

    def remove_waiting(self, turn: QueueEntry) -> None:
        """Remove a request from its queue, if it still waits."""
        if turn.state == WAITING:
            turn.state = OVER
            turn.settled = True
            self._decrement_waiting(turn.line)

    def finish_entry(self, turn: QueueEntry) -> None:
        """Free the places of a request. Call ``start_next`` afterwards, and ``settle_entry`` once."""
        if turn.state != WORKING:
            return
        turn.state = OVER
        turn.claim.release()
        self.working -= 1
        turn.line.working -= 1

    def settle_entry(self, turn: QueueEntry, gpu_seconds: float) -> None:
        """Record that a request ``gpu_seconds`` so many GPU-seconds in total."""
        if turn.settled:
            return
        turn.settled = True
        line = turn.line
        line.unsettled -= 1
        line.mark += gpu_seconds / turn.weight
        line.ahead = line.ahead - turn.cost / turn.weight if line.unsettled else 0.0
        if len(self._lines) > _MAX_TENANTS:
            self._forget_idle_tenants()

    def _decrement_waiting(self, line: TenantQueue) -> None:
        line.waiting -= 1
        if not line.waiting:
            self._waiting.pop(line.tenant, None)

    def _forget_idle_tenants(self) -> None:
        """Evict tenants without requests that are not ahead: they are like new ones."""
        level = self._lowest_mark
        for tenant, line in list(self._lines.items()):
            if not line.waiting and not line.unsettled and line.mark <= level:
                del self._lines[tenant]


def _queue_mark(line: TenantQueue) -> float:
    return line.mark


def _expected_mark(line: TenantQueue) -> float:
    return line.mark + line.ahead


class ModelQueue(NamedTuple):
    """Queue of requests to one combination of ``models``."""

    models: tuple[str, ...]
    fair: FairQueue


def watch_queues(queues: Callable[[], Iterable[ModelQueue]]) -> None:
    """Register ``queues`` as the source of the gauges of admission."""
    TENANTS.waiting.set_values(lambda: _by_model((queue.models, queue.fair.waiting) for queue in queues()))
    TENANTS.working.set_values(lambda: _by_model((queue.models, queue.fair.working) for queue in queues()))


def count_refused(tenant: str, reason: str, *models: str) -> None:
    """Count a rejected request of ``tenant`` to ``models``."""
    TENANTS.refusal_counter(tenant, reason).inc()
    for model in models:
        GATEWAY.rejection_counter(model, reason).inc()


def observe_wait(seconds: float, models: Iterable[str]) -> None:
    """Record the seconds that a request to ``models`` waited."""
    for model in models:
        TENANTS.wait_histogram(model).observe(seconds)


def count_gpu_seconds(tenant: str, seconds: float) -> None:
    """Count the GPU-seconds of an ended request of ``tenant``."""
    TENANTS.gpu_seconds(tenant).inc(seconds)


def _by_model(counts: Iterable[tuple[tuple[str, ...], int]]) -> Counter[tuple[str, ...]]:
    totals: Counter[tuple[str, ...]] = Counter()
    for models, count in counts:
        for model in models:
            totals[model,] += count
    return totals
