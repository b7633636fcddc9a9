"""Keeper of one running process: start, readiness, restart with backoff, end.

Restarts of processes: the loop, its pauses, and the limit after which a process has failed for good.
"""

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from omnibus.errors import BadRequest, DeadlineExceeded, Fatal, OmnibusError
from omnibus.process.logs import Log
from omnibus.process.process import ChildProcess, WriteLine
from omnibus.process.spec import EXIT_MISCONFIGURED, ProcessSpec
from omnibus.process.tuning import die_with_parent

Life = TypeVar("Life")


@dataclass(frozen=True)
class RestartPolicy:
    """Pauses between restarts, in seconds.

    A pause is ``first`` times ``factor`` per restart, at most ``longest``. After a life of ``healthy`` seconds, the
    pauses start from ``first`` again. A process that has not served yet may be restarted ``limit`` times within
    ``window``. Each pause is shorter by a random share of up to ``jitter``, so that processes that end together do not
    start together.
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    healthy: float = 10.0
    limit: int = 5
    window: float = 60.0
    jitter: float = 0.1


class Backoff:
    """Restarts of one process."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._restarts: deque[float] = deque()
        self._streak = 0

    @property
    def exhausted(self) -> bool:
        """Return whether a process that never served has no restarts left."""
        return len(self._restarts) > self._policy.limit

    def next_delay(self, lifetime: float = 0.0) -> float:
        """Return the pause before the next restart, in seconds. The process has served for ``lifetime`` seconds."""
        now, policy = self._clock(), self._policy
        while self._restarts and self._restarts[0] <= now - policy.window:
            self._restarts.popleft()
        self._restarts.append(now)
        self._streak = 0 if lifetime >= policy.healthy else self._streak
        # Bounded: the power of a long streak would overflow.
        pause = policy.first * policy.factor ** min(self._streak, 64)
        self._streak += 1
        return min(pause, policy.longest) * (1.0 - policy.jitter * random.random())


async def restart_on_exit(
    life: Life,
    wait_for_end: Callable[[Life], Awaitable[bool]],
    start: Callable[[], Awaitable[Life | None]],
    backoff: Backoff,
    announce: Callable[[float], None],
) -> None:
    """Start the next life after each end, until ``wait_for_end`` returns False.

    ``start`` returns None for a failed attempt, which is repeated after the next pause. ``announce`` is called with the
    seconds of each pause. An exception of any of the three is a permanent error and ends this.
    """
    while True:
        began = time.monotonic()
        if not await wait_for_end(life):
            return
        lifetime, following = time.monotonic() - began, None
        while following is None:
            pause, lifetime = backoff.next_delay(lifetime), 0.0
            announce(pause)
            await asyncio.sleep(pause)
            following = await start()
        life = following


_CALLBACK_TIMEOUT_SECONDS = 5.0  # seconds for the on_exit callback


@dataclass(frozen=True)
class Exit:
    """End of a process. ``code`` is minus the signal if one killed it. With ``wanted``, the supervisor ended it."""

    name: str
    pid: int
    code: int
    wanted: bool


OnExit = Callable[[Exit], Awaitable[None]]
#: Starts the process of a spec, whose lines go to the function.
StartProcess = Callable[[ProcessSpec, WriteLine], Awaitable[ChildProcess]]


def start_child(spec: ProcessSpec, write_line: WriteLine) -> ChildProcess:
    """Start the process of ``spec`` as a child of this one. Raises ``OSError``."""
    environment = {**os.environ, **spec.env}
    return ChildProcess(spec.name, spec.argv, write_line, env=environment, cwd=spec.cwd, preexec_fn=die_with_parent())


class ProcessKeeper:
    """Keeps the process of one ``ProcessSpec`` running. ``start_process`` starts it."""

    def __init__(
        self,
        spec: ProcessSpec,
        log: Log,
        policy: RestartPolicy,
        start_process: StartProcess,
        on_exit: OnExit | None = None,
    ) -> None:
        self.spec = spec
        self._start_process = start_process
        self._log = log
        self._policy = policy
        self._backoff = Backoff(policy)
        self._on_exit = on_exit
        self._child: ChildProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._confirmed = False
        self._exit_code: int | None = None
        self._last_line = ""  # of the child that ended last

    @property
    def pid(self) -> int | None:
        """Return the process id, None between two lives."""
        return self._child.pid if self._child else None

    @property
    def has_ended(self) -> bool:
        """Return True if no process runs here, and none will start."""
        return self._task is None or self._task.done()

    async def start(self, given_up: Callable[[asyncio.Task[None]], None]) -> None:
        """Start the process, wait until it is ready, and keep it running. The latter is a background task.

        A process that ends before it is ready for the first time is not restarted: its first error is the relevant one.
        ``given_up`` is called with the background task when that ends, for any reason. Raises ``Fatal`` and
        ``DeadlineExceeded`` with the last log lines, and ``BadRequest`` with the very last one if the process reports
        invalid settings.
        """
        began = time.monotonic()
        child = await self._spawn_child()
        try:
            await self._until_ready(child)
        except BaseException:
            await self._end_child(child, requested=True)
            raise
        self._confirmed = self._confirmed or self.spec.ready is not None
        self._log.write_line(self.spec.name, f"ready after {time.monotonic() - began:.2f} s")
        restarts = restart_on_exit(child, self._wait_for_end, self._try_start, self._backoff, self._announce_restart)
        self._task = asyncio.create_task(restarts, name=f"keeper of {self.spec.name}")
        self._task.add_done_callback(given_up)

    def confirm(self) -> None:
        """Restart the process forever from now on, as it can serve. With ``spec.ready``, the start confirms it."""
        self._confirmed = True

    async def stop(self) -> None:
        """End the process with TERM, a grace period and KILL. Harmless if it has ended; a second call waits for the
        same end."""
        if self._task is None:
            return
        if not self._stopping:
            self._stopping = True
            self._task.cancel()
        await asyncio.wait({self._task})

    def kill(self) -> None:
        """KILL the process now. A ``stop`` that waits for it then returns."""
        if self._child:
            self._child.kill()

    def terminate(self) -> None:
        """Send TERM to the process, which is restarted after its end."""
        if self._child:
            self._child.terminate()

    async def _wait_for_end(self, child: ChildProcess) -> bool:
        """Wait for the end of ``child``. Returns True to start another one."""
        is_requested = True
        try:
            await child.wait()
            is_requested = False
        finally:
            await self._end_child(child, is_requested)
        return self.spec.restart

    def _announce_restart(self, pause: float) -> None:
        if self._exit_code == EXIT_MISCONFIGURED and not self._confirmed:
            raise self._misconfigured_error()
        if self._backoff.exhausted and not self._confirmed:
            raise Fatal(self._give_up_message(), executor=self.spec.name)
        self._log.write_line(self.spec.name, f"restarting in {pause:.1f} s")

    async def _try_start(self) -> ChildProcess | None:
        """Return a new child that is ready, or None on failure."""
        child: ChildProcess | None = None
        try:
            child = await self._spawn_child()
            await self._until_ready(child)
        except (OmnibusError, OSError) as error:  # the latter if no descriptors or processes are left
            self._log.write_line(self.spec.name, str(error).splitlines()[0])
            if child is not None:
                await self._end_child(child, requested=False)
            return None
        except BaseException:
            if child is not None:
                await self._end_child(child, requested=True)
            raise
        return child

    async def _spawn_child(self) -> ChildProcess:
        spec = self.spec
        try:
            self._child = await self._start_process(spec, partial(self._log.write_line, spec.name))
        except OSError as error:
            raise Fatal(f"cannot start {spec.name}: {error}", executor=spec.name) from error
        return self._child

    async def _until_ready(self, child: ChildProcess) -> None:
        if self.spec.ready is None:
            return
        ready = asyncio.ensure_future(self.spec.ready())
        end_task = asyncio.create_task(child.wait())
        try:
            await asyncio.wait({ready, end_task}, timeout=self.spec.ready_within, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() or isinstance(ready.exception(), TimeoutError):
                raise await self._not_ready_error(child, end_task.done())
            ready.result()
        finally:
            ready.cancel()
            end_task.cancel()

    async def _not_ready_error(self, child: ChildProcess, ended: bool) -> OmnibusError:
        name = self.spec.name
        code = await child.end(self.spec.grace)  # first, so that its last lines are in the log
        if ended and code == EXIT_MISCONFIGURED:
            return self._misconfigured_error()
        if ended:
            return Fatal(
                f"{name} ended ({describe_exit(code)}) before it was ready{self._log.tail(name)}", executor=name
            )
        reason = f"{name} was not ready in time ({self.spec.ready_within:g} s at most)"
        return DeadlineExceeded(reason + self._log.tail(name), executor=name)

    def _misconfigured_error(self) -> BadRequest:
        """Return the last line of the process as an error. A restart would fail in the same way."""
        last = self._last_line or self._log.last_message(self.spec.name)
        return BadRequest(last or f"{self.spec.name} ended: its settings are invalid", executor=self.spec.name)

    def _give_up_message(self) -> str:
        policy, name = self._policy, self.spec.name
        return f"{name} ended more than {policy.limit} times within {policy.window:g} s; gave up{self._log.tail(name)}"

    async def _end_child(self, child: ChildProcess, requested: bool) -> None:
        pid = child.pid
        code = self._exit_code = await child.end(self.spec.grace)
        self._last_line = self._log.last_message(self.spec.name)
        self._child = None
        if not requested:
            self._log.write_line(self.spec.name, f"ended ({describe_exit(code)})")
        await self._report_exit(Exit(self.spec.name, pid, code, requested))

    async def _report_exit(self, end: Exit) -> None:
        if self._on_exit is None:
            return
        try:
            async with asyncio.timeout(_CALLBACK_TIMEOUT_SECONDS):
                await self._on_exit(end)
        except (OmnibusError, TimeoutError) as error:
            self._log.write_line(self.spec.name, f"could not announce its end: {error!r}")


def describe_exit(code: int) -> str:
    """Describe an exit code, or minus a signal, in words."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
