"""Compute time of an engine, as ``Runner.busy`` reports it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import ParamSpec, TypeVar

from omnibus.executor.job_clock import JobClock, current_clock

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Calls functions and adds up their seconds; use it in one thread at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        began = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += perf_counter() - began


class OccupancyTimer:
    """Counts the seconds with jobs in an engine, and charges them equally.

    For engines that batch internally and do not report which job a second was for.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._inside = 0
        self._since = 0.0
        self._seconds = 0.0
        self._each = 0.0  # seconds charged to a job that was inside all the time

    @property
    def seconds(self) -> float:
        """Seconds so far, including those of the jobs that are inside now."""
        return self._seconds + (self._now() - self._since if self._inside else 0.0)

    def __call__(self) -> "JobOccupancy":
        """Count the current job as inside, until the block ends."""
        return JobOccupancy(self)

    def enter(self) -> float:
        """Count one more job as inside; returns the argument of ``leave``."""
        self._advance()
        self._inside += 1
        return self._each

    def leave(self, before: float) -> float:
        """Count one job less; returns the seconds charged to it."""
        self._advance()
        self._inside -= 1
        return self._each - before

    def _advance(self) -> None:
        now = self._now()
        if self._inside:
            duration = now - self._since
            self._seconds += duration
            self._each += duration / self._inside
        self._since = now


class JobOccupancy:
    """One job inside of an engine, whose time ``timer`` counts.

    Time in which the job's own task waits is not counted. Waits of the job's other tasks are counted, as the job may
    still compute.
    """

    __slots__ = ("_before", "_clock", "_is_inside", "_task", "_timer")

    def __init__(self, timer: OccupancyTimer) -> None:
        self._timer = timer
        self._clock = JobClock()
        self._task: asyncio.Task[object] | None = None
        self._is_inside = False
        self._before = 0.0

    def __enter__(self) -> None:
        self._clock, self._task = current_clock(), _current_task()
        self._enter()

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _enter(self) -> None:
        self._before, self._is_inside = self._timer.enter(), True

    def _leave(self) -> None:
        self._is_inside = False
        self._clock.seconds += self._timer.leave(self._before)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop counting in the block while the job waits for other nodes."""
        if not self._is_inside or _current_task() is not self._task:
            yield
            return
        self._leave()
        try:
            yield
        finally:
            self._enter()


def _current_task() -> asyncio.Task[object] | None:
    with suppress(RuntimeError):  # no event loop runs
        return asyncio.current_task()
    return None
