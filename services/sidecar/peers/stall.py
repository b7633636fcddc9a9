"""Limits of the time without a byte or an answer."""

import asyncio
from collections.abc import Callable

#: Called whenever bytes came or left.
Progress = Callable[[], None]

#: Part of the limit by which it may be too short: a new timer for each part of a tensor is not cheap.
_TOLERANCE = 1 / 16


def make_progress(limit: asyncio.Timeout, seconds: float) -> Progress:
    """A function that puts ``limit`` off to ``seconds`` from the call, or to a sixteenth of them less."""
    loop = asyncio.get_running_loop()
    moved = loop.time()

    def progress() -> None:
        nonlocal moved
        now = loop.time()
        if now - moved > seconds * _TOLERANCE:
            limit.reschedule(now + seconds)
            moved = now

    return progress
