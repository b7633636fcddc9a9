"""``omnibus top``: what comes, what runs and how busy it is, again each second."""

import argparse
import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from math import isfinite

from omnibus.bus import Delivery, messages, subjects
from omnibus.bus.nats import NatsBus
from omnibus.cli import look, plans, toptexts
from omnibus.cli.seen import Seen
from omnibus.errors import BadRequest, OmnibusError, ProtocolError, StoreUnavailable
from omnibus.plan import Plan
from omnibus.service import until_cancelled
from omnibus.store import REREAD, Stand, Store

#: Seconds between two questions to all who are there: gateways say nothing while their plan is the same.
ASK = 5.0
#: Seconds that ``--once`` looks: heartbeats tell what was computed since the one before.
LOOK = 2.0
#: Seconds between two attempts to read from a store that is away.
AGAIN = 1.0
#: Escape sequences: to the top left, the rest of the line and of the screen cleared, the cursor hidden and shown.
_HOME, _REST, _BELOW, _HIDE, _SHOW = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[?25l", "\x1b[?25h"


async def top(options: argparse.Namespace) -> int:
    """Show until Ctrl-C, or ``--once``. Raises ``BusUnavailable`` and ``StoreUnavailable`` when it cannot begin."""
    if not (isfinite(options.every) and 0.1 <= options.every <= 3600):
        raise BadRequest(f"--every {options.every:g}: give seconds between 0.1 and 3600")
    logging.getLogger().addHandler(logging.NullHandler())  # what is away is said on the screen
    store = Store(plans.settings(options))
    try:
        await store.stand()
        bus = await look.connect(options)
        try:
            async with Watch(store, bus).following() as watch, _interrupted() as stop:
                await _show(watch, options, stop)
        finally:
            await bus.drain()
    finally:
        await store.close()
    return 0


class Watch:
    """Follows the store and the bus, through their restarts."""

    def __init__(self, store: Store, bus: NatsBus) -> None:
        self.seen = Seen()
        self._store = store
        self._bus = bus
        self._asked = 0.0
        self._reconnects = bus.reconnects
        self._bus_lost = 0.0  # monotonic seconds; 0: it is there
        self._store_lost = 0.0

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Watch"]:
        """Follow as long as the block lasts."""
        heard: dict[str, Callable[[Delivery], None]] = {
            subjects.EXECUTOR: lambda delivery: self.seen.executor(messages.decode_status(delivery.data)),
            subjects.GATEWAY: lambda delivery: self.seen.gateway(messages.decode_gateway(delivery.data)),
            subjects.LOAD: lambda delivery: self.seen.load(messages.decode_load(delivery.data)),
            subjects.GONE: lambda delivery: self.seen.gone(delivery.data.decode(errors="replace")),
        }
        for kind, handler in heard.items():
            await self._bus.subscribe(subjects.event(kind), _readable(handler))
        following = [asyncio.create_task(each) for each in (self._plans(), self._problems())]
        try:
            yield self
        finally:
            for task in following:
                await until_cancelled(task)

    def turn(self) -> list[str]:
        """Ask who is there, now and then; returns what cannot be reached."""
        now, away = time.monotonic(), []
        if self._bus.reconnects != self._reconnects:
            self._reconnects, self._asked = self._bus.reconnects, 0.0
            self.seen.missed()
        if not self._bus.connected:
            self._bus_lost = self._bus_lost or now
            away.append(f"the bus, for {now - self._bus_lost:.0f} s: who is up and what comes is not known")
        else:
            self._bus_lost = 0.0
            if now - self._asked >= ASK:
                self._asked = now
                with suppress(OmnibusError):  # the next turn asks again
                    self._bus.publish(subjects.event(subjects.CENSUS), b"{}")
        if self._store_lost:
            away.append(f"the store, for {now - self._store_lost:.0f} s: the plan is the last one known")
        return away

    async def _plans(self) -> None:
        async for stand in self._store.plan_changes():
            while True:
                try:
                    await self._read(stand)
                    break
                except StoreUnavailable:  # a change is told once
                    await asyncio.sleep(AGAIN)

    async def _read(self, stand: Stand) -> None:
        seen, known = self.seen, self.seen.stand
        seen.problems = await self._store.problems()
        if stand.epoch != known.epoch or seen.plan is None:
            seen.plan = await _known(self._store.plan(stand.epoch)) if stand.epoch else None
        if stand.mark != known.mark:
            seen.staged = await _known(self._store.staged()) if stand.staged else None
        seen.stand = stand

    async def _problems(self) -> None:
        """Nobody announces these."""
        while True:
            try:
                self.seen.problems = await self._store.problems()
                self._store_lost = 0.0
            except StoreUnavailable:
                self._store_lost = self._store_lost or time.monotonic()
            await asyncio.sleep(AGAIN if self._store_lost else REREAD)


async def _known(reading: Awaitable[Plan | None]) -> Plan | None:
    """None for a plan that another build wrote."""
    with suppress(ProtocolError):
        return await reading
    return None


def _readable(handler: Callable[[Delivery], None]) -> Callable[[Delivery], None]:
    def handle(delivery: Delivery) -> None:
        with suppress(ProtocolError):  # another build's
            handler(delivery)

    return handle


@asynccontextmanager
async def _interrupted() -> AsyncIterator[asyncio.Event]:
    """Set by Ctrl-C, which is how this ends."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _show(watch: Watch, options: argparse.Namespace, stop: asyncio.Event) -> None:
    screen = sys.stdout.isatty() and not options.once and not options.json
    watch.turn()
    await _pause(stop, max(LOOK, options.every) if options.once else min(LOOK, options.every))
    try:
        if screen:
            print(_HIDE, end="")
        while not stop.is_set():
            _print(watch, options.json, screen)
            if options.once:
                return
            await _pause(stop, options.every)
    except BrokenPipeError:  # whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if screen:
            print(_SHOW, flush=True)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _print(watch: Watch, as_json: bool, screen: bool) -> None:
    away = watch.turn()
    if as_json:
        print(json.dumps(toptexts.values(watch.seen, away)), flush=True)
        return
    size = shutil.get_terminal_size((100, 30))
    lines = [_plain(line) for line in toptexts.lines(watch.seen, away, size.columns)]
    if screen:
        print(_fitted(lines, size), end="", flush=True)
    else:
        print("\n".join([*lines, ""]), flush=True)


def _fitted(lines: Sequence[str], size: os.terminal_size) -> str:
    """What replaces the screen in place: as much as there is room for."""
    width, height = size
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"... {len(lines) - height + 2} more lines"]
    return _HOME + "".join(f"{line[:width]}{_REST}\n" for line in lines) + _BELOW


def _plain(line: str) -> str:
    """Names come from others: nothing in them steers the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)
