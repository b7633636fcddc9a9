"""Clock of a job: when its engine began with it, and its part of the seconds that the engine has computed.

A job waits in the queue of its engine's batches. What queues it takes the job's clock from ``current_clock``, and calls
``set_now`` when the first batch that it is in begins. What an engine computes is charged to the jobs that
``charged_jobs`` names: in a job's own task that job, inside of ``charge_jobs`` the members of a batch by their weights.
So the seconds of all jobs together are those that their engine was busy.

A step of a language model takes about as long for one sequence as for eight. What a sequence costs would depend on who
happens to be there, and could not be known before. Work of a ``kind`` is therefore charged what a unit of its weights
has taken lately; what that is too much or too little is kept within a small part of all seconds, and evened out.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import exp
from typing import NamedTuple

from omnibus.executor.tenant_order import NO_TENANT, TenantShare

#: Seconds of computing over which the price of a unit is a mean.
AVERAGE_SECONDS = 10.0
#: Part of all seconds that charges by means may be ahead of them, or behind.
MAX_BALANCE_PART = 0.005


class JobClock:
    """Times of one job, and the ``tenant`` that it is for. ``began`` is in Unix seconds, 0 until its engine began.
    ``seconds`` are those of the engine that fall to it. Once it is ``closed`` it was reported, and nothing is charged
    to it any more.
    """

    __slots__ = ("began", "closed", "seconds", "tenant")

    def __init__(self, tenant: TenantShare = NO_TENANT) -> None:
        self.tenant = tenant
        self.began = 0.0
        self.seconds = 0.0
        self.closed = False

    def set_now(self) -> None:
        """Its engine begins now. Only the first time counts."""
        if not self.began:
            self.began = time.time()


#: A job that takes part in a computation, and its weight in it.
Share = tuple[JobClock, float]


class ChargedJobs(NamedTuple):
    """Jobs that a computation is charged to, and the ``kind`` of work, where a unit of weight costs what it does in the
    mean; None: it is charged as it was.
    """

    shares: Sequence[Share] = ()
    kind: object = None


_jobs: ContextVar[ChargedJobs] = ContextVar("omnibus-charged-jobs", default=ChargedJobs())  # noqa: B039 - immutable


def set_current_clock(clock: JobClock) -> None:
    """Assign what the current task queues and computes from here on to the job of ``clock``."""
    _jobs.set(ChargedJobs(((clock, 1.0),)))


def current_clock() -> JobClock:
    """The clock of the job in whose task this is called; where there is none, one that nobody reads."""
    shares = _jobs.get().shares
    return shares[0][0] if shares else JobClock()


def charged_jobs() -> ChargedJobs:
    """The jobs that a computation of the current task is charged to."""
    return _jobs.get()


@contextmanager
def charge_jobs(shares: Sequence[Share], kind: object = None) -> Iterator[None]:
    """Charge what is computed inside of the block to the jobs of ``shares``; see ``ChargedJobs``."""
    token = _jobs.set(ChargedJobs(shares, kind))
    try:
        yield
    finally:
        _jobs.reset(token)


class ComputeBill:
    """Divides the seconds of one engine among its jobs; for one thread at a time.

    What falls to nobody, as the step that an engine is ahead of an answer's end, is charged with what comes next.
    """

    __slots__ = ("_balance", "_means", "_total", "_unpaid")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: what was computed so far was for nobody."""
        self._unpaid = 0.0  # seconds of nobody
        self._balance = 0.0  # seconds that charges by means are behind
        self._total = 0.0
        self._means: dict[object, list[float]] = {}  # seconds and units by kind, older ones with less weight

    def add_seconds(self, seconds: float, shares: Sequence[Share], kind: object = None) -> None:
        """Charge ``seconds`` of the engine to those of ``shares`` whose jobs were not reported yet."""
        owed = seconds + self._unpaid
        self._total += seconds
        whole = sum([weight for clock, weight in shares if not clock.closed])
        if not whole > 0:
            self._unpaid = owed
            return
        self._unpaid = 0.0
        charged = owed if kind is None else self._average_seconds(kind, owed, whole)
        for clock, weight in shares:
            if not clock.closed:
                clock.seconds += charged * weight / whole

    def _average_seconds(self, kind: object, seconds: float, units: float) -> float:
        """Return what so many ``units`` cost in the mean, and a part of what is owed of earlier ones."""
        mean = self._means.setdefault(kind, [0.0, 0.0])
        kept = exp(-seconds / AVERAGE_SECONDS)
        mean[:] = mean[0] * kept + seconds, mean[1] * kept + units
        expected = units * mean[0] / mean[1] + self._balance * (1.0 - kept)
        owed, most = seconds + self._balance, MAX_BALANCE_PART * self._total
        charged = max(0.0, owed - most, min(expected, owed + most))
        self._balance = owed - charged
        return charged
