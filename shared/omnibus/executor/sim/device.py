"""A device that serves one batch at a time: queue, order and duration. It has no clock.

A lane is one component. Its works wait in order of arrival. A *pass* takes as many of them as there are slots. If the
component has steps, a work is a sequence and its pass is its prompt. It then keeps its slot and takes part in every
*step* until it ends (continuous batching). All lanes share the device. The next turn is the pass or step that has
waited longest; so components in one executor slow each other down. Media whose sequences continue on the device do not
run ahead of a full language model (``omnibus.executor.due_queue``).

    turn = device.next_turn(at)                # or None: no work is ready at this time
    device.finish_turn(turn, at + turn.seconds, len(turn.ends))

One turn is several steps while no other work is ready and no caller needs an update. Simulating them then costs no more
than simulating one. The caller may end a turn after fewer steps, when other work arrives.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from itertools import accumulate, islice, repeat
from math import inf
from typing import Any, NamedTuple

from omnibus.bus.messages import BatchCounts
from omnibus.executor.due_queue import is_held
from omnibus.executor.job_clock import JobClock
from omnibus.executor.sim.distributions import Curve
from omnibus.spare_places import count_spare_places

#: Callback with the time of an event of a work.
Told = Callable[[float], None]

#: No request waits for a slot.
NONE_WAITING: Mapping[str, float] = {}
#: Most steps of one turn.
MAX_TURN_STEPS = 256


class SimWork:
    """One item of a batch, with ``tokens``. ``factor`` multiplies its share of the time.

    ``clock`` is its job's clock, or None. ``continues`` is true for media whose sequence needs a slot on this device.
    ``since`` is the arrival of its request; by default, that of the work.
    """

    __slots__ = ("clock", "continues", "factor", "gone", "left", "ready", "since", "tokens", "told")

    def __init__(self, tokens: int, factor: float = 1.0, told: Told | None = None) -> None:
        self.tokens = tokens
        self.continues = False
        self.since: float | None = None
        self.factor = factor
        self.told = told
        self.clock: JobClock | None = None
        self.left = tokens
        self.ready = 0.0
        self.gone = False

    @property
    def tenant(self) -> str:
        """Tenant of its job; empty without tenants."""
        return self.clock.tenant.name if self.clock is not None else ""

    def notify(self, at: float) -> None:
        if self.told is not None:
            self.told(at)


class SimSequence(SimWork):
    """A work with steps after its pass: ``limit`` in total, ``done`` so far.

    It may take ``allowed`` steps so far. ``told`` is called at step ``first``, then after each ``every`` steps, and at
    the last one. A pass counts as the first step: it makes the first token.
    """

    __slots__ = ("allowed", "done", "every", "limit", "mark")

    def __init__(
        self,
        tokens: int,
        factor: float = 1.0,
        told: Told | None = None,
        *,
        limit: float = inf,
        allowed: float = inf,
        first: float = 1,
        every: float = 1,
    ) -> None:
        super().__init__(tokens, factor, told)
        self.done = 0
        self.limit = limit
        self.allowed = allowed
        self.every = every
        self.mark = first

    @property
    def is_finished(self) -> bool:
        return self.done >= self.limit

    @property
    def quiet_steps(self) -> float:
        """Steps until ``told`` must be called or more steps allowed."""
        return min(self.mark, self.limit, self.allowed) - self.done

    def take_steps(self, at: float, steps: int = 1) -> None:
        self.done += steps
        self.ready = at
        if self.done >= self.mark or self.is_finished:
            self.mark = self.done + self.every
            self.notify(at)


class DeviceTurn(NamedTuple):
    """Next action of the device: works with their tokens, and the ends of its steps.

    The ends are in seconds after its start.
    """

    lane: "Lane"
    stepping: bool
    works: list[tuple[SimWork, int]]
    ends: list[float]

    @property
    def seconds(self) -> float:
        return self.ends[-1]

    @property
    def turns(self) -> "list[DeviceTurn]":
        return [self]

    def steps_begun(self, passed: float) -> int:
        """Return the steps started within ``passed`` seconds; these cannot be stopped."""
        return min(len(self.ends), bisect_left(self.ends, passed) + 1)

    def seconds_by_work(self) -> list[float]:
        """Return the seconds of each work."""
        curve = self.lane.step if self.stepping else self.lane.batch
        if curve is None:
            return [0.0] * len(self.works)
        costs = curve.split_seconds([tokens for _, tokens in self.works])
        return [self.seconds * cost / sum(costs) for cost in costs]


class CombinedTurn(NamedTuple):
    """Turns of several lanes in one step, one after the other; see ``DeviceTurn``."""

    turns: list[DeviceTurn]
    ends: list[float]

    @property
    def seconds(self) -> float:
        return self.ends[-1]

    @property
    def works(self) -> list[tuple[SimWork, int]]:
        return [work for turn in self.turns for work in turn.works]

    def steps_begun(self, _: float) -> int:
        return 1

    def seconds_by_work(self) -> list[float]:
        return [seconds for turn in self.turns for seconds in turn.seconds_by_work()]


class Lane:
    """One component's works: ``waiting``, ``joining`` (in a slot, prompt not done) and ``active`` (stepping)."""

    def __init__(
        self, batch: Curve | None, step: Curve | None, slots: int, share: int = 0, reads: bool = False
    ) -> None:
        self.batch = batch
        self.reads = reads
        self.step = step
        self.slots = slots
        self.share = share or inf
        self.waiting: deque[SimWork] = deque()
        self.joining: deque[SimWork] = deque()
        self.active: list[SimSequence] = []
        self.passes: Counter[int] = Counter()
        self.steps: Counter[int] = Counter()
        self.tokens = self.pass_tokens = 0
        self.busy = 0.0  # seconds

    @property
    def used(self) -> int:
        return len(self.joining) + len(self.active)

    @property
    def batch_counts(self) -> BatchCounts:
        """Passes and steps so far, as ``Runner.batch_counts``."""
        rows = sum(size * count for size, count in self.steps.items())
        return BatchCounts(self.passes.total(), self.pass_tokens, self.steps.total(), rows)

    def queue_work(self, work: SimWork, at: float) -> None:
        """Queue ``work``."""
        work.ready = at
        work.since = at if work.since is None else work.since
        self.waiting.append(work)
        self._admit_waiting(at)

    def remove_work(self, work: SimWork, at: float) -> None:
        """Remove ``work`` in any state and free its slot. Repeated calls are harmless."""
        if work.gone:
            return
        work.gone = True
        places: tuple[MutableSequence[Any], ...] = (self.active, self.joining, self.waiting)
        for place in places:
            if work in place:
                place.remove(work)
                break
        self._admit_waiting(at)

    def extend_sequence(self, sequence: SimSequence, allowed: float, limit: float, at: float) -> None:
        """Allow ``sequence`` more steps, or end it at its new ``limit``."""
        sequence.allowed, sequence.limit = allowed, limit
        sequence.ready = max(sequence.ready, at)
        if sequence.is_finished and sequence in self.active:
            self.remove_work(sequence, at)
            sequence.notify(at)

    def _admit_waiting(self, at: float) -> None:
        """Assign free slots in order of arrival."""
        while self.step is not None and self.waiting and self.used < self.slots:
            self._start_work(self.waiting.popleft(), at)
        if self.step is not None and self.waiting and self.waiting[0].tenant:
            self._admit_spare(at)

    def _admit_spare(self, at: float) -> None:
        """Assign spare slots to tenants without a slot, as engines do."""
        working = {work.tenant for work in (*self.joining, *self.active)}
        most = self.slots + count_spare_places(self.slots)
        for work in [each for each in self.waiting if each.tenant not in working]:
            if self.used < most and work.tenant not in working:
                working.add(work.tenant)
                self.waiting.remove(work)
                self._start_work(work, at)

    def _start_work(self, work: SimWork, at: float) -> None:
        work.ready = max(work.ready, at)
        if self.batch is not None or not isinstance(work, SimSequence):
            self.joining.append(work)
        else:
            self.active.append(work)

    # Turns

    def turn_candidates(self, at: float, oldest: Mapping[str, float] = NONE_WAITING) -> tuple[int, float, float]:
        """Return the possible turns, and when a pass and step became ready.

        The number counts passes and steps that could run now or later without further events (0, 1 or more). The times
        are those since when a pass, and a step, could run at ``at``; infinite if none could. ``oldest`` are the
        arrivals, by tenant, of the oldest requests that wait for a slot on the device.
        """
        since, times = inf, set()
        for each in self.active:
            if each.done < each.allowed:
                ready = each.ready
                times.add(ready)
                if ready <= at and ready < since:
                    since = ready
        waiting = self.joining if self.step is not None else islice(self._passable(oldest), 1)
        return len(times) + (len(self._pass_queue) > 0), _earliest_ready(waiting, at), since

    @property
    def _pass_queue(self) -> deque[SimWork]:
        return self.waiting if self.step is None else self.joining

    def _passable(self, oldest: Mapping[str, float]) -> Iterable[SimWork]:
        """Return the works that a pass may take, without media that must wait."""
        if not (self.reads and oldest):
            return self._pass_queue
        return [
            work
            for work in self._pass_queue
            if not is_held(work.continues, work.since or 0.0, oldest.get(work.tenant, inf))
        ]

    def take_pass(self, at: float, scale: float, oldest: Mapping[str, float] = NONE_WAITING) -> DeviceTurn:
        """Return a pass. Prompts longer than ``share`` are cut; items longer than it run alone."""
        works: list[tuple[SimWork, int]] = []
        left = self.share
        for work in self._passable(oldest):
            if len(works) == self.slots or left <= 0:
                break
            if work.ready > at:
                continue
            size = work.left
            if size > left:
                if self.step is not None:
                    size = int(left)
                elif works:
                    break
            works.append((work, size))
            left -= size
        for work, size in works:
            if self.step is None or size == work.left:
                self._pass_queue.remove(work)
                if isinstance(work, SimSequence):
                    self.active.append(work)
                    work.ready = inf  # until its pass is over
        return self.make_turn(works, scale)

    def take_step(self, at: float, scale: float, alone: bool) -> DeviceTurn:
        """Return a step of all ready sequences; ``alone``, up to the next update of one."""
        works: list[tuple[SimWork, int]] = []
        quiet: float = MAX_TURN_STEPS if alone else 1
        for each in self.active:
            if each.done < each.allowed and each.ready <= at:
                works.append((each, each.tokens + each.done))
                if alone and each.quiet_steps < quiet:
                    quiet = each.quiet_steps
        return self.make_turn(works, scale, max(1, int(quiet)))

    def make_turn(self, works: list[tuple[SimWork, int]], scale: float, steps: int = 0) -> DeviceTurn:
        """Return a pass of ``works``, or ``steps`` steps of them."""
        curve = self.step if steps else self.batch
        items, tokens, factors = len(works), 0, 0.0
        for work, size in works:
            tokens += size
            factors += work.factor
        scale *= factors / items
        count = max(1, steps)
        if curve is None:
            seconds: Iterable[float] = repeat(0.0, count)
        elif not curve.per_token:  # all equal
            seconds = repeat(curve.seconds(items, tokens) * scale, count)
        else:
            seconds = [curve.seconds(items, tokens + items * step) * scale for step in range(count)]
        return DeviceTurn(self, steps > 0, works, list(accumulate(seconds)))

    def finish_turn(self, turn: DeviceTurn, at: float, steps: int) -> None:
        """Complete ``steps`` of ``turn``; works that were removed meanwhile are skipped."""
        (self.steps if turn.stepping else self.passes)[len(turn.works)] += steps
        self.busy += turn.ends[steps - 1]
        if turn.stepping:
            self._finish_steps(turn, at, steps)
            return
        for work, size in turn.works:
            if work.gone:
                continue
            self.tokens += size
            self.pass_tokens += size
            work.ready = at
            work.left -= size
            if not work.left:
                self._advance_work(work, at, steps)

    def _finish_steps(self, turn: DeviceTurn, at: float, steps: int) -> None:
        """Complete ``steps`` for the sequences of ``turn``; only those due for an update need more."""
        for work, _ in turn.works:
            if work.gone or not isinstance(work, SimSequence):
                continue
            self.tokens += steps
            work.ready = at
            done = work.done = work.done + steps
            if done >= work.mark or done >= work.limit:
                work.take_steps(at, 0)
                if work.is_finished:
                    self.remove_work(work, at)

    def _advance_work(self, work: SimWork, at: float, steps: int) -> None:
        if not isinstance(work, SimSequence):
            work.gone = True
            work.notify(at)
            return
        work.take_steps(at, steps)
        if work.is_finished:
            self.remove_work(work, at)


class Device:
    """Device with ``lanes``; ``scale`` multiplies every time."""

    def __init__(self, scale: float = 1.0, lanes: Iterable[Lane] = ()) -> None:
        self.lanes = list(lanes)
        self._model: Lane | None = None  # the first with steps: media are for it
        self._scale = scale

    def add_lane(
        self,
        batch: Curve | None,
        step: Curve | None,
        slots: int,
        share: int = 0,
        *,
        reads: bool = False,
        usual: int = 0,
    ) -> Lane:
        """Add a lane. With ``reads``, its works are media items of ``usual`` tokens; schedules need that."""
        self.lanes.append(Lane(batch, step, slots, share, reads))
        if self._model is None and step is not None and not reads:
            self._model = self.lanes[-1]
        return self.lanes[-1]

    @property
    def busy(self) -> float:
        """Seconds of all turns so far."""
        return sum(lane.busy for lane in self.lanes)

    def next_turn(self, at: float) -> DeviceTurn | CombinedTurn | None:
        """Start the turn that is ready longest; None without one.

        A pass is before a step.
        """
        best, chosen, stepping, able, oldest = inf, None, False, 0, self._oldest_waiting()
        for lane in self.lanes:
            count, passing, step = lane.turn_candidates(at, oldest)
            able += count
            if passing < best:
                best, chosen, stepping = passing, lane, False
            if step < best:
                best, chosen, stepping = step, lane, True
        if chosen is None:
            return None
        return chosen.take_step(at, self._scale, able == 1) if stepping else chosen.take_pass(at, self._scale, oldest)

    def _oldest_waiting(self) -> Mapping[str, float]:
        """Return the arrivals, by tenant, of the oldest requests that wait for a slot of the language model."""
        if self._model is None or not self._model.waiting:
            return NONE_WAITING
        oldest: dict[str, float] = {}
        for work in self._model.waiting:
            oldest[work.tenant] = min(oldest.get(work.tenant, inf), work.since or 0.0)
        return oldest

    def finish_turn(self, turn: DeviceTurn | CombinedTurn, at: float, steps: int) -> None:
        """Complete ``turn``, which ended at ``at`` after ``steps`` steps."""
        for each in turn.turns:
            each.lane.finish_turn(each, at, steps)


def _earliest_ready(works: Iterable[SimWork], at: float) -> float:
    return min((work.ready for work in works if work.ready <= at), default=inf)
