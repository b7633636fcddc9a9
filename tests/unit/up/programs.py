"""Small real programs for the supervisor, and a log to wait on."""

import asyncio
import io
import re
import sys
import time
from collections.abc import Callable, Iterable

import psutil

from omnibus.process.logs import Log
from omnibus.process.spec import ProcessSpec

WITHIN = 20.0  # seconds; far more than needed, for noisy machines
SLEEPS = "import time; print('up', flush=True); time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
#: Reports the signal to stop, then stays until the pipe ``GATE`` is opened.
DRAINS = """
import os, signal, sys
def drain(*_):
    print("draining", flush=True)
    open(os.environ["GATE"]).read()
    sys.exit()
signal.signal(signal.SIGTERM, drain)
print("up", flush=True)
while True:
    signal.pause()
"""


class Lines(io.StringIO):
    """A stream whose lines can be awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._wrote = asyncio.Event()

    def write(self, text: str) -> int:
        self._wrote.set()
        return super().write(text)

    async def until(self, pattern: str) -> None:
        """Wait until some line matches ``pattern``."""
        async with asyncio.timeout(WITHIN):
            while not re.search(pattern, self.getvalue(), re.MULTILINE):
                self._wrote.clear()
                await self._wrote.wait()


def log_to(lines: Lines) -> Log:
    return Log(lines, {"NO_COLOR": "1"})


def python_code(name: str, code: str, lines: Lines | None = None, **fields: object) -> ProcessSpec:
    """Return a process that runs ``code``. With ``lines``, it is ready once it has printed "up"."""
    if lines is not None:
        fields["ready"] = lambda: lines.until(rf"^{name} *\| up")
    return ProcessSpec(name, (sys.executable, "-c", code), **fields)  # type: ignore[arg-type]


def all_gone(pids: Iterable[int]) -> bool:
    """Wait until none of ``pids`` is alive. A zombie is dead; init may take its time to reap it."""
    waited_for = list(pids)
    return becomes_true(lambda: not any(is_alive(pid) for pid in waited_for))


def becomes_true(holds: Callable[[], bool]) -> bool:
    """Wait until ``holds()``, ``WITHIN`` seconds at most, and return whether it does."""
    give_up = time.monotonic() + WITHIN
    while not holds():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
