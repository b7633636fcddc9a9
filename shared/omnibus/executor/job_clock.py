"""Clock of a job: the start of its engine's work, and its share of the engine's seconds.

A job waits in the queue of its engine's batches. The engine takes the job's clock from ``current_clock`` when it queues
the job, and calls ``set_now`` when the job's first batch starts. Computed seconds are charged to the jobs that
``charged_jobs`` returns. In a job's own task that is the job; inside of ``charge_jobs`` it is the members of a batch,
by their weights. So the seconds of all jobs add up to those that their engine was busy.

A step of a language model takes about as long for one sequence as for eight. The cost of a sequence would depend on the
other sequences in its batch, and would be unpredictable. Work of a ``kind`` is therefore charged the recent mean per
unit of weight. The difference to the measured seconds stays within a small part of all seconds, and is evened out.

Compute time of an engine, as ``Runner.busy`` reports it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import exp
from time import perf_counter
from typing import NamedTuple, ParamSpec, TypeVar

from omnibus.executor.tenant_order import NO_TENANT, TenantShare

#: Seconds of computing over which the price of a unit is averaged.
AVERAGE_SECONDS = 10.0
#: Most that charges by means may differ from the measured seconds, as a part of all seconds.
MAX_BALANCE_PART = 0.005


class JobClock:
    """Times of one job, and its ``tenant``.

    ``began`` is in Unix seconds, 0 until the engine starts on the job. ``seconds`` is its share of the engine's
    seconds. A ``closed`` clock was reported: nothing more is charged to it. ``continues`` is true if another job of
    this executor reads a result of the job. ``came`` is its arrival, as of ``time.monotonic``.
    """

    __slots__ = ("began", "came", "closed", "continues", "seconds", "tenant")

    def __init__(self, tenant: TenantShare = NO_TENANT) -> None:
        self.tenant = tenant
        self.began = 0.0
        self.came = time.monotonic()
        self.seconds = 0.0
        self.closed = False
        self.continues = False

    def set_now(self) -> None:
        """Record that the engine starts on the job now; later calls have no effect."""
        if not self.began:
            self.began = time.time()


#: A job that takes part in a computation, and its weight in the computation.
Share = tuple[JobClock, float]


class ChargedJobs(NamedTuple):
    """Jobs that a computation is charged to, and the ``kind`` of work.

    A unit of weight of a kind costs its recent mean; with None, it costs the measured seconds.
    """

    shares: Sequence[Share] = ()
    kind: object = None


_jobs: ContextVar[ChargedJobs] = ContextVar("omnibus-charged-jobs", default=ChargedJobs())  # noqa: B039 - immutable


def set_current_clock(clock: JobClock) -> None:
    """Charge the current task's further work to the job of ``clock``."""
    _jobs.set(ChargedJobs(((clock, 1.0),)))


def current_clock() -> JobClock:
    """Return the clock of the current task's job; an unused one if it has none."""
    shares = _jobs.get().shares
    return shares[0][0] if shares else JobClock()


def charged_jobs() -> ChargedJobs:
    """Return the jobs that the current task's computations are charged to."""
    return _jobs.get()


@contextmanager
def charge_jobs(shares: Sequence[Share], kind: object = None) -> Iterator[None]:
    """Charge computations inside of the block to the jobs of ``shares``; see ``ChargedJobs``."""
    token = _jobs.set(ChargedJobs(shares, kind))
    try:
        yield
    finally:
        _jobs.reset(token)


class ComputeBill:
    """Divides the seconds of one engine among its jobs; use it in one thread at a time.

    Seconds without a job, such as the step that an engine runs past the end of an answer, are charged with the next
    ones.
    """

    __slots__ = ("_balance", "_means", "_total", "_unpaid")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard the seconds computed so far, and start at zero."""
        self._unpaid = 0.0  # seconds without a job
        self._balance = 0.0  # measured seconds minus charged ones
        self._total = 0.0
        self._means: dict[object, list[float]] = {}  # seconds and units by kind, older ones with less weight

    def add_seconds(self, seconds: float, shares: Sequence[Share], kind: object = None) -> None:
        """Charge ``seconds`` of the engine to the open clocks of ``shares``."""
        due_seconds = seconds + self._unpaid
        self._total += seconds
        whole = sum([weight for clock, weight in shares if not clock.closed])
        if not whole > 0:
            self._unpaid = due_seconds
            return
        self._unpaid = 0.0
        cost = due_seconds if kind is None else self._average_seconds(kind, due_seconds, whole)
        for clock, weight in shares:
            if not clock.closed:
                clock.seconds += cost * weight / whole

    def _average_seconds(self, kind: object, seconds: float, units: float) -> float:
        """Return the mean cost of ``units``, plus a part of the balance."""
        mean = self._means.setdefault(kind, [0.0, 0.0])
        decay = exp(-seconds / AVERAGE_SECONDS)
        mean[:] = mean[0] * decay + seconds, mean[1] * decay + units
        estimate = units * mean[0] / mean[1] + self._balance * (1.0 - decay)
        due_seconds, most = seconds + self._balance, MAX_BALANCE_PART * self._total
        cost = max(0.0, due_seconds - most, min(estimate, due_seconds + most))
        self._balance = due_seconds - cost
        return cost


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
