"""Waiting room of requests while the planner can still add executors.

Work stays with the executor that received it, so an executor that starts serves only requests that still wait here. So
each executor receives twice its batch, and the rest waits in order, within its deadline. A batch consists of rows, and
each item of an encoder is a row: requests with ten images fill a batch ten times as fast. Models that the planner does
not report as growing (``PlanEvent.growth``) have no waiting room: they reject by time alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from omnibus.bus.messages import ModelGrowth, PlanEvent
from omnibus.errors import Overloaded
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.executors import ExecutorEntry
from omnibus_gateway.routing.router import Router

#: Work that an executor receives, as a multiple of its batch: the next batch waits there.
_BATCHES = 2
#: Seconds for which a report of the planner is valid: it repeats twice as often.
GROWTH_TTL_SECONDS = 10.0
#: Seconds between two checks for room while a request waits.
_LOOK_SECONDS = 0.02
#: How many times its mean a request may take longer than predicted and still meet its deadline.
_DEADLINE_MARGIN = 1.25


class _Waiter(NamedTuple):
    """A request that waits; ``woken`` is done once there is room."""

    assignment: Assignment
    woken: "asyncio.Future[None]"


class _Stage(NamedTuple):
    """Executors of a component, and the rows that a request takes there.

    A request has one row for each of its items.
    """

    entries: list[ExecutorEntry]
    rows: int


class WaitingRoom:
    """Queues of one gateway, one for each combination of models.

    ``waiting`` counts the requests in them, ``entering`` the admitted requests that have not been sent yet.
    """

    def __init__(self, router: Router) -> None:
        self.waiting = 0
        self._router = router
        self._forget: asyncio.TimerHandle | None = None
        self._queues: dict[str, deque[_Waiter]] = {}
        self._entering: dict[str, int] = {}
        self._looking: dict[str, asyncio.TimerHandle] = {}

    def growth(self, assignment: Assignment) -> ModelGrowth | None:
        """Return the growth of the least growing model of ``assignment``; None if one cannot grow."""
        growing = self._router.growing
        if not growing or not all(part.model in growing for part in assignment.parts):
            return None
        return min((growing[part.model] for part in assignment.parts), key=lambda each: each.factor, default=None)

    def handle_plan_event(self, event: PlanEvent) -> None:
        """Apply the growth that the planner reports; its silence means none."""
        self._router.growing = event.growth
        if self._forget is not None:
            self._forget.cancel()
        loop = asyncio.get_running_loop()
        self._forget = loop.call_later(GROWTH_TTL_SECONDS, self._forget_growth) if event.growth else None

    def _forget_growth(self) -> None:
        self._router.growing, self._forget = {}, None

    def close(self) -> None:
        """Cancel the timer that expires the growth."""
        if self._forget is not None:
            self._forget.cancel()

    def has_room(self, assignment: Assignment) -> bool:
        """Return True if a request finds room without waiting."""
        queue = assignment.model
        return not self._queues.get(queue) and self._free_places(assignment) > self._entering.get(queue, 0)

    def check_spare_room(self, assignment: Assignment) -> None:
        """Check that no request waits and each eligible option has spare room.

        That is an executor with less than half a batch. Raises ``Overloaded``."""
        spare = not self._queues.get(assignment.model) and all(
            any(map(_is_spare, entries)) for entries in self._options(assignment) if entries
        )
        if not spare:
            raise Overloaded("the executors are busy: early requests need spare capacity")

    async def enter(self, assignment: Assignment, growth: ModelGrowth, left: float) -> None:
        """Wait until there is room for a request that has ``left`` seconds.

        Call ``leave_entrance`` once it is sent or abandoned. Raises ``Overloaded`` after a timeout, or if even with all
        executors that can be added it would miss its deadline.
        """
        if not self.has_room(assignment):
            self._check_time(assignment, growth, left)
            await self._wait_in_queue(assignment, left)
        self._entering[assignment.model] = self._entering.get(assignment.model, 0) + 1

    def leave_entrance(self, assignment: Assignment) -> None:
        """Note that an admitted request was sent or ended."""
        self._entering[assignment.model] -= 1

    async def _wait_in_queue(self, assignment: Assignment, left: float) -> None:
        queue = self._queues.setdefault(assignment.model, deque())
        waiter = _Waiter(assignment, asyncio.get_running_loop().create_future())
        queue.append(waiter)
        self.waiting += 1
        self._schedule_check(assignment.model)
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await waiter.woken
        except TimeoutError:
            wait_seconds = time.monotonic() - began
            raise Overloaded(
                f"there was no room for the request within {wait_seconds:.0f} s: try again later"
            ) from None
        finally:
            self.waiting -= 1
            if waiter in queue:
                queue.remove(waiter)

    def _schedule_check(self, name: str) -> None:
        if name not in self._looking:
            loop = asyncio.get_running_loop()
            self._looking[name] = loop.call_later(_LOOK_SECONDS, self._let_in, name)

    def _let_in(self, name: str) -> None:
        """Wake the requests that there is room for, in order of arrival."""
        del self._looking[name]
        queue, place_count = self._queues[name], self._entering.get(name, 0)
        while queue and self._free_places(queue[0].assignment) > place_count:
            waiter = queue.popleft()
            if not waiter.woken.done():
                waiter.woken.set_result(None)
                place_count += 1
        if queue:
            self._schedule_check(name)
        else:
            del self._queues[name]

    def _check_time(self, assignment: Assignment, growth: ModelGrowth, left: float) -> None:
        """Reject a request that would get its turn too late. Raises ``Overloaded``."""
        before = len(self._queues.get(assignment.model, ()))
        rate = min((self._drain_rate(stage.entries) for stage in self._stages(assignment)), default=0.0)
        seconds = (before + 1) / rate if rate > 0 else 0.0
        wait_seconds = min(seconds, growth.seconds + max(0.0, seconds - growth.seconds) / growth.factor)
        if wait_seconds > left / _DEADLINE_MARGIN:
            raise Overloaded(
                f"too many requests wait already: even with more executors this one would take {wait_seconds:.0f} "
                f"s, and it has {left:.0f} s",
                retry_after=wait_seconds - left / _DEADLINE_MARGIN,
            )

    # Executors

    def _free_places(self, assignment: Assignment) -> float:
        """Return the requests that the scarcest stage of ``assignment`` can accept.

        Stages without executors do not count; routing reports them."""
        free = [
            sum(_free_places(entry, stage.rows) for entry in stage.entries)
            for stage in self._stages(assignment)
            if stage.entries
        ]
        return min(free, default=float("inf"))

    def _stages(self, assignment: Assignment) -> Iterator[_Stage]:
        """Yield the executors of each component, over all options."""
        router = self._router
        for part in assignment.parts:
            options: dict[str, set[str]] = {}
            for path in router.find_paths(part):
                for component in part.used:
                    options.setdefault(component, set()).add(path.options[component])
            for component, names in options.items():
                entries = [entry for name in sorted(names) for entry in router.serving_executors(part.model, name)]
                yield _Stage(entries, part.components.count(component))

    def _options(self, assignment: Assignment) -> Iterator[list[ExecutorEntry]]:
        """Yield the executors of each option on a path."""
        for part in assignment.parts:
            paths = self._router.find_paths(part)
            for name in sorted({path.options[component] for path in paths for component in part.used}):
                yield self._router.serving_executors(part.model, name)

    @staticmethod
    def _drain_rate(entries: list[ExecutorEntry]) -> float:
        return sum(entry.drain.rate for entry in entries)


def _is_spare(entry: ExecutorEntry) -> bool:
    return 2 * (entry.own + entry.foreign) < min(entry.status.slots or entry.credits, entry.credits)


def _free_places(entry: ExecutorEntry, rows: int) -> float:
    """Return how many more requests of ``rows`` rows an executor can receive."""
    slots, credit = entry.status.slots, entry.available_credit
    return max(0.0, min(credit, (_BATCHES * slots - entry.rows) / rows) if slots else credit)
