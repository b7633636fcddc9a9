"""Clock of a job: when its engine began with it, and its part of the seconds that the engine has computed.

A job waits in the queue of its engine's batches. What queues it takes the job's clock from ``current_clock``, and calls
``set_now`` when the first batch that it is in begins. What an engine computes is charged to the jobs that
``current_shares`` names: in a job's own task that job, inside of ``charge`` the members of a batch by their weights. So
the seconds of all jobs together are those that their engine was busy.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar


class JobClock:
    """Times of one job. ``began`` is in Unix seconds, 0 until its engine began. ``seconds`` are those of the engine
    that fall to it. Once it is ``closed`` it was reported, and nothing is charged to it any more.
    """

    __slots__ = ("began", "closed", "seconds")

    def __init__(self) -> None:
        self.began = 0.0
        self.seconds = 0.0
        self.closed = False

    def set_now(self) -> None:
        """Its engine begins now. Only the first time counts."""
        if not self.began:
            self.began = time.time()


#: A job that takes part in a computation, and its weight in it.
Share = tuple[JobClock, float]

_shares: ContextVar[Sequence[Share]] = ContextVar("omnibus-job-shares", default=())


def set_current_clock(clock: JobClock) -> None:
    """Assign what the current task queues and computes from here on to the job of ``clock``."""
    _shares.set(((clock, 1.0),))


def current_clock() -> JobClock:
    """The clock of the job in whose task this is called; where there is none, one that nobody reads."""
    shares = _shares.get()
    return shares[0][0] if shares else JobClock()


def current_shares() -> Sequence[Share]:
    """The jobs that a computation of the current task is charged to."""
    return _shares.get()


@contextmanager
def charge_jobs(shares: Sequence[Share]) -> Iterator[None]:
    """Charge what is computed inside of the block to the jobs of ``shares``."""
    token = _shares.set(shares)
    try:
        yield
    finally:
        _shares.reset(token)


class ComputeBill:
    """Divides the seconds of one engine among its jobs; for one thread at a time.

    What falls to nobody, as the step that an engine is ahead of an answer's end, is charged with what comes next.
    """

    __slots__ = ("unpaid",)

    def __init__(self) -> None:
        self.unpaid = 0.0

    def add_seconds(self, seconds: float, shares: Sequence[Share]) -> None:
        """Charge ``seconds`` of the engine to those of ``shares`` whose jobs were not reported yet."""
        owed = seconds + self.unpaid
        whole = sum([weight for clock, weight in shares if not clock.closed])
        if not whole > 0:
            self.unpaid = owed
            return
        self.unpaid = 0.0
        for clock, weight in shares:
            if not clock.closed:
                clock.seconds += owed * weight / whole
