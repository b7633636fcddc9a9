"""Processes that hang: each is asked once a second, and killed when it says nothing for long.

How long depends on what it does meanwhile: one that is starved wants to run, one that stands still is frozen.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from omnibus.errors import OmnibusError
from omnibus.process.logs import Log
from omnibus.up.motion import Stillness
from omnibus.up.supervisor import Supervisor

#: Asks the process with this id. True: it answers, so silence is a hang from now on. False: nothing is expected of it
#: yet, or no more. It does not return while there is no answer.
Probe = Callable[[int], Awaitable[bool]]

_PROBE_SECONDS = 1.0  # between an answer and the next question
_TICK_SECONDS = 0.25
#: The most that one tick counts for. When this process itself was stopped or starved, so were the others.
_COUNTED_SECONDS = 2 * _TICK_SECONDS
#: Without an answer, from when on it is looked at what a process does: the question has been there for a while.
_LOOK_SECONDS = _PROBE_SECONDS + 2 * _TICK_SECONDS
#: For which a process that has never answered has to stand still: while it starts, code of others may wait in it.
_STARTING_SECONDS = 30.0


class ProbedProcess:
    """One life of a process. ``answered`` is when it last did, in seconds of the watchdog's clock."""

    def __init__(self, pid: int, probe: Probe, clock: Callable[[], float]) -> None:
        self.pid = pid
        self.answered: float | None = None
        self.stillness = Stillness(pid)
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

    ``frozen`` seconds are enough where it stands still, and ``starting`` seconds of standing still where it has never
    answered. The supervisor then restarts it as any other that ends. Seconds count only while this process itself runs.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        log: Log,
        silent: float,
        frozen: float = math.inf,
        starting: float = _STARTING_SECONDS,
    ) -> None:
        self._supervisor = supervisor
        self._log = log
        self._silent = silent
        self._frozen = frozen
        self._starting = starting
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
                self._update_probes()
                if now - before > _COUNTED_SECONDS:  # then others may stand still because they wait for this process
                    for life in self._lives.values():
                        life.stillness.forget()
                before = now
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
            reason = self._silence_reason(life, self._supervisor.specs[name].blocks)
            if not reason:
                continue
            self._log.write_line(name, f"{reason}: it is killed and started again")
            life.close()
            self._supervisor.kill(name)

    def _silence_reason(self, life: ProbedProcess, blocks: bool) -> str:
        """Return why the process is to be killed, empty when it is not. One that ``blocks`` may well stand still."""
        if life.answered is None:
            still = life.stillness.update(self._now) if math.isfinite(self._frozen) and not blocks else 0.0
            return f"has not begun to answer and stands still for {still:g} s" if still > self._starting else ""
        silent = self._now - life.answered
        if silent > self._silent:
            return f"does not answer for {self._silent:g} s"
        if silent <= _LOOK_SECONDS or blocks:
            life.stillness.forget()
        elif life.stillness.update(self._now) > self._frozen - _LOOK_SECONDS:
            return f"does not answer for {silent:.1f} s and stands still"
        return ""
