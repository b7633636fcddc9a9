"""Waiting times, and the 99th percentile of a sum of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import gammaincc

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
    """Waiting for a link that is ``busy`` for this part of its time, one transfer after the other, at random times.

    ``mean``, ``squares`` and ``cubes`` are the means of seconds, their squares and cubes (Pollaczek-Khinchine).
    """
    if busy >= SATURATED_FRACTION:
        return Wait(1.0, math.inf, math.inf)
    if not busy * mean:
        return NO_WAIT
    whole = busy / (1 - busy) * squares / mean / 2
    second = 2 * whole**2 + busy / (1 - busy) * cubes / mean / 3
    return Wait(busy, whole / busy, max(0.0, second / busy - (whole / busy) ** 2))


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
