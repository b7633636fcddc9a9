"""Processor seconds of this command's processes, from /proc."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Fields of ``/proc/PID/stat`` after the name: parent, seconds in user and in system mode.
_PARENT, _USER, _SYSTEM = 1, 11, 12


class ProcessTimes:
    """Processor seconds of all processes below this one, at one time. Without /proc, none is known."""

    def __init__(self, seconds: dict[int, float], below: frozenset[int]) -> None:
        self._seconds, self._below = seconds, below

    @classmethod
    def read_all(cls) -> "ProcessTimes":
        seconds, parents = dict[int, float](), dict[int, int]()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # a process may end
                fields = path.read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                parents[pid] = int(fields[_PARENT])
                seconds[pid] = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_SECOND
        below, fresh = set[int](), {os.getpid()}
        while fresh:
            fresh = {pid for pid, parent in parents.items() if parent in fresh} - below
            below |= fresh
        return cls(seconds, frozenset(below))

    def process_seconds(self, pid: int, default: float) -> float:
        """Return the seconds of ``pid``, or ``default`` if they are unknown."""
        return self._seconds.get(pid, default)

    def total_seconds(self, but: Collection[int]) -> float:
        """Return the seconds of all processes below this one without ``but``."""
        return sum(self._seconds[pid] for pid in self._below if pid not in but)
