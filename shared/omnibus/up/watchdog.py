"""Watchdog for hanging processes. It probes each once a second and kills one that is silent for too long.

The limit depends on the threads of the process. A starved process has threads that wait for a processor: that time does
not count. A frozen process stands still.

Detection of processes that stand still or starve. The kernel has the state and the counters of each thread.

A process that is starved of its processor or disk wants to run. If all threads of a process sleep, or were stopped, it
does nothing and will not respond to a probe.
"""

import asyncio
import math
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from omnibus.errors import OmnibusError
from omnibus.process.logs import Log
from omnibus.up.supervisor import Supervisor

_PROC = Path("/proc")
#: States of a thread that runs or waits for a processor, and of one that waits for a disk.
_WANTING = (b"R", b"D")
_STATE = re.compile(rb"^State:\s+(\S)", re.MULTILINE)
_SWITCHES = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
#: Part of the command line of ``omnibus.up.fork_client``.
_PROXY = b"/up/fork_client.py\0"
_PIDFD = re.compile(rb"^Pid:\s+(\d+)", re.MULTILINE)


class ThreadStates(NamedTuple):
    """States of all threads of a process at one moment. ``switches`` is the total number of times that they stopped
    running."""

    wants_to_run: bool
    switches: int


def read_thread_states(pid: int) -> ThreadStates | None:
    """Return the threads of ``pid``. Returns None if the kernel has no counters or the process has ended."""
    wants, switches = False, 0
    try:
        for thread in os.scandir(_PROC / str(pid) / "task"):
            text = Path(thread.path, "status").read_bytes()
            state, counts = _STATE.search(text), _SWITCHES.findall(text)
            if state is None or not counts:
                return None
            wants = wants or state[1] in _WANTING
            switches += sum(map(int, counts))
    except OSError:
        return None
    return ThreadStates(wants, switches)


def read_runnable_threads(pid: int) -> dict[str, int]:
    """Return the ns that each thread of ``pid`` has run, for those that run or want to now."""
    times = {}
    try:
        for thread in os.scandir(_PROC / str(pid) / "task"):
            state = _STATE.search(Path(thread.path, "status").read_bytes())
            if state is not None and state[1] in _WANTING:
                times[thread.name] = int(Path(thread.path, "schedstat").read_bytes().split()[0])
    except (OSError, IndexError):
        return {}
    return times


def find_forked_pid(pid: int) -> int:
    """Return the process that ``omnibus.up.fork_client`` stands for. ``pid`` is that of the proxy; for any other
    process, it is returned."""
    try:
        if _PROXY not in (_PROC / str(pid) / "cmdline").read_bytes():
            return pid  # it may watch other processes, as a gateway does with its apps
        for descriptor in os.scandir(_PROC / str(pid) / "fdinfo"):
            found = _PIDFD.search(Path(descriptor.path).read_bytes())
            if found is not None and int(found[1]) > 0:
                return int(found[1])
    except OSError:
        pass
    return pid


class Starvation:
    """Time for which the process ``pid`` waited for a processor or disk.

    Any thread counts: an event loop may wait for a lock of a thread that starves.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seconds = self._updated = 0.0
        self._before: dict[str, int] = {}

    def update(self, now: float) -> float:
        """Return the seconds since the last ``forget``. ``now`` is of a clock in seconds."""
        times, elapsed = read_runnable_threads(find_forked_pid(self._pid)), now - self._updated
        ran = [times[thread] - self._before[thread] for thread in times.keys() & self._before.keys()]
        if ran and min(ran) < elapsed * 1e9 / 2:
            self._seconds += elapsed
        self._before, self._updated = times, now
        return self._seconds

    def forget(self) -> None:
        """Restart the measurement with the next update."""
        self._seconds, self._before = 0.0, {}


class Stillness:
    """Time for which the process ``pid`` stands still."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since = 0.0
        self._before: ThreadStates | None = None

    def update(self, now: float) -> float:
        """Return the seconds for which no thread has run or wanted to. ``now`` is of a clock in seconds."""
        states = read_thread_states(find_forked_pid(self._pid))
        if states is None or states.wants_to_run or states != self._before:
            self._since = now
        self._before = states
        return now - self._since

    def forget(self) -> None:
        """Restart the measurement with the next update."""
        self._before = None


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
