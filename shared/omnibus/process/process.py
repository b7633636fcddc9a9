"""One child process: starts it, reads its output by line, and ends it with its whole group."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

_PIPE_CLOSE_SECONDS = 2.0  # seconds; a grandchild that left the group may keep the pipe open
_MAX_LINE_BYTES = 64 * 1024  # bytes; a longer line is cut into several

WriteLine = Callable[[str], None]


class ChildProcess:
    """Running process in a separate session: Ctrl-C reaches its parent only.

    ``write_line`` gets each line of its output and of its errors. ``options`` are more arguments of
    ``subprocess.Popen``. Raises ``OSError`` if the program cannot be executed.

    Without ``preexec_fn``, it starts without a copy of the parent's page tables. asyncio and uvloop copy them, and a
    large parent cannot respond during that time.
    """

    def __init__(self, name: str, argv: Sequence[str], write_line: WriteLine, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        output, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(write_end)
        self._exit = _watch_exit(self._process, loop)
        self._copy_lines(name, output, write_line)

    def _copy_lines(self, name: str, output: int, write_line: WriteLine) -> None:
        """Call ``write_line`` for each line of the pipe ``output``."""
        copying = _copy_output(output, write_line)
        self._output = asyncio.get_running_loop().create_task(copying, name=f"log of {name}")

    @property
    def pid(self) -> int:
        """Return the process id, which is also the process group's id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end and return the exit code. It is minus the signal if one killed the process. Its whole group
        has ended too."""
        return await asyncio.shield(self._exit)

    def kill(self) -> None:
        """KILL the process and everything in its group, at once."""
        if not self._exit.done():
            kill_group(self.pid)

    def terminate(self) -> None:
        """Send TERM without waiting."""
        if not self._exit.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    async def end(self, grace: float) -> int:
        """Send TERM, then KILL after ``grace`` seconds, and return the exit code. The whole group has ended after that.

        If this is cancelled, the process is killed before the cancellation continues. Ending twice is harmless.
        """
        self.terminate()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self.wait()
        finally:
            self.kill()
        code = await self.wait()
        await self.drain_output()
        return code

    async def drain_output(self) -> None:
        """Wait for the last lines of an ended process. The wait is limited to some seconds."""
        await asyncio.wait({self._output}, timeout=_PIPE_CLOSE_SECONDS)
        self._output.cancel()


async def copy_lines(reader: asyncio.StreamReader, write_line: WriteLine) -> None:
    """Call ``write_line`` for each line of ``reader`` until it ends."""
    rest = b""
    while block := await reader.read(_MAX_LINE_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            write_line(_decode_line(line))
    if rest:
        write_line(_decode_line(rest))


async def _copy_output(output: int, write_line: WriteLine) -> None:
    reader = asyncio.StreamReader()
    file = os.fdopen(output, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    try:
        await copy_lines(reader, write_line)
    finally:
        transport.close()


def _watch_exit(process: "subprocess.Popen[bytes]", loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
    """Return a future of the exit code of ``process``. It is set after the process and its group have ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # another system, or an old kernel
        waiting = loop.run_in_executor(None, process.wait)
        waiting.add_done_callback(lambda _: kill_group(process.pid))
        return waiting
    code: asyncio.Future[int] = loop.create_future()

    def on_exit() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        kill_group(process.pid)  # its children: no other process can have this id before ``wait``
        code.set_result(process.wait())

    loop.add_reader(descriptor, on_exit)
    return code


def kill_group(pid: int) -> None:
    """KILL all processes of the group ``pid``. Harmless if there are none."""
    with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, if only zombies are left
        os.killpg(pid, signal.SIGKILL)


def _decode_line(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
