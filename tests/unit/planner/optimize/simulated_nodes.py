"""A planned path over two nodes in virtual time: devices of the ``sim`` engine, and links that are first in, first out.

Requests come at random times, or each one when another ends. Seconds of a stop vary with a coefficient of variation of
1. As gateways do, the executor with the least outstanding work is taken, or one on the node of the bytes that has
no more than that and half a mean request (``OMNIBUS_GATEWAY_NEAR``).
"""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from omnibus.executor.sim.device import Device, DeviceTurn, SimWork
from omnibus.executor.sim.distributions import Curve
from services.planner.lab.staged_cluster import StagedAgenda
from services.planner.optimize.links import PULL_SECONDS

#: Seconds of a token: what a request takes is drawn in tokens.
_TOKEN = 1e-4
#: Mean requests that an executor near the bytes may have to do beyond the least.
_NEAR = 0.5


class Executor:
    """One replica on a node: a device that serves one request at a time."""

    def __init__(self, agenda: StagedAgenda, node: str) -> None:
        self.node = node
        self.outstanding = 0
        self._agenda = agenda
        self._busy = False
        self._device = Device(1.0)
        self._lane = self._device.add_lane(Curve(per_token=_TOKEN), None, 1, 0)

    def put(self, work: SimWork, at: float) -> None:
        self._lane.queue_work(work, at)
        self._go(at)

    def _go(self, at: float) -> None:
        if self._busy or (turn := self._device.next_turn(at)) is None:
            return
        self._busy = True
        self._agenda.at(at + turn.seconds, partial(self._over, turn))

    def _over(self, turn: DeviceTurn, at: float) -> None:
        self._device.finish_turn(turn, at, len(turn.ends))
        self._busy = False
        self._go(at)


class Link:
    """From one node to another: one transfer after the other."""

    def __init__(self, gb_s: float) -> None:
        self._gb_s = gb_s
        self._free = 0.0

    def send(self, gb: float, at: float) -> float:
        """The time at which ``gb`` are on the other node."""
        self._free = max(self._free, at) + gb / self._gb_s
        return self._free + PULL_SECONDS


class Stop(NamedTuple):
    """An option on the path: its replicas by node, mean seconds, and GB that come from the stop before."""

    places: Mapping[str, int]
    seconds: float
    gb: float = 0.0


class SimulatedPath:
    """``stops`` one after the other, on nodes with links of ``gb_s``."""

    def __init__(self, stops: Sequence[Stop], gb_s: float, seed: int = 1) -> None:
        self._stops = stops
        self._dice = random.Random(seed)
        self._agenda = StagedAgenda()
        self._pools = [
            [Executor(self._agenda, node) for node, count in stop.places.items() for _ in range(count)]
            for stop in stops
        ]
        nodes = {executor.node for pool in self._pools for executor in pool}
        self._links = {(start, end): Link(gb_s) for start in nodes for end in nodes if start != end}
        self._left = 0
        self.latencies: list[float] = []
        self.crossed = 0
        self._ends: list[float] = []

    def run_open(self, rate: float, requests: int) -> None:
        """Requests at random times."""
        at = 0.0
        for _ in range(requests):
            at += self._dice.expovariate(rate)
            self._agenda.at(at, partial(self._visit, 0, at, ""))
        self._agenda.run()

    def run_closed(self, inflight: int, requests: int) -> float:
        """``inflight`` requests at all times; returns the req/s after the first quarter."""
        self._left = requests - inflight
        for _ in range(inflight):
            self._agenda.at(0.0, partial(self._visit, 0, 0.0, ""))
        self._agenda.run()
        first, last = requests // 4, requests - inflight
        return (last - first) / (self._ends[last] - self._ends[first])

    def _visit(self, number: int, came: float, node: str, at: float) -> None:
        """Go to stop ``number`` with bytes on ``node``."""
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
        if node and there.node != node and stop.gb:
            self.crossed += 1
            at = self._links[node, there.node].send(stop.gb, at)
        self._agenda.at(at, partial(self._begin, number, came, there, tokens))

    def _begin(self, number: int, came: float, there: Executor, tokens: int, at: float) -> None:
        there.put(SimWork(tokens, told=partial(self._leave, number, came, there, tokens)), at)

    def _leave(self, number: int, came: float, there: Executor, tokens: int, at: float) -> None:
        there.outstanding -= tokens
        self._visit(number + 1, came, there.node, at)

    def _finish(self, came: float, at: float) -> None:
        self.latencies.append(at - came)
        self._ends.append(at)
        if self._left > 0:
            self._left -= 1
            self._agenda.at(at, partial(self._visit, 0, at, ""))


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
