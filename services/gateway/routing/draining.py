"""Prediction of how long a request would take now, from what each executor finished of late.

By Little's law the requests in a system are its throughput times the time that each of them spends there. Throughput
and time are those of this gateway's own invocations alone, so that what other gateways send needs no message: it shows
as a lower throughput. Where an executor batches, its throughput rises with what it has, and so does what it may get.
"""

import math
import time
from collections.abc import Callable, Iterable
from operator import attrgetter

from omnibus.errors import Overloaded

#: Completions, and times of service, that the means remember: whichever takes longer.
_WINDOW_COMPLETIONS, _WINDOW_SERVICE_TIMES = 12.0, 6.0
#: Completions before which a throughput is an upper bound alone; as many as are served at once, if those are more.
_MIN_COMPLETIONS = 4.0
#: Times its mean that a request may take longer than predicted and still has to end by its deadline.
_DEADLINE_MARGIN = 1.25
#: Part of a service that is one moment, and part of the completions in one from which on an executor batches.
_MOMENT_FRACTION, _BATCHED_FRACTION = 0.05, 0.3
#: Mean residences after which an executor that finishes nothing counts as slower than it was.
_STALLED_RESIDENCES = 2.0
#: How many times slower than measured it may count as for that alone: a machine that stood still goes on as before, and
#: an executor that hangs is found by its heartbeats.
_MAX_SLOWDOWN = 4.0
#: Seconds in which the highest throughput of late counts for half, and the part of it that is believed against a lower
#: one: a moment in which nothing ended, on a machine that has others to serve, is no reason to refuse.
_PEAK_HALF_LIFE_SECONDS, _PEAK_RATE_FRACTION = 5.0, 0.5
#: Services without anybody waiting after which an overload is over: fewer pass by chance while too many come.
_OVERLOAD_END_SERVICES = 2.0


class DrainRate:
    """One executor: what is there of this gateway's invocations, and how fast they leave. Times are in seconds."""

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
        self.slots = slots  # invocations that it may batch; 0 if it does not say
        self._clock = clock
        self._started: dict[str, float] = {}  # by invocation, oldest first
        self._at = clock()
        self._done = self._busy = self._area = 0.0  # completions, seconds with work, and the sum of residences in them
        self._pending_busy = self._pending_area = 0.0  # the same since the last completion
        #: Mean seconds that an engine computes for one; 0 while that is not known.
        self.service = 0.0
        #: Mean seconds from sending to the end.
        self.residence = 0.0
        #: True once enough has ended to tell the throughput.
        self.measured = False
        self._best = (0.0, 0.0)  # the highest throughput of late, and when it was
        #: True from a refusal until nobody has waited for some time.
        self.overloaded = False
        self._clear_since: float | None = None  # in an overload: nobody waits
        self._lumps = 0.0  # the part that ends in the same moment as the one before

    def add_invocation(self, invocation: str) -> None:
        """An invocation was sent here."""
        self._advance_clock()
        self._started[invocation] = self._at
        if self.overloaded:
            self._note_waiting()

    def drop_invocation(self, invocation: str) -> None:
        """An invocation left without being finished, so its time is no measure: nobody knows how much was missing."""
        self._advance_clock()
        present = len(self._started)
        if self._started.pop(invocation, None) is not None:
            self._pending_busy *= (present - 1) / present
            self._pending_area *= (present - 1) / present
            if self.overloaded:
                self._note_waiting()

    def finish_invocation(self, invocation: str, service: float) -> None:
        """An invocation was finished; its engine computed for ``service`` seconds, 0 if that is not known."""
        self._advance_clock()
        if self._started.pop(invocation, None) is None:
            return
        self._lumps += ((self._pending_busy < _MOMENT_FRACTION * service) - self._lumps) / _WINDOW_COMPLETIONS
        # By time, so that those that end in one moment, as a batch does, count alike.
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
        """The highest throughput of late; it counts for less the longer it was ago."""
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
        """True while an invocation of this gateway is here."""
        return bool(self._started)

    @property
    def rate(self) -> float:
        """Completions in a second with work; infinite before anything was to be seen."""
        self._advance_clock()
        busy = self._busy + max(0.0, self._pending_busy - _STALLED_RESIDENCES * self.residence)
        if not self.measured:  # as if all that is served ended now
            return (self._done + self._mean_served()) / busy if busy > 0 else math.inf
        if self._busy <= 0:
            return math.inf
        return max(self._done / min(busy, _MAX_SLOWDOWN * self._busy), _PEAK_RATE_FRACTION * self._recent_peak_rate())

    @property
    def total(self) -> float:
        """Seconds that one more invocation is predicted to take, those before it included."""
        rate, present = self.rate, len(self._started) + 1
        return present / (rate * self._max_speedup(present)) if rate < math.inf else 0.0

    @property
    def most_total(self) -> float:
        """Seconds that ``total`` is at most, without a look at the clock; infinite while that is not known, and in an
        overload, in which less than the patience of a request counts.
        """
        if self.overloaded or not self.measured or self._busy <= 0:
            return math.inf
        return (len(self._started) + 1) * _MAX_SLOWDOWN * self._busy / self._done

    def _max_speedup(self, present: int) -> float:
        """The most by which it can be faster with ``present`` invocations than with those it was measured with.

        An engine that had one at a time has not shown what it does with many: it is slow once it was seen to be.
        """
        return max(1.0, min(present, self.slots) / self._mean_served())

    def _mean_served(self) -> float:
        """Return the mean number of invocations served at once, one at least, while the throughput was measured."""
        busy, area = self._busy, self._area
        if not self.measured:
            busy, area = busy + self._pending_busy, area + self._pending_area
        mean = area / busy if busy > 0 else 1.0
        return max(1.0, min(mean, self.slots))

    @property
    def queued_seconds(self) -> float:
        """Seconds that those before one more invocation would take, in the mean, the one that is served for half.

        Where more could be batched than is, some are free, for else there would never be more to batch: one, and where
        several end in the same moment, as a batch does, as many as the batch lacks.
        """
        rate, present = self.rate, len(self._started)
        lacking = max(0.0, self.slots - rate * self.service) if self.slots else 1.0
        free = lacking if self._lumps > _BATCHED_FRACTION else min(1.0, lacking)
        return max(0.0, present + 0.5 - free) / (rate * self._max_speedup(present + 1))

    # Overload

    def begin_overload(self) -> None:
        """More comes than is served, as it still does: from now on the queue is held short."""
        if not self.overloaded:
            self.overloaded, self._clear_since = True, None

    def end_overload_in_time(self) -> None:
        """End the overload once nobody has waited for as long as it takes to be sure."""
        if self.overloaded and self._clear_since is not None:
            self.overloaded = self._clock() - self._clear_since < _OVERLOAD_END_SERVICES * self.service

    def _note_waiting(self) -> None:
        if self.queued_seconds > self.service:
            self._clear_since = None
        elif self._clear_since is None:
            self._clear_since = self._at

    def seconds_to_next_end(self) -> float:
        """Seconds until the oldest invocation is predicted to be finished."""
        if not self._started:
            return 0.0
        age = self._clock() - next(iter(self._started.values()))
        return max(self.residence - age, 0.1 * self.residence)


_most_total = attrgetter("most_total")


def check_queue_time(executors: Iterable[DrainRate], left: float, queue_seconds: float) -> None:
    """Check that a request which has ``left`` seconds ends in time, and waits for others no longer than it may.

    It may wait for ``queue_seconds``, so that many can come at once, and as long as engines compute for it. A queue
    that has grown beyond that grows because more comes than is served: until it was empty for some time nobody waits
    longer than it is served, for a long queue serves no more than a short one. All executors of a request get it at
    once, so the slowest one says how long it takes. Raises ``Overloaded``, which says when there will be room.
    """
    drains = list(executors)
    patience = min(left / _DEADLINE_MARGIN, queue_seconds)
    if max(map(_most_total, drains), default=0.0) <= patience:  # nearly always: no need to look at the clock
        return
    slowest, total, service, served = None, -1.0, 0.0, True
    for each in drains:
        service += each.service
        served = served and each.service > 0
        if (seconds := each.total) > total:
            slowest, total = each, seconds
    if slowest is None:
        return
    slowest.end_overload_in_time()
    if not slowest.is_in_use:  # else one that was slow once would get nothing more, and stay slow
        return
    late = total - left / _DEADLINE_MARGIN if total > service else 0.0
    waits = _seconds_beyond(slowest, service, queue_seconds) if slowest.measured and served else 0.0
    if (beyond := max(late, waits)) <= 0:
        return
    if late > 0:
        reason = f"with those before it this one would take {total:.1f} s, and it has {left:.1f} s"
    else:
        reason = (
            f"more come than are served, and this one would wait {waits + service:.1f} s for those before it, "
            f"longer than the {service:.1f} s that engines take for it"
        )
    raise Overloaded(
        f"too many requests wait already: {reason}",
        retry_after=slowest.seconds_to_next_end()
        + max(0.0, beyond - 1.0 / slowest.rate),  # the one that is next, and what more
    )


def _seconds_beyond(executor: DrainRate, service: float, queue_seconds: float) -> float:
    """Seconds by which one more would wait longer than it may; begins an overload."""
    waits = executor.queued_seconds - service
    if not executor.overloaded and waits <= max(service, queue_seconds):
        return 0.0
    executor.begin_overload()
    return waits - service
