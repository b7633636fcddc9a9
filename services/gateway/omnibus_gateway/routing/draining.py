"""Prediction of a request's latency from the recent completions of each executor.

By Little's law the requests in a system are its throughput times the time that each spends there. Both are measured on
this gateway's invocations alone. The load of other gateways needs no message, because it shows as lower throughput. If
an executor batches, its throughput rises with its load, and so does the load that it may get.
"""

import math
import time
from collections.abc import Callable, Iterable
from operator import attrgetter

from omnibus.errors import Overloaded

#: Completions and service times that the means cover, whichever takes longer.
_WINDOW_COMPLETIONS, _WINDOW_SERVICE_TIMES = 12.0, 6.0
#: Completions before which a throughput is only an upper bound; the number served at once, if that is more.
_MIN_COMPLETIONS = 4.0
#: How many times its mean a request may take longer than predicted and still meet its deadline.
_DEADLINE_MARGIN = 1.25
#: Fraction of a service time that is one moment, and fraction of completions in one above which an executor batches.
_MOMENT_FRACTION, _BATCHED_FRACTION = 0.05, 0.3
#: Mean residences without a completion after which an executor counts as slower than measured.
_STALLED_RESIDENCES = 2.0
#: How many times slower than measured it may count for that alone: a machine that paused continues as before, and
#: heartbeats find an executor that hangs.
_MAX_SLOWDOWN = 4.0
#: Seconds after which the recent peak throughput counts for half, and its fraction that overrides a lower measurement:
#: a moment without completions, on a shared machine, is not a reason to reject.
_PEAK_HALF_LIFE_SECONDS, _PEAK_RATE_FRACTION = 5.0, 0.5
#: Service times without queueing after which an overload ends: fewer happen by chance during one.
_OVERLOAD_END_SERVICES = 2.0


class DrainRate:
    """Drain rate of one executor: this gateway's invocations there, and how fast they finish, in seconds."""

    __slots__ = (
        "_area",
        "_at",
        "_best",
        "_busy",
        "_clear_since",
        "_clock",
        "_done",
        "_lumps",
        "_pending_area",
        "_pending_busy",
        "_started",
        "measured",
        "overloaded",
        "residence",
        "service",
        "slots",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic, slots: int = 0) -> None:
        self.slots = slots  # invocations that it may batch; 0 if unknown
        self._clock = clock
        self._started: dict[str, float] = {}  # by invocation, oldest first
        self._at = clock()
        self._done = self._busy = self._area = 0.0  # completions, seconds with work, and the sum of residences in them
        self._pending_busy = self._pending_area = 0.0  # the same since the last completion
        #: Mean seconds that an engine computes for one; 0 until known.
        self.service = 0.0
        #: Mean seconds from sending to the end.
        self.residence = 0.0
        #: True once enough invocations finished to measure the throughput.
        self.measured = False
        self._best = (0.0, 0.0)  # the recent peak throughput, and its time
        #: True from a rejection until the queue has been empty for some time.
        self.overloaded = False
        self._clear_since: float | None = None  # in an overload: when the queue became empty
        self._lumps = 0.0  # fraction of completions in the same moment as the one before

    def add_invocation(self, invocation: str) -> None:
        """Add an invocation that was sent here."""
        self._advance_clock()
        self._started[invocation] = self._at
        if self.overloaded:
            self._note_waiting()

    def drop_invocation(self, invocation: str) -> None:
        """Remove an invocation that did not finish; its time is not measured, as its remaining work is unknown."""
        self._advance_clock()
        present = len(self._started)
        if self._started.pop(invocation, None) is not None:
            self._pending_busy *= (present - 1) / present
            self._pending_area *= (present - 1) / present
            if self.overloaded:
                self._note_waiting()

    def finish_invocation(self, invocation: str, service: float) -> None:
        """Record a completion; its engine computed for ``service`` seconds, 0 if unknown."""
        self._advance_clock()
        if self._started.pop(invocation, None) is None:
            return
        self._lumps += ((self._pending_busy < _MOMENT_FRACTION * service) - self._lumps) / _WINDOW_COMPLETIONS
        # Decay by time, so that completions in one moment, as of a batch, count alike.
        memory = _WINDOW_SERVICE_TIMES * (self.service or self.residence)
        if self._done:
            memory = max(memory, _WINDOW_COMPLETIONS * self._busy / self._done)
        keep = math.exp(-self._pending_busy / memory) if memory > 0 else 1.0
        self._done = keep * self._done + 1.0
        self._busy = keep * self._busy + self._pending_busy
        self._area = keep * self._area + self._pending_area
        self._pending_busy = self._pending_area = 0.0
        if service > 0:
            self.service += (service - self.service) / _WINDOW_COMPLETIONS if self.service else service
        self.residence = self._area / self._done
        self.measured = self._done >= max(_MIN_COMPLETIONS, self._mean_served())
        if self.measured and self._busy > 0 and self._done / self._busy >= self._recent_peak_rate():
            self._best = (self._done / self._busy, self._at)
        if self.overloaded:
            self._note_waiting()

    def _recent_peak_rate(self) -> float:
        """Return the recent peak throughput, decayed by its age."""
        best, at = self._best
        return best * math.exp2(-(self._clock() - at) / _PEAK_HALF_LIFE_SECONDS)

    def _advance_clock(self) -> None:
        now = self._clock()
        if self._started:
            self._pending_busy += now - self._at
            self._pending_area += (now - self._at) * len(self._started)
        self._at = now

    @property
    def is_in_use(self) -> bool:
        """True while an invocation of this gateway runs here."""
        return bool(self._started)

    @property
    def rate(self) -> float:
        """Completions per second with work; infinite before the first measurement."""
        self._advance_clock()
        busy = self._busy + max(0.0, self._pending_busy - _STALLED_RESIDENCES * self.residence)
        if not self.measured:  # as if all invocations in service ended now
            return (self._done + self._mean_served()) / busy if busy > 0 else math.inf
        if self._busy <= 0:
            return math.inf
        return max(self._done / min(busy, _MAX_SLOWDOWN * self._busy), _PEAK_RATE_FRACTION * self._recent_peak_rate())

    @property
    def total(self) -> float:
        """Predicted seconds of one more invocation, including those before it."""
        rate, present = self.rate, len(self._started) + 1
        return present / (rate * self._max_speedup(present)) if rate < math.inf else 0.0

    @property
    def most_total(self) -> float:
        """Upper bound of ``total`` in seconds, without reading the clock.

        Infinite until it is known, and in an overload, when a request's patience is not the only limit.
        """
        if self.overloaded or not self.measured or self._busy <= 0:
            return math.inf
        return (len(self._started) + 1) * _MAX_SLOWDOWN * self._busy / self._done

    def _max_speedup(self, present: int) -> float:
        """Return the largest possible speedup at ``present`` invocations over the measured load.

        An engine that served one at a time has not shown its batched throughput. It counts as slow once measured slow.
        """
        return max(1.0, min(present, self.slots) / self._mean_served())

    def _mean_served(self) -> float:
        """Return the mean concurrency (at least one) during the measurement."""
        busy, area = self._busy, self._area
        if not self.measured:
            busy, area = busy + self._pending_busy, area + self._pending_area
        mean = area / busy if busy > 0 else 1.0
        return max(1.0, min(mean, self.slots))

    @property
    def queued_seconds(self) -> float:
        """Mean seconds that the invocations before one more would take; the one in service counts for half.

        If the executor could batch more than it does, some slots are free: otherwise it would never have more to batch.
        One slot is free, or the missing part of the batch if several invocations end in the same moment.
        """
        rate, present = self.rate, len(self._started)
        lacking = max(0.0, self.slots - rate * self.service) if self.slots else 1.0
        free = lacking if self._lumps > _BATCHED_FRACTION else min(1.0, lacking)
        return max(0.0, present + 0.5 - free) / (rate * self._max_speedup(present + 1))

    # Overload

    def begin_overload(self) -> None:
        """Begin an overload: the executor receives more than it serves, so its queue is kept short."""
        if not self.overloaded:
            self.overloaded, self._clear_since = True, None

    def end_overload_in_time(self) -> None:
        """End the overload once the queue has been empty for long enough."""
        if self.overloaded and self._clear_since is not None:
            self.overloaded = self._clock() - self._clear_since < _OVERLOAD_END_SERVICES * self.service

    def _note_waiting(self) -> None:
        if self.queued_seconds > self.service:
            self._clear_since = None
        elif self._clear_since is None:
            self._clear_since = self._at

    def seconds_to_next_end(self) -> float:
        """Return the seconds until the oldest invocation is predicted to finish."""
        if not self._started:
            return 0.0
        age = self._clock() - next(iter(self._started.values()))
        return max(self.residence - age, 0.1 * self.residence)


_most_total = attrgetter("most_total")


def check_queue_time(executors: Iterable[DrainRate], left: float, queue_seconds: float) -> None:
    """Check that a request meets its deadline and its maximum queue time.

    It has ``left`` seconds. It may queue for ``queue_seconds``, so that many requests can arrive at once, and as long
    as engines compute for it. A longer queue grows because the load exceeds the throughput, and it does not serve more.
    So until the queue has been empty for some time, no request may queue longer than its service takes. All executors
    of a request receive it at once, so the slowest one determines its latency. Raises ``Overloaded`` with the seconds
    until there is room.
    """
    drains = list(executors)
    patience = min(left / _DEADLINE_MARGIN, queue_seconds)
    if max(map(_most_total, drains), default=0.0) <= patience:  # the usual case needs no clock
        return
    slowest, total, service, has_service = None, -1.0, 0.0, True
    for each in drains:
        service += each.service
        has_service = has_service and each.service > 0
        if (seconds := each.total) > total:
            slowest, total = each, seconds
    if slowest is None:
        return
    slowest.end_overload_in_time()
    if not slowest.is_in_use:  # otherwise a slow executor would get no more requests, and stay slow
        return
    late = total - left / _DEADLINE_MARGIN if total > service else 0.0
    waits = _seconds_beyond(slowest, service, queue_seconds) if slowest.measured and has_service else 0.0
    if (beyond := max(late, waits)) <= 0:
        return
    if late > 0:
        reason = f"including those before it, this one would take {total:.1f} s, and it has {left:.1f} s"
    else:
        reason = (
            f"the load exceeds the throughput, and this one would queue for {waits + service:.1f} s, "
            f"longer than the {service:.1f} s that engines take for it"
        )
    raise Overloaded(
        f"too many requests wait already: {reason}",
        retry_after=slowest.seconds_to_next_end()
        + max(0.0, beyond - 1.0 / slowest.rate),  # the next completion, plus the excess
    )


def _seconds_beyond(executor: DrainRate, service: float, queue_seconds: float) -> float:
    """Return the seconds by which one more request would queue too long; begins an overload."""
    waits = executor.queued_seconds - service
    if not executor.overloaded and waits <= max(service, queue_seconds):
        return 0.0
    executor.begin_overload()
    return waits - service
