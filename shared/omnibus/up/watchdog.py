"""Watchdog for hanging processes. It probes each once a second and kills one that is silent for too long.

The limit depends on the threads of the process. A starved process has threads that wait for a processor: that time does
not count. A frozen process stands still.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from omnibus.errors import OmnibusError
from omnibus.process.logs import Log
from omnibus.up.motion import Starvation, Stillness
from omnibus.up.supervisor import Supervisor

#: Probes the process with this id. True if it responds: later silence is a hang. False if no response is expected
#: yet, or any more. It does not return before there is a response.
Probe = Callable[[int], Awaitable[bool]]

_PROBE_SECONDS = 1.0  # between a response and the next probe
_TICK_SECONDS = 0.25
#: Most seconds that one tick counts for. If this process was stopped or starved, so were the others.
_COUNTED_SECONDS = 2 * _TICK_SECONDS
#: Seconds without a response after which the threads of a process are observed.
_LOOK_SECONDS = _PROBE_SECONDS + 2 * _TICK_SECONDS
#: Seconds of standing still that kill a process that never responded: while it starts, foreign code may wait in it.
_STARTING_SECONDS = 30.0


class ProbedProcess:
    """One life of a process. ``answered`` is the time of its last response, in seconds of the watchdog's clock."""

    def __init__(self, pid: int, probe: Probe, clock: Callable[[], float]) -> None:
        self.pid = pid
        self.answered: float | None = None
        self.stillness = Stillness(pid)
        self.starvation = Starvation(pid)
        self._clock = clock
        self._task = asyncio.create_task(self._probe_repeatedly(probe))

    def close(self) -> None:
        """Stop probing, and expect no response."""
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
    """Kills processes with a ``ProcessSpec.alive`` that stop responding.

    A process is killed after ``silent`` seconds without a response, or after ``frozen`` seconds if it stands still. A
    process that has never responded is killed after it has stood still for ``starting`` seconds. The supervisor then
    restarts it as any other that ends. Seconds count only while this process itself runs, and while no thread of the
    silent one waits for a processor.
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
                if now - before > _COUNTED_SECONDS:  # the others may stand still because they wait for this process
                    for life in self._lives.values():
                        life.stillness.forget()
                before = now
                self._kill_silent()
        finally:
            for life in self._lives.values():
                life.close()

    def _update_probes(self) -> None:
        """Probe exactly the processes that run now."""
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
            self._log.write_line(name, f"{reason}: killing and restarting it")
            life.close()
            self._supervisor.kill(name)

    def _silence_reason(self, life: ProbedProcess, blocks: bool) -> str:
        """Return why to kill the process, or an empty text. A process that ``blocks`` may stand still."""
        if life.answered is None:
            still = life.stillness.update(self._now) if math.isfinite(self._frozen) and not blocks else 0.0
            return f"has not begun to answer and stands still for {still:g} s" if still > self._starting else ""
        silent = self._now - life.answered
        if silent <= _LOOK_SECONDS:
            life.starvation.forget()
        elif silent - life.starvation.update(self._now) > self._silent:
            return f"does not answer for {self._silent:g} s"
        if silent <= _LOOK_SECONDS or blocks:
            life.stillness.forget()
        elif life.stillness.update(self._now) > self._frozen - _LOOK_SECONDS:
            return f"does not answer for {silent:.1f} s and stands still"
        return ""
