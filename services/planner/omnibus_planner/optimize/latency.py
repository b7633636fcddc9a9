"""Waiting times, and the 99th percentile of a sum of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import gammaincc

from omnibus_planner.simulate.links import PULLS_AT_ONCE

#: Utilisation from which a waiting time cannot be estimated.
SATURATED_FRACTION = 0.995
#: Bisections: enough for a relative error of 1e-9.
_MAX_BISECTIONS = 60


class Wait(NamedTuple):
    """Waiting in a queue: the fraction ``part`` of requests that wait, mean and variance of their seconds."""

    part: float
    seconds: float
    variance: float

    @property
    def mean(self) -> float:
        """Mean seconds over all requests."""
        return self.part * self.seconds if self.part else 0.0


#: No waiting at all.
NO_WAIT = Wait(0.0, 0.0, 0.0)


class LatencyCase(NamedTuple):
    """Requests with the same latency distribution.

    Contains their rate, the seconds that are fixed, and mean and variance of the seconds that vary.
    """

    rate: float
    fixed: float
    mean: float
    variance: float

    def split_waiting(self, wait: Wait) -> "list[LatencyCase]":
        """Return the requests that wait, and the others."""
        if not wait.part:
            return [self]
        waiting = self._replace(
            rate=self.rate * wait.part, mean=self.mean + wait.seconds, variance=self.variance + wait.variance
        )
        return [waiting, self._replace(rate=self.rate * (1 - wait.part))]

    def split_part(self, part: float, fixed: float) -> "tuple[LatencyCase, LatencyCase]":
        """Divide into the fraction ``part`` with ``fixed`` more seconds, and the rest."""
        return (
            self._replace(rate=self.rate * part, fixed=self.fixed + fixed),
            self._replace(rate=self.rate * (1 - part)),
        )


def queue_wait(seconds: float, replicas: int, busy: float) -> Wait:
    """Return the wait for one of ``replicas`` with utilisation ``busy``.

    Sakasegawa's approximation for one queue, Poisson arrivals and service times with a coefficient of variation of 1.
    The wait is infinite at full utilisation.
    """
    if busy >= SATURATED_FRACTION or replicas < 1:
        return Wait(1.0, math.inf, math.inf)
    part, each = float(busy ** (math.sqrt(2 * (replicas + 1)) - 1)), seconds / (replicas * (1 - busy))
    return Wait(part, each, each**2)


def link_wait(busy: float, mean: float, squares: float, cubes: float) -> Wait:
    """Return the delay of a transfer by others on a shared link.

    ``busy`` is the utilisation of the link. Transfers arrive at random times, and up to ``PULLS_AT_ONCE`` share the
    link equally. ``mean``, ``squares`` and ``cubes`` are the means of their seconds alone, and of the squares and cubes
    of these. The result lies between transfers in sequence (Pollaczek-Khinchine) and sharing without a limit (Yashkov's
    variance, with exponential waiting times). Means are weighted as by Avi-Itzhak and Halfin, second moments so that
    they match simulations.
    """
    if busy >= SATURATED_FRACTION:
        return Wait(1.0, math.inf, math.inf)
    if not busy * mean:
        return NO_WAIT
    queued, shared = _queued_transfers(busy, mean, squares, cubes), _shared_transfers(busy, mean, squares)
    limits = busy ** (PULLS_AT_ONCE - 1), busy ** ((PULLS_AT_ONCE - 1) / 2)
    whole, second = (part * one + (1 - part) * other for part, one, other in zip(limits, queued, shared, strict=True))
    part = 1 - (1 - busy) * math.exp(-busy)  # the others found the link free, and no transfer joined them
    return Wait(part, whole / part, max(0.0, second / part - (whole / part) ** 2))


def _queued_transfers(busy: float, mean: float, squares: float, cubes: float) -> tuple[float, float]:
    """Return mean and second moment of the delay of transfers in sequence."""
    whole = busy / (1 - busy) * squares / mean / 2
    return whole, 2 * whole**2 + busy / (1 - busy) * cubes / mean / 3


def _shared_transfers(busy: float, mean: float, squares: float) -> tuple[float, float]:
    """Return mean and second moment of the delay of simultaneous transfers."""
    factor = busy / (1 - busy)
    rate = 2 * (1 - busy) * mean / squares  # at which waiting times of a queue end
    variance = 2 * busy / (1 - busy) ** 2 * (mean / rate + math.expm1(-rate * mean) / rate**2)
    return factor * mean, factor**2 * squares + variance


def percentile_seconds(cases: Sequence[LatencyCase], part: float = 0.99) -> float:
    """Return the seconds within which ``part`` of all requests complete; infinite if some wait forever.

    The seconds that vary count as gamma distributed, which holds for exponential times with one mean.
    """
    cases = [case for case in cases if case.rate > 0]
    total = sum(case.rate for case in cases)
    if not cases or not all(math.isfinite(each) for case in cases for each in case):
        return math.inf
    low = 0.0
    high = max(case.fixed + case.mean + 20 * math.sqrt(case.variance) for case in cases)
    for _ in range(_MAX_BISECTIONS):
        middle = (low + high) / 2
        late = sum(case.rate * _later_part(case, middle) for case in cases)
        low, high = (middle, high) if late > (1 - part) * total else (low, middle)
    return high


def _later_part(case: LatencyCase, seconds: float) -> float:
    """Return the fraction of the requests of ``case`` that take longer."""
    left, mean, variance = seconds - case.fixed, case.mean, case.variance
    if left < 0:
        return 1.0
    if variance <= 0 or mean <= 0:
        return 1.0 if left < mean else 0.0
    return float(gammaincc(mean**2 / variance, left * mean / variance))
