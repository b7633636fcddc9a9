"""``omnibus top``: arrivals, executors and their load, refreshed each second."""

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from math import isfinite

from omnibus.cli import invocations, plans
from omnibus.cli.format import top as top_format
from omnibus.cli.output import print_json
from omnibus.cluster.monitor import Watch, state_values
from omnibus.errors import BadRequest
from omnibus.store import Store

#: Seconds that ``--once`` observes: a heartbeat reports the work since the one before.
SAMPLE_SECONDS = 2.0
#: Escape sequences: to the top left, the rest of the line and of the screen cleared, the cursor hidden and shown.
_HOME, _REST, _BELOW, _HIDE, _SHOW = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[?25l", "\x1b[?25h"


async def run_top(options: argparse.Namespace) -> int:
    """Show the state until Ctrl-C, or once with ``--once``. Raises ``BusUnavailable`` and ``StoreUnavailable`` if it
    cannot start."""
    if not (isfinite(options.every) and 0.1 <= options.every <= 3600):
        raise BadRequest(f"--every {options.every:g}: seconds must be between 0.1 and 3600")
    logging.getLogger().addHandler(logging.NullHandler())  # the screen shows unreachable services
    store = Store(plans.store_settings(options))
    try:
        await store.plan_state()
        bus = await invocations.connect_bus(options)
        try:
            async with Watch(store, bus).following() as watch, _interrupt_event() as stop:
                await _show_updates(watch, options, stop)
        finally:
            await bus.drain()
    finally:
        await store.close()
    return 0


@asynccontextmanager
async def _interrupt_event() -> AsyncIterator[asyncio.Event]:
    """Yield an event that Ctrl-C sets."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _show_updates(watch: Watch, options: argparse.Namespace, stop: asyncio.Event) -> None:
    screen = sys.stdout.isatty() and not options.once and not options.json
    watch.poll_presence()
    await _wait_for_stop(
        stop, max(SAMPLE_SECONDS, options.every) if options.once else min(SAMPLE_SECONDS, options.every)
    )
    try:
        if screen:
            print(_HIDE, end="")
        while not stop.is_set():
            _print_state(watch, options.json, screen)
            if options.once:
                return
            await _wait_for_stop(stop, options.every)
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if screen:
            print(_SHOW, flush=True)


async def _wait_for_stop(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _print_state(watch: Watch, as_json: bool, screen: bool) -> None:
    away = watch.poll_presence()
    if as_json:
        print_json(state_values(watch.seen, away))
        return
    size = shutil.get_terminal_size((100, 30))
    width = size.columns if screen or sys.stdout.isatty() or "COLUMNS" in os.environ else 0  # programs get full lines
    lines = [_strip_control(line) for line in top_format.top_lines(watch.seen, away, width)]
    if screen:
        print(_fit_to_screen(lines, size), end="", flush=True)
    else:
        print("\n".join([*lines, ""]), flush=True)


def _fit_to_screen(lines: Sequence[str], size: os.terminal_size) -> str:
    """Return the text that replaces the screen, cut to its size."""
    width, height = size
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"... {len(lines) - height + 2} more lines"]
    return _HOME + "".join(f"{line[:width]}{_REST}\n" for line in lines) + _BELOW


def _strip_control(line: str) -> str:
    """Replace control characters. Names come from other systems and must not control the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)
