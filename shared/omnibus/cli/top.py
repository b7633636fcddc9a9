"""``omnibus top``: what comes, what runs and how busy it is, again each second."""

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

#: Seconds that ``--once`` looks: heartbeats tell what was computed since the one before.
SAMPLE_SECONDS = 2.0
#: Escape sequences: to the top left, the rest of the line and of the screen cleared, the cursor hidden and shown.
_HOME, _REST, _BELOW, _HIDE, _SHOW = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[?25l", "\x1b[?25h"


async def run_top(options: argparse.Namespace) -> int:
    """Show until Ctrl-C, or ``--once``. Raises ``BusUnavailable`` and ``StoreUnavailable`` when it cannot begin."""
    if not (isfinite(options.every) and 0.1 <= options.every <= 3600):
        raise BadRequest(f"--every {options.every:g}: give seconds between 0.1 and 3600")
    logging.getLogger().addHandler(logging.NullHandler())  # what is away is said on the screen
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
    """Set by Ctrl-C, which is how this ends."""
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
    except BrokenPipeError:  # whoever read has read enough
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
    width = size.columns if screen or sys.stdout.isatty() or "COLUMNS" in os.environ else 0  # programs get it whole
    lines = [_strip_control(line) for line in top_format.top_lines(watch.seen, away, width)]
    if screen:
        print(_fit_to_screen(lines, size), end="", flush=True)
    else:
        print("\n".join([*lines, ""]), flush=True)


def _fit_to_screen(lines: Sequence[str], size: os.terminal_size) -> str:
    """Return the text that replaces the screen in place: as much as there is room for."""
    width, height = size
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"... {len(lines) - height + 2} more lines"]
    return _HOME + "".join(f"{line[:width]}{_REST}\n" for line in lines) + _BELOW


def _strip_control(line: str) -> str:
    """Names come from others: nothing in them steers the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)
