"""Time at which an engine begins with a job: recorded inside of the engine, without the runner knowing of it.

A job waits in the queue of its engine's batches. What queues it gets its moment from ``current_moment``, and
calls ``set_now`` when the first batch that it is in begins.
"""

import time
from contextvars import ContextVar


class Moment:
    """A moment in Unix seconds, 0 until it came. Only the first counts."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0

    def set_now(self) -> None:
        if not self.at:
            self.at = time.time()


_job: ContextVar[Moment] = ContextVar("omnibus-job-began")


def set_current_moment(moment: Moment) -> None:
    """Assign what the current task queues from here on to the job of ``moment``."""
    _job.set(moment)


def current_moment() -> Moment:
    """The moment of the job in whose task this is called; where there is none, one that nobody reads."""
    return _job.get(None) or Moment()
