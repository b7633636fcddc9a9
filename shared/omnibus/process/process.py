"""One operating-system process of the supervisor: born, logged, ended with its whole group."""

import asyncio
import os
import signal
from contextlib import suppress

from omnibus.errors import Fatal
from omnibus.process.logs import Log
from omnibus.process.parent_death import die_with_parent
from omnibus.process.spec import ProcessSpec

_PIPE_CLOSE_SECONDS = 2.0  # seconds; a grandchild that left the group may keep the pipe open


class ChildProcess:
    """A running process in a session of its own: Ctrl-C reaches the supervisor alone."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, log: Log, output: int) -> None:
        self.spec = spec
        self._process = process
        self._pump = asyncio.create_task(_copy_output(spec.name, log, output), name=f"log of {spec.name}")

    @classmethod
    async def spawn(cls, spec: ProcessSpec, log: Log) -> "ChildProcess":
        """Start ``spec``. Raises ``Fatal`` when the program cannot be executed."""
        # A pipe of our own: asyncio reports the end of a process only once its pipes are closed, and a
        # grandchild can hold them open for ever.
        output, write_end = os.pipe()
        try:
            return cls(spec, await _start_process(spec, write_end), log, output)
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(write_end)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end; the exit code, or minus the signal that killed it."""
        return await self._process.wait()

    def kill(self) -> None:
        """KILL the process and everything in its group, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Send TERM, and wait for nothing."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    async def end(self) -> int:
        """TERM, then KILL after the spec's grace; nothing of the group is left. The exit code.

        Cancelling does not leave a process behind: it is killed before the cancellation goes on. Ending
        twice is harmless.
        """
        if self._pump.done() and self._process.returncode is not None:
            return self._process.returncode
        try:
            if self._process.returncode is None:
                await self._terminate_gracefully()
        finally:
            self.kill()  # grandchildren too, also when the process ended by itself
        code = await self._process.wait()
        await self._drain_log()
        return code

    async def _terminate_gracefully(self) -> None:
        self.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.spec.grace):
                await self._process.wait()

    async def _drain_log(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PIPE_CLOSE_SECONDS):
                await self._pump


async def _start_process(spec: ProcessSpec, output: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *spec.argv,
            env={**os.environ, **spec.env},
            cwd=spec.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
    except OSError as error:
        raise Fatal(f"cannot start {spec.name}: {error}", executor=spec.name) from error


async def _copy_output(name: str, log: Log, output: int) -> None:
    reader = asyncio.StreamReader()
    file = os.fdopen(output, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    try:
        await log.copy_lines(name, reader)
    finally:
        transport.close()
