"""Detection of processes that stand still or starve. The kernel has the state and the counters of each thread.

A process that is starved of its processor or disk wants to run. If all threads of a process sleep, or were stopped, it
does nothing and will not respond to a probe.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

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
