"""Limits of the time without progress."""

import asyncio
from collections.abc import Callable

#: Called whenever bytes are received or sent.
Progress = Callable[[], None]

#: Fraction of the limit by which it may be too short, because a new timer for each part of a tensor is not cheap.
_TOLERANCE = 1 / 16


def make_progress(limit: asyncio.Timeout, seconds: float) -> Progress:
    """Return a function that postpones ``limit`` to ``seconds`` after each call.

    The limit may be up to a sixteenth of ``seconds`` early.
    """
    loop = asyncio.get_running_loop()
    moved = loop.time()

    def progress() -> None:
        nonlocal moved
        now = loop.time()
        if now - moved > seconds * _TOLERANCE:
            limit.reschedule(now + seconds)
            moved = now

    return progress
