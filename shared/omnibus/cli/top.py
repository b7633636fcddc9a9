"""``omnibus top``: what comes, what runs and how busy it is, again each second."""

import argparse
import asyncio
import json
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
from omnibus.cluster.monitor import Watch, told
from omnibus.errors import BadRequest
from omnibus.store import Store

#: Seconds that ``--once`` looks: heartbeats tell what was computed since the one before.
LOOK = 2.0
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
        bus = await invocations.connect(options)
        try:
            async with Watch(store, bus).following() as watch, _interrupted() as stop:
                await _show(watch, options, stop)
        finally:
            await bus.drain()
    finally:
        await store.close()
    return 0


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
        print(json.dumps(told(watch.seen, away)), flush=True)
        return
    size = shutil.get_terminal_size((100, 30))
    lines = [_plain(line) for line in top_format.lines(watch.seen, away, size.columns)]
    if screen:
        print(_fitted(lines, size), end="", flush=True)
    else:
        print("\n".join([*lines, ""]), flush=True)


def _fitted(lines: Sequence[str], size: os.terminal_size) -> str:
    """Return the text that replaces the screen in place: as much as there is room for."""
    width, height = size
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"... {len(lines) - height + 2} more lines"]
    return _HOME + "".join(f"{line[:width]}{_REST}\n" for line in lines) + _BELOW


def _plain(line: str) -> str:
    """Names come from others: nothing in them steers the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)
