"""A device in asyncio time: sleeps until its batch is done, then wakes the waiting callers."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from omnibus.errors import StageUnavailable
from omnibus.executor.job_clock import ComputeBill, current_clock
from omnibus.executor.sim.device import CombinedTurn, Device, DeviceTurn, Lane, SimSequence, SimWork


class Timer(Protocol):
    def cancel(self) -> None: ...


def _call_later(seconds: float, callback: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, callback)


class Clock(NamedTuple):
    """Clock of a machine, in seconds: the time ``now``, and calls ``later``.

    Tests have their own.
    """

    now: Callable[[], float] = time.monotonic
    later: Callable[[float, Callable[[], None]], Timer] = _call_later


REAL_CLOCK = Clock()


class WorkTicket:
    """Handle of a caller that waits for a work; ``wait_for_update`` returns at each event of the work."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._event = asyncio.Event()

    def notify(self, _: float = 0.0) -> None:
        self._event.set()

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in ``wait_for_update``."""
        self._error = self._error or error
        self._event.set()

    async def wait_for_update(self) -> None:
        await self._event.wait()
        if self._error is not None:
            raise self._error
        self._event.clear()


class SimulatedMachine:
    """The one device of an executor, and the task that runs it.

    ``startup`` and the times of ``device`` are in seconds of ``clock``. While works wait, turns follow each other
    without a gap, even if timers are late.
    """

    def __init__(self, device: Device, startup: float, clock: Clock) -> None:
        self._device = device
        self._startup = startup
        self._clock = clock
        self._wake = asyncio.Event()
        self._tickets: set[WorkTicket] = set()
        self._failed: Exception | None = None
        self._starting: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._began = 0.0
        self._bill = ComputeBill()

    async def start(self) -> None:
        """Wait until the executor would be ready; all its components load together."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._wait_for_startup(), name="startup")
        await asyncio.shield(self._starting)

    async def _wait_for_startup(self) -> None:
        ready = asyncio.Event()
        timer = self._clock.later(self._startup, ready.set)
        try:
            await ready.wait()
        finally:
            timer.cancel()
        self._began = self._clock.now()
        self._serving = asyncio.create_task(self._serve_turns(), name="device")

    async def close(self) -> None:
        """Fail all waiting works. Repeated calls are harmless."""
        tasks = [task for task in (self._starting, self._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_tickets(StageUnavailable("the engine was closed; send the request again"))

    @property
    def utilisation(self) -> float:
        """Busy part of the time since the start."""
        passed = self._clock.now() - self._began
        return min(1.0, self._device.busy / passed) if self._serving is not None and passed > 0 else 0.0

    @contextmanager
    def admit_work(self, lane: Lane, work: SimWork) -> Iterator[WorkTicket]:
        """Queue ``work``; every exit from the block frees its slot at once."""
        if self._failed is not None:
            raise self._failed
        ticket = WorkTicket()
        work.told = ticket.notify
        work.clock = current_clock()
        work.continues, work.since = work.clock.continues, work.clock.came
        lane.queue_work(work, self._clock.now())
        self._tickets.add(ticket)
        self._wake.set()
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            lane.remove_work(work, self._clock.now())
            self._wake.set()

    def extend_sequence(self, lane: Lane, sequence: SimSequence, allowed: float, limit: float) -> None:
        """Allow ``sequence`` a total of ``allowed`` steps, and end it after ``limit``."""
        lane.extend_sequence(sequence, allowed, limit, self._clock.now())
        self._wake.set()

    async def _serve_turns(self) -> None:
        """Run turns until cancelled; sleeps while no work is ready."""
        clock, device, at = self._clock, self._device, self._clock.now()
        try:
            while True:
                self._wake.clear()
                turn = device.next_turn(at)
                if turn is None and (now := clock.now()) > at:
                    at = now  # a timer was late, or there was no work
                    turn = device.next_turn(at)
                if turn is None:
                    await self._wake.wait()
                    continue
                _set_begun(turn)
                steps = await self._wait_for_turn(turn, at)
                at += turn.ends[steps - 1]
                self._charge_turn(turn, steps)
                device.finish_turn(turn, at, steps)
        except Exception as error:  # boundary of the device: its callers must not wait forever
            self._fail_tickets(error)
            raise

    async def _wait_for_turn(self, turn: DeviceTurn | CombinedTurn, began: float) -> int:
        """Sleep until the end of ``turn``; returns its steps, fewer if an event interrupts it."""
        clock, steps, rung = self._clock, len(turn.ends), False

        def on_timer() -> None:
            nonlocal rung
            rung = True
            self._wake.set()

        while (left := began + turn.ends[steps - 1] - clock.now()) > 0:
            self._wake.clear()
            timer = clock.later(left, on_timer)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            if rung:  # maybe a little early: timers have a resolution of a millisecond
                return steps
            steps = min(steps, turn.steps_begun(clock.now() - began))
        await asyncio.sleep(0)  # late, but other tasks must also run
        return steps

    def _charge_turn(self, turn: DeviceTurn | CombinedTurn, steps: int) -> None:
        """Charge the first ``steps`` of ``turn`` to the jobs of its works.

        It charges lane by lane, as lanes count them.
        """
        for each in turn.turns:
            unit = steps * len(each.works) / each.seconds if each.seconds else 0.0  # a step of one is a unit
            shares = [
                (work.clock, seconds * unit)
                for (work, _), seconds in zip(each.works, each.seconds_by_work(), strict=True)
                if work.clock is not None
            ]
            self._bill.add_seconds(each.ends[steps - 1], shares, each.lane if each.stepping else None)

    def _fail_tickets(self, error: Exception) -> None:
        self._failed = self._failed or error
        for ticket in self._tickets:
            ticket.fail(self._failed)


def _set_begun(turn: DeviceTurn | CombinedTurn) -> None:
    """Record the start of the jobs whose first turn this is."""
    for each in turn.turns:
        for work, _ in each.works:
            if work.clock is not None:
                work.clock.set_now()
