"""Observer that follows the store and the bus, through their restarts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from omnibus.bus import Bus, subjects
from omnibus.bus.census import Census
from omnibus.bus.heartbeats import CENSUS_INTERVAL_SECONDS
from omnibus.cluster.monitor.snapshot import SystemState
from omnibus.cluster.nodes import NODE_EVENTS
from omnibus.cluster.presence import follow_events
from omnibus.errors import OmnibusError, ProtocolError, StoreUnavailable
from omnibus.plan import Plan
from omnibus.service import until_cancelled
from omnibus.store import REREAD_SECONDS, PlanState, Store

#: Seconds between two attempts to read from an unreachable store.
RETRY_PAUSE_SECONDS = 1.0


class Watch:
    """Keeps ``seen`` up to date. ``tell`` is called after every change."""

    def __init__(self, store: Store, bus: Bus, tell: Callable[[], None] = lambda: None) -> None:
        self.seen = SystemState()
        #: Set after the state of the plans was read from the store.
        self.begun = asyncio.Event()
        self._store = store
        self._bus = bus
        self._census = Census(bus, subjects.EXECUTOR, subjects.GATEWAY, subjects.NODE)
        self._tell = tell
        self._polled = 0.0
        self._reconnects = bus.reconnects
        self._bus_lost = 0.0  # monotonic seconds; 0: connected
        self._store_lost = 0.0

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Watch"]:
        """Follow the system while the context is open."""
        handlers: dict[str, Callable[[Any], None]] = {
            subjects.EXECUTOR: self.seen.handle_executor,
            subjects.GATEWAY: self.seen.handle_gateway,
            subjects.LOAD: self.seen.handle_load,
            subjects.GONE: self.seen.handle_gone,
            **dict.fromkeys(NODE_EVENTS, self.seen.nodes.handle_status),
        }
        async with AsyncExitStack() as stack:
            wrapped_handlers = {kind: self._with_news(handler) for kind, handler in handlers.items()}
            for stop in await follow_events(self._bus, wrapped_handlers, census=self._census):
                stack.push_async_callback(stop)
            for following in (self._follow_plans(), self._follow_problems()):
                stack.push_async_callback(until_cancelled, asyncio.create_task(following))
            yield self

    def poll_presence(self) -> list[str]:
        """Request the status of all processes from time to time. Returns the problems with unreachable services."""
        now, away = time.monotonic(), []
        if self._bus.reconnects != self._reconnects:
            self._reconnects, self._polled = self._bus.reconnects, 0.0
            self.seen.handle_disconnect()
        if not self._bus.connected:
            self._bus_lost = self._bus_lost or now
            away.append(f"the bus, for {now - self._bus_lost:.0f} s: executors and arrivals are unknown")
        else:
            self._bus_lost = 0.0
            if now - self._polled >= CENSUS_INTERVAL_SECONDS:
                self._polled = now
                with suppress(OmnibusError):  # the next call repeats it
                    self._census.ask()
        if self._store_lost:
            away.append(f"the store, for {now - self._store_lost:.0f} s: the plan is the last one known")
        return away

    async def _follow_plans(self) -> None:
        async for stand in self._store.plan_changes():
            while True:
                try:
                    await self._read_state(stand)
                    self.begun.set()
                    break
                except StoreUnavailable:  # a change is announced once
                    await asyncio.sleep(RETRY_PAUSE_SECONDS)
            self._tell()

    async def _read_state(self, stand: PlanState) -> None:
        system, old_state = self.seen, self.seen.stand
        system.problems = await self._store.plan_problems()
        if stand.epoch != old_state.epoch or system.plan is None:
            system.plan = await _readable_plan(self._store.plan(stand.epoch)) if stand.epoch else None
        if stand.mark != old_state.mark:
            system.staged = await _readable_plan(self._store.staged_plan()) if stand.staged else None
        system.stand = stand

    async def _follow_problems(self) -> None:
        """Poll the problems of plans, which no event announces."""
        while True:
            try:
                self.seen.problems = await self._store.plan_problems()
                self._store_lost = 0.0
            except StoreUnavailable:
                self._store_lost = self._store_lost or time.monotonic()
            self._tell()
            await asyncio.sleep(RETRY_PAUSE_SECONDS if self._store_lost else REREAD_SECONDS)

    def _with_news(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        def handle(event: Any) -> None:
            handler(event)
            self._tell()

        return handle


async def _readable_plan(reading: Awaitable[Plan | None]) -> Plan | None:
    """Return the plan, or None if another build wrote it."""
    with suppress(ProtocolError):
        return await reading
    return None
