"""A child process that is started without a copy of this one.

uvloop forks: for as long as the page tables of a gateway are copied it answers nobody. ``subprocess`` shares
them until the child executes, which takes a twentieth of the time.
"""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from typing import Any


class SpawnedProcess:
    """A running process; ``how`` is what ``subprocess.Popen`` takes. Raises ``OSError``."""

    def __init__(self, argv: Sequence[str], **how: Any) -> None:
        self._process = subprocess.Popen(argv, **how)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end; returns its exit code, or minus the signal that killed it. Call it once."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # another system, or an old kernel
            return await asyncio.to_thread(self._process.wait)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._process.wait()
