"""Times at which other programs had the processors.

A separate program reads the kernel's counters of each watched thread (``/proc/PID/task/TID/schedstat``). They contain
how long it ran, and how long it was ready but had no processor. The program also records how late it was woken itself.
"""

import asyncio
import json
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from omnibus.process.tuning import die_with_parent

#: Seconds between two looks, and looks between two searches for threads that have begun.
LOOK_SECONDS, SEARCH_LOOKS = 0.01, 50
#: Prints, once it is ended, how late it was (sorted seconds), the times of its looks (monotonic seconds, which all
#: programs of a machine share), and of each thread the seconds that it had waited, and run, by then.
_PROGRAM = f"""
import json, os, signal, sys, time
threads, pids = {{}}, json.loads(sys.argv[1])
late, looks, waited, ran, over = [], [], {{}}, {{}}, []
def find_threads():
    for name, pid in pids.items():
        for thread in os.listdir(f"/proc/{{pid}}/task") if os.path.isdir(f"/proc/{{pid}}/task") else ():
            key = f"{{name}}/{{thread}}"
            if key not in threads:
                threads[key] = f"/proc/{{pid}}/task/{{thread}}/schedstat"
                waited[key], ran[key] = [0.0] * len(looks), [0.0] * len(looks)
find_threads()
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
while not over:
    due = time.monotonic() + {LOOK_SECONDS}
    time.sleep({LOOK_SECONDS})
    late.append(time.monotonic() - due)
    if not len(looks) % {SEARCH_LOOKS}:
        find_threads()
    looks.append(time.monotonic())
    for name, path in threads.items():
        try:
            with open(path) as file:
                for counted, text in zip((ran, waited), file.read().split()):
                    counted[name].append(int(text) / 1e9)
        except OSError:
            for counted in (ran, waited):
                counted[name].append(counted[name][-1] if counted[name] else 0.0)
late.sort()
print(json.dumps([late[int(len(late) * 0.99)], late[-1], looks, waited, ran]))
"""


@dataclass(frozen=True)
class MachineWaits:
    """Processor waits of watched threads.

    ``waited`` are the seconds for which each thread (``name/number``) had waited for a processor at each of ``looks``;
    ``ran`` those for which it had run. ``late_p99`` and ``late_most`` are how late the watching program was woken.
    """

    looks: list[float]
    waited: Mapping[str, list[float]]
    late_p99: float = 0.0
    late_most: float = 0.0
    ran: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def late_milliseconds(self) -> list[int]:
        return [round(1000 * self.late_p99), round(1000 * self.late_most)]

    def seconds_between(self, names: Iterable[str], begin: float, end: float) -> float:
        """Seconds between two moments for which processes ``names`` waited for a processor.

        The waits are summed over the processes. Each process counts with its thread that waited longest.
        """
        return sum(self._largest_gain(self.waited, name, begin, end) for name in names)

    def ran_between(self, name: str, begin: float, end: float) -> float:
        """Seconds for which process ``name`` ran between two moments.

        Its thread that ran longest counts.
        """
        return self._largest_gain(self.ran, name, begin, end)

    def _largest_gain(self, counted: Mapping[str, list[float]], name: str, begin: float, end: float) -> float:
        """Largest increase of ``counts`` among the threads of ``name`` around two moments."""
        first = max(0, bisect_right(self.looks, begin) - 1)
        last = min(bisect_right(self.looks, end), len(self.looks) - 1)
        gains = (each[last] - each[first] for key, each in counted.items() if key.startswith(f"{name}/"))
        return max(gains, default=0.0)


class MachineWatch:
    """The program while it runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, pids: Mapping[str, int] | None = None) -> "MachineWatch":
        """Start it; ``pids`` are the processes that are watched, by name."""
        command = [sys.executable, "-c", _PROGRAM, json.dumps(dict(pids or {}))]
        pipe, dies = asyncio.subprocess.PIPE, die_with_parent()
        return cls(await asyncio.create_subprocess_exec(*command, stdout=pipe, limit=1 << 28, preexec_fn=dies))

    async def stop(self) -> MachineWaits:
        """Stop the program and read its records."""
        self._process.terminate()
        p99, most, looks, waits, ran = json.loads((await self._process.communicate())[0])
        return MachineWaits(looks, waits, p99, most, ran)
