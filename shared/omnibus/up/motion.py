"""Processes that stand still: the kernel says of each thread how often it ran, and whether it wants to.

A process that is starved of its processor, or of a disk, wants to run. One whose threads all sleep, or were stopped,
does nothing, and will not answer what it was asked meanwhile.
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
#: In the command line of ``omnibus.up.fork_client``.
_PROXY = b"/up/fork_client.py\0"
_PIDFD = re.compile(rb"^Pid:\s+(\d+)", re.MULTILINE)


class ThreadStates(NamedTuple):
    """All threads of a process at one moment. ``switches``: how often each of them stopped running so far, in all."""

    wants_to_run: bool
    switches: int


def read_thread_states(pid: int) -> ThreadStates | None:
    """The threads of ``pid``; None where the kernel does not say, or it has just ended."""
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


def find_forked_pid(pid: int) -> int:
    """The process that the proxy ``pid`` of ``omnibus.up.fork_client`` stands for; ``pid`` itself for any other."""
    try:
        if _PROXY not in (_PROC / str(pid) / "cmdline").read_bytes():
            return pid  # it may well watch others: a gateway does so with its apps
        for descriptor in os.scandir(_PROC / str(pid) / "fdinfo"):
            found = _PIDFD.search(Path(descriptor.path).read_bytes())
            if found is not None and int(found[1]) > 0:
                return int(found[1])
    except OSError:
        pass
    return pid


class Stillness:
    """Since when the process ``pid`` stands still, as far as updates tell."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since = 0.0
        self._before: ThreadStates | None = None

    def update(self, now: float) -> float:
        """Seconds for which no thread has run or wanted to, so far; ``now`` is of a clock in seconds."""
        states = read_thread_states(find_forked_pid(self._pid))
        if states is None or states.wants_to_run or states != self._before:
            self._since = now
        self._before = states
        return now - self._since

    def forget(self) -> None:
        """Begin anew with the next update."""
        self._before = None
