"""A planned path over two nodes in virtual time: devices of the ``sim`` engine, and links that pulls share.

Requests arrive at random times, or each one when another ends. Seconds of a stop vary with a coefficient of variation
of 1. Like a gateway, the path takes the executor with the least outstanding work. It prefers one on the node of the
bytes with no more than that and half a mean request (``OMNIBUS_GATEWAY_NEAR``).
"""

import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from omnibus.executor.sim.device import Device, DeviceTurn, SimWork
from omnibus.executor.sim.distributions import Curve
from omnibus_planner.optimize.links import PULL_SECONDS
from omnibus_planner.simulate.agenda import Agenda
from omnibus_planner.simulate.links import Links, NodeNetwork

#: Seconds of a token; a request's work is drawn in tokens.
_TOKEN = 1e-4
#: Additional work, in mean requests, allowed for an executor near the bytes.
_NEAR = 0.5


class SimulatedNodeExecutor:
    """One replica on a node: a device that serves one request at a time."""

    def __init__(self, agenda: Agenda, node: str) -> None:
        self.node = node
        self.outstanding = 0
        self._agenda = agenda
        self._busy = False
        self._device = Device(1.0)
        self._lane = self._device.add_lane(Curve(per_token=_TOKEN), None, 1, 0)

    def put(self, work: SimWork, at: float) -> None:
        self._lane.queue_work(work, at)
        self._start_next(at)

    def _start_next(self, at: float) -> None:
        if self._busy or (turn := self._device.next_turn(at)) is None:
            return
        self._busy = True
        self._agenda.add(at + turn.seconds, partial(self._end_turn, turn))

    def _end_turn(self, turn: DeviceTurn, at: float) -> None:
        self._device.finish_turn(turn, at, len(turn.ends))
        self._busy = False
        self._start_next(at)


class Stop(NamedTuple):
    """An option on the path: its replicas by node, mean seconds, and GB received from the previous stop."""

    places: Mapping[str, int]
    seconds: float
    gb: float = 0.0


class SimulatedPath:
    """``stops`` in sequence, on nodes with links of ``gb_s``."""

    def __init__(self, stops: Sequence[Stop], gb_s: float, seed: int = 1) -> None:
        self._stops = stops
        self._dice = random.Random(seed)
        self._agenda = Agenda()
        self._pools = [
            [SimulatedNodeExecutor(self._agenda, node) for node, count in stop.places.items() for _ in range(count)]
            for stop in stops
        ]
        self._network = NodeNetwork(self._agenda, Links(PULL_SECONDS, lambda start, end: gb_s))
        self._left = 0
        self.latencies: list[float] = []
        self.crossed = 0
        self._ends: list[float] = []

    def run_open(self, rate: float, requests: int) -> None:
        """Run requests at random times."""
        at = 0.0
        for _ in range(requests):
            at += self._dice.expovariate(rate)
            self._agenda.add(at, partial(self._visit, 0, at, ""))
        self._agenda.run_until(math.inf)

    def run_closed(self, inflight: int, requests: int) -> float:
        """Keep ``inflight`` requests running and return req/s after the first quarter."""
        self._left = requests - inflight
        for _ in range(inflight):
            self._agenda.add(0.0, partial(self._visit, 0, 0.0, ""))
        self._agenda.run_until(math.inf)
        first, last = requests // 4, requests - inflight
        return (last - first) / (self._ends[last] - self._ends[first])

    def _visit(self, number: int, came: float, node: str, at: float) -> None:
        """Visit stop ``number`` with bytes on ``node``."""
        if number == len(self._stops):
            self._finish(came, at)
            return
        pool, stop = self._pools[number], self._stops[number]
        tokens = max(1, round(self._dice.expovariate(_TOKEN / stop.seconds)))
        least = min(pool, key=lambda each: each.outstanding)
        bound = least.outstanding + _NEAR * stop.seconds / _TOKEN
        near = [each for each in pool if each.node == node and each.outstanding <= bound]
        there = min(near, key=lambda each: each.outstanding) if near else least
        there.outstanding += tokens
        begin = partial(self._begin, number, came, there, tokens)
        if node and there.node != node and stop.gb:
            self.crossed += 1
            self._network.send(node, there.node, stop.gb, at, begin)
        else:
            self._agenda.add(at, begin)

    def _begin(self, number: int, came: float, there: SimulatedNodeExecutor, tokens: int, at: float) -> None:
        there.put(SimWork(tokens, told=partial(self._leave, number, came, there, tokens)), at)

    def _leave(self, number: int, came: float, there: SimulatedNodeExecutor, tokens: int, at: float) -> None:
        there.outstanding -= tokens
        self._visit(number + 1, came, there.node, at)

    def _finish(self, came: float, at: float) -> None:
        self.latencies.append(at - came)
        self._ends.append(at)
        if self._left > 0:
            self._left -= 1
            self._agenda.add(at, partial(self._visit, 0, at, ""))


def find_percentile(values: Sequence[float], part: float) -> float:
    sorted_values = sorted(values)
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))]
