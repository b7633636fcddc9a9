"""Processes that hang: each is asked once a second, and killed when it says nothing for long."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from omnibus.errors import OmnibusError
from omnibus.process.logs import Log
from omnibus.up.supervisor import Supervisor

#: Asks the process with this id. True: it answers, so silence is a hang from now on. False: nothing is expected of it
#: yet, or no more. It does not return while there is no answer.
Probe = Callable[[int], Awaitable[bool]]

_PROBE_SECONDS = 1.0  # between an answer and the next question
_TICK_SECONDS = 0.25
#: The most that one tick counts for. When this process itself was stopped or starved, so were the others.
_COUNTED_SECONDS = 2 * _TICK_SECONDS


class ProbedProcess:
    """One life of a process. ``answered`` is when it last did, in seconds of the watchdog's clock."""

    def __init__(self, pid: int, probe: Probe, clock: Callable[[], float]) -> None:
        self.pid = pid
        self.answered: float | None = None
        self._clock = clock
        self._task = asyncio.create_task(self._probe_repeatedly(probe))

    def close(self) -> None:
        """Ask no more, and expect nothing any more."""
        self._task.cancel()
        self.answered = None

    async def _probe_repeatedly(self, probe: Probe) -> None:
        while True:
            try:
                expected = await probe(self.pid)
            except (OmnibusError, OSError):
                expected = False
            self.answered = self._clock() if expected else None
            await asyncio.sleep(_PROBE_SECONDS)


class Watchdog:
    """Kills each process with a ``ProcessSpec.alive`` that has answered and is silent for ``silent`` seconds.

    The supervisor then restarts it as any other that ends. Seconds count only while this process itself runs.
    """

    def __init__(self, supervisor: Supervisor, log: Log, silent: float) -> None:
        self._supervisor = supervisor
        self._log = log
        self._silent = silent
        self._lives: dict[str, ProbedProcess] = {}
        self._now = 0.0

    async def run(self) -> None:
        """Watch until this is cancelled."""
        before = time.monotonic()
        try:
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                now = time.monotonic()
                self._now += min(now - before, _COUNTED_SECONDS)
                before = now
                self._update_probes()
                self._kill_silent()
        finally:
            for life in self._lives.values():
                life.close()

    def _update_probes(self) -> None:
        """Ask those that run now, and nobody else."""
        pids, specs = self._supervisor.pids, self._supervisor.specs
        for name, life in tuple(self._lives.items()):
            if pids.get(name) != life.pid:
                life.close()
                del self._lives[name]
        for name in pids.keys() & specs.keys() - self._lives.keys():
            probe = specs[name].alive
            if probe is not None:
                self._lives[name] = ProbedProcess(pids[name], probe, lambda: self._now)

    def _kill_silent(self) -> None:
        for name, life in self._lives.items():
            if life.answered is None or self._now - life.answered <= self._silent:
                continue
            self._log.write_line(name, f"does not answer for {self._silent:g} s: it is killed and started again")
            life.close()
            self._supervisor.kill(name)
