"""Detects frozen workers: they do not answer pings, and use no processor time."""

import asyncio
import sys
import time
from collections.abc import Callable
from math import ceil

#: Seconds of processor time below which a process counts as frozen.
_IDLE_CPU_SECONDS = 0.001


class FreezeDetector:
    """Checks process ``pid`` with ``ping``; ``record_pong`` is called for each answer.

    A worker that computes in its event loop does not answer either, but is not frozen: its requests end by their
    deadlines.
    """

    def __init__(self, pid: int, ping: Callable[[], None]) -> None:
        self._pid = pid
        self._ping = ping
        self._answered = True

    def record_pong(self) -> None:
        self._answered = True

    async def wait_until_frozen(self, exit_event: asyncio.Event, ping_seconds: float, answer_within: float) -> bool:
        """Ping every ``ping_seconds`` until the process is ``exit_event``; return True as soon as it is frozen.

        Frozen means that it neither answered nor computed for ``answer_within`` seconds. This counts pings, not
        seconds: a gateway that was frozen itself must not attribute that to the worker.
        """
        most, missed_count, cpu_used = ceil(answer_within / ping_seconds), 0, 0.0
        while not await _wait_for_event(exit_event, ping_seconds):
            if self._answered:
                missed_count, cpu_used = 0, cpu_seconds(self._pid)
            elif (missed_count := missed_count + 1) >= most:
                if cpu_seconds(self._pid) - cpu_used < _IDLE_CPU_SECONDS:
                    return True
                missed_count, cpu_used = 0, cpu_seconds(self._pid)
            self._answered = False
            self._ping()
        return False


async def _wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for ``event``; return False after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process; without support, the current time."""
    if sys.platform != "linux":
        return time.monotonic()
    try:
        return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it
    except OSError:  # it has ended
        return time.monotonic()
