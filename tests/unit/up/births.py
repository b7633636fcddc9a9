"""A fork server of small modules, and its proxies."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from omnibus.process.spec import PACKAGE_PATH
from omnibus.process.tuning import die_with_parent
from omnibus.up import fork_client
from tests.unit.up.programs import WITHIN

SHARED_MODULE = """
import os, numpy
imported_by = os.getpid()
"""
TELLS = """
import json, os, random, sys, numpy, shared_module
json.dump({
    "argv": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd(), "path": sys.path[0], "in": sys.stdin.read(),
    "pid": os.getpid(), "group": os.getpgid(0), "imported_by": shared_module.imported_by, "main": __name__,
    "descriptors": sorted(os.listdir("/proc/self/fd")), "dice": [random.random(), numpy.random.random()],
}, sys.stdout)
print("a complaint", file=sys.stderr)
"""
SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
#: Starts a child, prints both ids, and stays with the argument "stays".
FAMILY = """
import os, subprocess, sys, time
other = subprocess.Popen(["sleep", "1000"])
print(os.getpid(), other.pid, flush=True)
if sys.argv[1] == "stays":
    time.sleep(1000)
"""
HANDLES = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: sys.exit(10 + number))
print("up", flush=True)
time.sleep(1000)
"""
#: Prints its id repeatedly, one per line.
WORKS = """
import os, time
while True:
    print(os.getpid(), flush=True)
    time.sleep(0.05)
"""
#: Never returns to Python code, and ignores all signals it can.
HANGS = """
import os, signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGIO):
    signal.signal(number, signal.SIG_IGN)
print(os.getpid(), flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
signal.sigwait([signal.SIGUSR1])
"""
#: A thread with the name of jemalloc's own.
ALLOCATES = """
import ctypes, threading, time
def run():
    ctypes.CDLL(None).prctl(15, b"jemalloc_bg_thd", 0, 0, 0)
    named.set()
    time.sleep(1000)
named = threading.Event()
threading.Thread(target=run, daemon=True).start()
named.wait(10)
"""
MODULES = {
    "shared_module": SHARED_MODULE,
    "tells": TELLS,
    "returns": "",
    "exits": "import sys; sys.exit(int(sys.argv[1]))",
    "exits_with_text": "import sys; sys.exit('no such model')",
    "raises": "raise LookupError('lost')",
    "kills_itself": "import os, sys; os.kill(os.getpid(), int(sys.argv[1]))",
    "sleeps": SLEEPS,
    "family": FAMILY,
    "handles": HANDLES,
    "works": WORKS,
    "hangs": HANGS,
    "allocates": ALLOCATES,
    "threads": "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
}


class ForkServer:
    """A running fork_server for ``MODULES``, and its proxies."""

    def __init__(self, directory: Path, *imports: str) -> None:
        self.directory = directory
        for name, text in MODULES.items():
            (directory / f"{name}.py").write_text(text)
        self.socket = str(directory / "fork-server.sock")
        self._command = (
            sys.executable,
            "-u",
            "-m",
            "omnibus.up.fork_server",
            self.socket,
            *(imports or ["shared_module"]),
        )
        self.environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{directory}:{PACKAGE_PATH}"}

    @contextlib.contextmanager
    def run_server(self) -> Iterator["subprocess.Popen[str]"]:
        with start_process(self._command, cwd=self.directory, env=self.environ) as process:
            asyncio.run(asyncio.wait_for(self._wait_for_listener(), WITHIN))
            yield process

    @contextlib.asynccontextmanager
    async def open_server(self) -> AsyncIterator["subprocess.Popen[str]"]:
        """Run the server in a running event loop."""
        with start_process(self._command, cwd=self.directory, env=self.environ) as process:
            await asyncio.wait_for(self._wait_for_listener(), WITHIN)
            yield process

    async def _wait_for_listener(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(self.socket)
                return writer.close()
            await asyncio.sleep(0.01)

    def read_error(self) -> str:
        """Return the error of a fork server that cannot start."""
        end = subprocess.run(
            self._command,
            cwd=self.directory,
            env=self.environ,
            text=True,
            capture_output=True,
            check=False,
            timeout=WITHIN,
        )
        assert end.returncode == 1
        return end.stderr

    def run_proxy(
        self, module: str, *arguments: str, **options: Any
    ) -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
        """Run a proxy of ``module`` until the block ends."""
        return start_process(fork_client.fork_server_command(self.socket, module, *arguments), **options)

    def run(
        self,
        module: str,
        *arguments: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        command = fork_client.fork_server_command(self.socket, module, *arguments)
        return subprocess.run(
            command, input=stdin, env=env, cwd=cwd, text=True, capture_output=True, check=False, timeout=WITHIN
        )


@contextlib.contextmanager
def start_process(command: tuple[str, ...], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    process: subprocess.Popen[str] = subprocess.Popen(
        command, stdout=pipe, text=True, preexec_fn=die_with_parent(), **options
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_pids(process: "subprocess.Popen[str]") -> list[int]:
    """Return the process ids on the next line."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]
