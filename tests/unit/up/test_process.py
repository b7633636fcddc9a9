"""A child's end is detected without a thread and stops its group; its output is read to the last line."""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from omnibus.process.process import ChildProcess

#: Prints its id and that of its child, and ends with code 7 at TERM.
PARENT = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""
#: Ignores TERM.
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def start_child(program: str) -> tuple[ChildProcess, list[str]]:
    lines: list[str] = []
    return ChildProcess("a test", (sys.executable, "-c", program), lines.append), lines


async def first_line(lines: list[str]) -> str:
    async with asyncio.timeout(30):
        while not lines:
            await asyncio.sleep(0.01)
    return lines[0]


def is_running(pid: int) -> bool:
    """Return True if the process runs; False for a zombie too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while is_running(pid):
            await asyncio.sleep(0.01)


async def test_its_end_is_awaited_while_everything_else_goes_on():
    child, lines = start_child(PARENT)
    await first_line(lines)
    waiting = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    threads = threading.active_count()

    assert not waiting.done()
    child.terminate()

    assert await waiting == 7
    assert await child.wait() == 7
    assert threading.active_count() == threads


async def test_a_signal_is_told_as_its_negative():
    child, _ = start_child(PARENT)

    child.kill()

    assert await child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("watched", [True, False])
async def test_what_it_started_ends_with_it(monkeypatch: pytest.MonkeyPatch, watched: bool):
    if not watched:  # another system, or an old kernel
        monkeypatch.delattr(os, "pidfd_open")
    child, lines = start_child(PARENT)
    grandchild = int(await first_line(lines))

    child.terminate()

    assert await child.wait() == 7
    await until_gone(grandchild)


async def test_ending_takes_its_last_lines_along_and_is_harmless_twice():
    child, lines = start_child("print('first'); print('last', end='')")

    assert await child.wait() == 0
    assert [await child.end(5.0), await child.end(5.0)] == [0, 0]

    assert lines == ["first", "last"]


async def test_one_that_ignores_its_end_is_killed_after_its_grace():
    child, lines = start_child(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    await first_line(lines)

    assert await child.end(0.05) == -signal.SIGKILL


async def test_a_cancelled_end_leaves_no_process_behind():
    child, lines = start_child(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    await first_line(lines)
    ending = asyncio.create_task(child.end(600.0))
    await asyncio.sleep(0)

    ending.cancel()

    assert await child.wait() == -signal.SIGKILL
    assert ending.cancelled()


async def test_what_cannot_be_started_is_an_os_error():
    with pytest.raises(OSError, match="nothing"):
        ChildProcess("a test", ("/nothing/here",), print)
