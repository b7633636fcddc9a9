"""Compute time of an engine, as ``Runner.busy`` reports it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import ParamSpec, TypeVar

from omnibus.executor.job_clock import current_clock

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Calls functions and adds up the seconds that they take; for one thread at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        began = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += perf_counter() - began


class OccupancyTimer:
    """Counts the seconds in which at least one job is inside, and charges them to the jobs inside in equal parts.

    For engines that batch by themselves, and do not say which job a second was for.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._inside = 0
        self._since = 0.0
        self._seconds = 0.0
        self._each = 0.0  # seconds that fell to one who was inside all the time

    @property
    def seconds(self) -> float:
        """Seconds so far, those of the jobs that are inside now included."""
        return self._seconds + (self._now() - self._since if self._inside else 0.0)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Count the current job as inside, until the block ends."""
        self._advance()
        self._inside += 1
        before = self._each
        try:
            yield
        finally:
            self._advance()
            self._inside -= 1
            current_clock().seconds += self._each - before

    def _advance(self) -> None:
        now = self._now()
        if self._inside:
            passed = now - self._since
            self._seconds += passed
            self._each += passed / self._inside
        self._since = now
