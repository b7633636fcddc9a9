"""Worker processes start without a fork of the gateway, and their end is noticed without a thread."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from services.gateway.apps.subprocess import SpawnedProcess

QUIET: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
#: Ends with code 7 when its input ends.
WAITS = (sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)")


async def test_its_end_is_awaited_while_everything_else_goes_on():
    child = SpawnedProcess(WAITS, **QUIET)
    waiting = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    threads = threading.active_count()

    assert not waiting.done()
    child._process.stdin.close()

    assert await waiting == 7
    assert threading.active_count() == threads


async def test_a_signal_is_told_as_its_negative():
    child = SpawnedProcess(WAITS, **QUIET)

    os.kill(child.pid, signal.SIGKILL)

    assert await child.wait() == -signal.SIGKILL


async def test_it_is_awaited_on_systems_that_cannot_watch_a_process_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "pidfd_open")
    child = SpawnedProcess(WAITS, **QUIET)

    child._process.stdin.close()

    assert await child.wait() == 7


def test_what_cannot_be_started_is_an_os_error():
    with pytest.raises(OSError, match="nothing"):
        SpawnedProcess(("/nothing/here",), **QUIET)
