"""Overloaded executors and gateways, in simulated time. No result depends on this computer's speed."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle

from omnibus.errors import Overloaded
from omnibus_gateway.routing.draining import DrainRate, check_queue_time


@dataclass
class OverloadRequest:
    """One request to ``gateway`` that arrived at ``came``, in seconds."""

    name: str
    gateway: int
    came: float
    began: float = 0.0


@dataclass
class OverloadExecutor:
    """An executor of up to ``slots`` requests; with ``in_step`` they begin and end together.

    ``seconds`` gives the time of one request by the number running.
    """

    slots: int
    seconds: Callable[[int], float]
    in_step: bool = False
    waiting: list[OverloadRequest] = field(default_factory=list)
    serving: list[OverloadRequest] = field(default_factory=list)

    @property
    def capacity(self) -> float:
        """Requests per second with all slots full."""
        return self.slots / self.seconds(self.slots)


@dataclass
class OverloadOutcome:
    """Results of the requests that arrived after the warm-up."""

    served: list[tuple[float, float]] = field(default_factory=list)  # arrival, and seconds taken
    refused: int = 0
    ended: list[float] = field(default_factory=list)
    promises: list[tuple[float, float]] = field(default_factory=list)  # time of rejection, and Retry-After
    open_at: list[float] = field(default_factory=list)  # times at which there was room again


class OverloadSimulation:
    """Requests to one executor from gateways that see only their own."""

    def __init__(
        self, executor: OverloadExecutor, deadline: float, gateways: int = 1, queue_seconds: float = 0.0
    ) -> None:
        self.now = 0.0
        self.executor = executor
        self.deadline = deadline
        self.queue_seconds = queue_seconds
        self.drains = [DrainRate(lambda: self.now, executor.slots) for _ in range(gateways)]
        self.outcome = OverloadOutcome()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._room = True

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), do))

    def run(self, until: float = float("inf")) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
            self._note_room()

    def load(self, rate: float, begin: float, seconds: float, seed: int = 0) -> None:
        """Add requests at random times, ``rate`` a second, over all gateways."""
        chance, when, turns = random.Random(seed), begin, cycle(range(len(self.drains)))
        while (when := when + chance.expovariate(rate)) < begin + seconds:
            self.at(when, partial(self.come, next(turns)))

    def one_by_one(self, times: int) -> None:
        """Run ``times`` requests, each after the previous one."""
        for _ in range(times):
            self.come(next(self._order) % len(self.drains))
            self.run()

    def come(self, gateway: int) -> None:
        drain = self.drains[gateway]
        try:
            check_queue_time([drain], self.deadline, self.queue_seconds)
        except Overloaded as error:
            self.outcome.refused += 1
            self.outcome.promises.append((self.now, error.retry_after))
            return
        request = OverloadRequest(f"r-{next(self._order)}", gateway, self.now)
        drain.add_invocation(request.name)
        self.executor.waiting.append(request)
        self._serve()

    def _serve(self) -> None:
        executor = self.executor
        if executor.in_step and executor.serving:
            return
        starting_requests = executor.waiting[: executor.slots - len(executor.serving)]
        del executor.waiting[: len(starting_requests)]
        executor.serving += starting_requests
        for request in starting_requests:
            request.began = self.now
            self.at(self.now + executor.seconds(len(executor.serving)), partial(self._end, request))

    def _end(self, request: OverloadRequest) -> None:
        self.executor.serving.remove(request)
        self.drains[request.gateway].finish_invocation(request.name, self.now - request.began)
        took = self.now - request.came
        self.outcome.served.append((request.came, took))
        self.outcome.ended.append(self.now)
        self._serve()

    def took(self, since: float = 0.0) -> list[float]:
        """Return the durations of requests that arrived after ``since``."""
        return [took for came, took in self.outcome.served if came >= since]

    def late(self, since: float = 0.0) -> int:
        """Return the number of those that missed their deadline."""
        return sum(took > self.deadline for took in self.took(since))

    def _note_room(self) -> None:
        try:
            check_queue_time([self.drains[0]], self.deadline, self.queue_seconds)
        except Overloaded:
            self._room = False
            return
        if not self._room:
            self.outcome.open_at.append(self.now)
        self._room = True


def compute_percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]
