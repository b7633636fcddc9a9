"""Tenants that share one machine, in simulated time. No result depends on this computer's speed."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from itertools import count
from typing import NamedTuple

from omnibus.errors import Overloaded
from omnibus_gateway.tenancy.fair_queue import WAITING, FairQueue, QueueEntry

SLOTS = 8
QUEUE = 64


class CountedClaim:
    """A place at the executor of ``queue``, which has ``slots`` of them."""

    pools = ("executor",)

    def __init__(self, queue: "CountedQueue", slots: int) -> None:
        self._queue = queue
        self._slots = slots

    def take(self, claimed: Collection[Hashable]) -> bool:
        return not claimed and self._queue.working < self._slots

    def release(self) -> None:
        """Do nothing; the queue does the counting."""


class CountedQueue(FairQueue):
    """A queue for one executor; a request's cost is known at its end."""

    def add(self, tenant: str, weight: float, cost: float, slots: int, *, patient: bool = False) -> QueueEntry:
        return self.enqueue(tenant, weight, cost, CountedClaim(self, slots), patient=patient)

    def finish_turn(self, turn: QueueEntry, gpu_seconds: float) -> None:
        self.finish_entry(turn)
        self.settle_entry(turn, gpu_seconds)


class Ask(NamedTuple):
    """A request: arrival time, tenant, and expected and actual cost in GPU-seconds."""

    at: float
    tenant: str
    expected: float
    costs: float


class CrowdResults(NamedTuple):
    """Results: seconds from arrival to end by tenant, GPU-seconds received by tenant, and rejections."""

    took: dict[str, list[float]]
    given: dict[str, float]
    refused: dict[str, int]


def make_even_asks(
    tenant: str, rate: float, seconds: float, costs: float = 0.1, expected_cost: float = 0.0
) -> list[Ask]:
    """Return ``rate`` requests per second at even intervals."""
    return [Ask(number / rate, tenant, expected_cost or costs, costs) for number in range(int(rate * seconds))]


def play_crowd(
    asks: Iterable[Ask],
    weights: Mapping[str, float] | None = None,
    slots: int = SLOTS,
    queue: int = QUEUE,
    fair: CountedQueue | None = None,
    until: float = float("inf"),
    each: Callable[[FairQueue], None] = lambda _: None,
) -> CrowdResults:
    """Simulate a machine that serves ``slots`` requests at once. Each runs at 1/``slots`` of one GPU's speed.

    ``each`` is called with the queue after every event. ``given`` counts up to second ``until``.
    """
    fair = fair or CountedQueue(queue)
    weights = weights or {}
    order = count()
    events: list[tuple[float, int, Ask | None, QueueEntry | None]] = [(ask.at, next(order), ask, None) for ask in asks]
    heapq.heapify(events)
    came: dict[int, Ask] = {}
    results = CrowdResults(defaultdict(list), defaultdict(float), defaultdict(int))
    while events:
        now, _, ask, turn = heapq.heappop(events)
        if ask is not None:
            try:
                turn = fair.add(ask.tenant, weights.get(ask.tenant, 1.0), ask.expected, slots)
                came[id(turn)] = ask
            except Overloaded:
                results.refused[ask.tenant] += 1
                continue
        else:
            assert turn is not None
            own = came.pop(id(turn))
            fair.finish_turn(turn, own.costs)
            results.took[own.tenant].append(now - own.at)
            if now <= until:
                results.given[own.tenant] += own.costs
        while (started_turn := fair.start_next(now)) is not None:
            heapq.heappush(events, (now + came[id(started_turn)].costs * slots, next(order), None, started_turn))
        each(fair)
    return results


def find_p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def is_waiting(turn: QueueEntry) -> bool:
    return turn.state == WAITING
