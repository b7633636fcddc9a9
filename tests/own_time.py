"""A clock for promises about seconds that works on busy machines."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

_TICK_SECONDS = 0.01
_MAX_TICK_SECONDS = 2 * _TICK_SECONDS


class OwnTime:
    """Seconds in which this process had a processor when it needed one.

    This is wall time on a quiet machine, and less on a busy one. A task sleeps repeatedly. If a sleep lasts much longer
    than it should, only twice its length counts. For the rest the machine ran others, and so it did for the process
    whose promise is tested.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self) -> None:
        """Count until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            self.seconds += min(now - last, _MAX_TICK_SECONDS)
            last = now


@contextlib.asynccontextmanager
async def own_time() -> AsyncIterator[OwnTime]:
    """Measure own time until the block ends."""
    clock = OwnTime()
    counting = asyncio.create_task(clock.run())
    try:
        yield clock
    finally:
        counting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await counting
