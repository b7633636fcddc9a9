"""Times at which other programs had the processors, seen by a program that does nothing but sleep and wake up."""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import NamedTuple

#: Seconds that it sleeps, and by which it has to be late for that to be noted as a delay.
SLEEP_SECONDS, NOTED_SECONDS = 0.005, 0.005
#: Prints, once it is ended, how late it was (sorted seconds), and each delay: when it was to wake up, and by how much
#: it was late. Times are monotonic seconds, which all programs of a machine share.
_PROGRAM = f"""
import json, signal, time
late, noted, over = [], [], []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
while not over:
    due = time.monotonic() + {SLEEP_SECONDS}
    time.sleep({SLEEP_SECONDS})
    by = time.monotonic() - due
    late.append(by)
    if by >= {NOTED_SECONDS}:
        noted.append((due, by))
late.sort()
print(json.dumps([late[int(len(late) * 0.99)], late[-1], noted]))
"""


class Delay(NamedTuple):
    """A stretch in which the program was to run and did not."""

    begin: float
    seconds: float


@dataclass(frozen=True)
class MachineLateness:
    """How late the program was woken: at the 99th percentile, at most, and each delay that was noted, in order."""

    p99: float
    most: float
    delays: list[Delay]

    @property
    def milliseconds(self) -> list[int]:
        """The 99th percentile and the most, rounded."""
        return [round(1000 * self.p99), round(1000 * self.most)]

    def seconds_between(self, begin: float, end: float) -> float:
        """Seconds between two moments in which it was late."""
        return sum(max(0.0, min(end, delay.begin + delay.seconds) - max(begin, delay.begin)) for delay in self.delays)


class MachineWatch:
    """The program while it runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> "MachineWatch":
        return cls(await asyncio.create_subprocess_exec(sys.executable, "-c", _PROGRAM, stdout=asyncio.subprocess.PIPE))

    async def stop(self) -> MachineLateness:
        """End it, and read what it has noted."""
        self._process.terminate()
        p99, most, noted = json.loads((await self._process.communicate())[0])
        return MachineLateness(p99, most, [Delay(*each) for each in noted])
