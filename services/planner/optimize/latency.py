"""Waiting times, and the 99th percentile of a sum of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import gammaincc

from services.planner.simulate.links import PULLS_AT_ONCE

#: The part of its time from which what serves has no waiting time that can be told.
SATURATED_FRACTION = 0.995
#: Bisections: enough for a relative error of 1e-9.
_MAX_BISECTIONS = 60


class Wait(NamedTuple):
    """Waiting in a queue: the ``part`` of the requests that waits, and mean and variance of the seconds of those."""

    part: float
    seconds: float
    variance: float

    @property
    def mean(self) -> float:
        """Mean seconds of all requests."""
        return self.part * self.seconds if self.part else 0.0


#: What nobody waits for.
NO_WAIT = Wait(0.0, 0.0, 0.0)


class LatencyCase(NamedTuple):
    """Requests with the same latency: their rate, seconds that all of them take, mean and variance of what varies."""

    rate: float
    fixed: float
    mean: float
    variance: float

    def split_waiting(self, wait: Wait) -> "list[LatencyCase]":
        """The requests that wait, and those that do not."""
        if not wait.part:
            return [self]
        waiting = self._replace(
            rate=self.rate * wait.part, mean=self.mean + wait.seconds, variance=self.variance + wait.variance
        )
        return [waiting, self._replace(rate=self.rate * (1 - wait.part))]

    def split_part(self, part: float, fixed: float) -> "tuple[LatencyCase, LatencyCase]":
        """The ``part`` of the requests that takes ``fixed`` seconds more, and the others."""
        return (
            self._replace(rate=self.rate * part, fixed=self.fixed + fixed),
            self._replace(rate=self.rate * (1 - part)),
        )


def queue_wait(seconds: float, replicas: int, busy: float) -> Wait:
    """Waiting for one of ``replicas`` that are ``busy`` for this part of their time with ``seconds`` per request.

    Sakasegawa's approximation for one queue, Poisson arrivals and service times with a coefficient of
    variation of 1; infinite when they are busy all of the time.
    """
    if busy >= SATURATED_FRACTION or replicas < 1:
        return Wait(1.0, math.inf, math.inf)
    part, each = float(busy ** (math.sqrt(2 * (replicas + 1)) - 1)), seconds / (replicas * (1 - busy))
    return Wait(part, each, each**2)


def link_wait(busy: float, mean: float, squares: float, cubes: float) -> Wait:
    """Seconds by which others delay a transfer over a link that is ``busy`` for this part of its time.

    Transfers come at random times, and up to ``PULLS_AT_ONCE`` share the link equally; ``mean``, ``squares`` and
    ``cubes`` are the means of their seconds alone, their squares and cubes. Between one transfer after the other
    (Pollaczek-Khinchine) and sharing without a limit (Yashkov's variance, with exponential waiting times in it): means
    weigh as Avi-Itzhak and Halfin have it, second moments as simulated ones do.
    """
    if busy >= SATURATED_FRACTION:
        return Wait(1.0, math.inf, math.inf)
    if not busy * mean:
        return NO_WAIT
    queued, shared = _queued_transfers(busy, mean, squares, cubes), _shared_transfers(busy, mean, squares)
    limits = busy ** (PULLS_AT_ONCE - 1), busy ** ((PULLS_AT_ONCE - 1) / 2)
    whole, second = (part * one + (1 - part) * other for part, one, other in zip(limits, queued, shared, strict=True))
    part = 1 - (1 - busy) * math.exp(-busy)  # of the others the link was free, and nobody came meanwhile
    return Wait(part, whole / part, max(0.0, second / part - (whole / part) ** 2))


def _queued_transfers(busy: float, mean: float, squares: float, cubes: float) -> tuple[float, float]:
    """Mean and second moment of the delay where one transfer follows the other."""
    whole = busy / (1 - busy) * squares / mean / 2
    return whole, 2 * whole**2 + busy / (1 - busy) * cubes / mean / 3


def _shared_transfers(busy: float, mean: float, squares: float) -> tuple[float, float]:
    """The same where all transfers share the link from the beginning."""
    factor = busy / (1 - busy)
    rate = 2 * (1 - busy) * mean / squares  # at which waiting times of a queue end
    variance = 2 * busy / (1 - busy) ** 2 * (mean / rate + math.expm1(-rate * mean) / rate**2)
    return factor * mean, factor**2 * squares + variance


def percentile_seconds(cases: Sequence[LatencyCase], part: float = 0.99) -> float:
    """Seconds within which ``part`` of all requests are done; infinite when some wait without end.

    What varies is taken as gamma distributed, which it is for exponential times of one mean.
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
    """The part of the requests of ``case`` that takes longer."""
    left, mean, variance = seconds - case.fixed, case.mean, case.variance
    if left < 0:
        return 1.0
    if variance <= 0 or mean <= 0:
        return 1.0 if left < mean else 0.0
    return float(gammaincc(mean**2 / variance, left * mean / variance))
