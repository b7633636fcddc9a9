"""A device in asyncio time: sleeps until its batch is done, and wakes who waited for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from omnibus.errors import StageUnavailable
from omnibus.executor.sim.device import Device, Lane, Sequence, Work


class Clock(NamedTuple):
    """Time as a machine knows it, in seconds. Tests bring their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


REAL = Clock()


class Ticket:
    """Who waits for a work: ``news`` returns each time that something has happened to it."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._event = asyncio.Event()

    def tell(self, _: float = 0.0) -> None:
        self._event.set()

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in ``news``."""
        self._error = self._error or error
        self._event.set()

    async def news(self) -> None:
        await self._event.wait()
        if self._error is not None:
            raise self._error
        self._event.clear()


class Machine:
    """The one device of an executor, and the task that turns it.

    ``startup`` is in seconds of ``clock``, as is all that ``device`` takes. Turns follow each other without a
    gap while works wait, however late the timers are.
    """

    def __init__(self, device: Device, startup: float, clock: Clock) -> None:
        self._device = device
        self._startup = startup
        self._clock = clock
        self._wake = asyncio.Event()
        self._tickets: set[Ticket] = set()
        self._failed: Exception | None = None
        self._starting: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._began = 0.0

    async def start(self) -> None:
        """Wait until the executor would be ready; all its components load together."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._load(), name="startup")
        await asyncio.shield(self._starting)

    async def _load(self) -> None:
        await self._clock.sleep(self._startup)
        self._began = self._clock.now()
        self._serving = asyncio.create_task(self._serve(), name="device")

    async def close(self) -> None:
        """Fail what waits. Closing twice is harmless."""
        tasks = [task for task in (self._starting, self._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._abandon(StageUnavailable("the engine was closed; send the request again"))

    @property
    def utilisation(self) -> float:
        """Share of the time since the start that the device was busy."""
        passed = self._clock.now() - self._began
        return min(1.0, self._device.busy / passed) if self._serving is not None and passed > 0 else 0.0

    @contextmanager
    def admit(self, lane: Lane, work: Work) -> Iterator[Ticket]:
        """Queue ``work``; leaving the block, however it is left, frees its slot at once."""
        if self._failed is not None:
            raise self._failed
        ticket = Ticket()
        work.told = ticket.tell
        lane.put(work, self._clock.now())
        self._tickets.add(ticket)
        self._wake.set()
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            lane.remove(work, self._clock.now())
            self._wake.set()

    def grow(self, lane: Lane, sequence: Sequence, allowed: float, limit: float) -> None:
        """Let ``sequence`` take ``allowed`` steps by now, and end after ``limit``."""
        lane.grow(sequence, allowed, limit, self._clock.now())
        self._wake.set()

    async def _serve(self) -> None:
        """Turn for ever; sleeps while nobody is ready."""
        clock, device, at = self._clock, self._device, self._clock.now()
        try:
            while True:
                self._wake.clear()
                turn = device.turn(at)
                if turn is None and (now := clock.now()) > at:
                    at = now  # a timer was late, or nobody was there
                    turn = device.turn(at)
                if turn is None:
                    await self._wake.wait()
                    continue
                at += turn.seconds
                await clock.sleep(max(0.0, at - clock.now()))
                device.finish(turn, at)
        except Exception as error:  # the device's own boundary: whoever waits for it must not wait for ever
            self._abandon(error)
            raise

    def _abandon(self, error: Exception) -> None:
        self._failed = self._failed or error
        for ticket in self._tickets:
            ticket.fail(self._failed)
