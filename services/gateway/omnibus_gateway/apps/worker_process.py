"""One worker process with all of its child processes: start, messages, and end.

Detects frozen workers: they do not answer pings, and use no processor time.
"""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Protocol

import omnibus
from omnibus.app import protocol
from omnibus.app.module_loader import UPLOAD
from omnibus.app.protocol import Description
from omnibus.app.transport import WorkerLink, encode_message, from_worker
from omnibus.app_record import AppSource
from omnibus.errors import AppFailed, Fatal, OmnibusError, ProtocolError, from_problem
from omnibus.process.process import ChildProcess

#: Seconds of processor time below which a process counts as frozen.
_IDLE_CPU_SECONDS = 0.001


class FreezeDetector:
    """Checks process ``pid`` with ``ping``; ``record_pong`` is called for each answer.

    A worker that computes in its event loop does not answer either, but is not frozen: its requests end by their
    deadlines.
    """

    def __init__(self, pid: int, ping: Callable[[], None]) -> None:
        self._pid = pid
        self._ping = ping
        self._answered = True

    def record_pong(self) -> None:
        self._answered = True

    async def wait_until_frozen(self, exit_event: asyncio.Event, ping_seconds: float, answer_within: float) -> bool:
        """Ping every ``ping_seconds`` until the process is ``exit_event``; return True as soon as it is frozen.

        Frozen means that it neither answered nor computed for ``answer_within`` seconds. This counts pings, not
        seconds: a gateway that was frozen itself must not attribute that to the worker.
        """
        most, missed_count, cpu_used = ceil(answer_within / ping_seconds), 0, 0.0
        while not await _wait_for_event(exit_event, ping_seconds):
            if self._answered:
                missed_count, cpu_used = 0, cpu_seconds(self._pid)
            elif (missed_count := missed_count + 1) >= most:
                if cpu_seconds(self._pid) - cpu_used < _IDLE_CPU_SECONDS:
                    return True
                missed_count, cpu_used = 0, cpu_seconds(self._pid)
            self._answered = False
            self._ping()
        return False


async def _wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for ``event``; return False after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process; without support, the current time."""
    if sys.platform != "linux":
        return time.monotonic()
    try:
        return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it
    except OSError:  # it has ended
        return time.monotonic()


log = logging.getLogger(__name__)

#: Characters of an output line that are logged.
_MAX_LOGGED_CHARS = 2000
#: Seconds until a worker that has closed its link must exit.
_LINK_CLOSE_SECONDS = 1.0
#: Numeric libraries start threads when they are loaded; a worker needs none, and uploads cannot have any.
_SINGLE_THREAD_ENV = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class WorkerRequest(Protocol):
    """Request, as the process that serves it needs it."""

    def handle_message(self, message: protocol.WorkerMessage, nbytes: int) -> None:
        """Handle a message of the request. Raises ``ProtocolError`` for an invalid one."""

    def on_worker_lost(self, error: OmnibusError) -> None:
        """Fail: the process has ended."""


class WorkerProcess:
    """Running worker. ``requests`` are those in progress."""

    def __init__(self, source: AppSource, link: int) -> None:
        loop = asyncio.get_running_loop()
        self.name = source.module.rpartition(".")[2]
        self.requests: dict[int, WorkerRequest] = {}
        self.gone = asyncio.Event()
        self.on_idle: Callable[[], None] | None = None
        self._last = 0
        self._process = _execute_worker(source, link, self._log_line)
        self._link: WorkerLink | None = None
        self._ready: asyncio.Future[Description] = loop.create_future()
        self._pulse = FreezeDetector(self.pid, lambda: self.send(protocol.Ping()))
        self._why = ""
        self._tasks = [loop.create_task(self._watch_exit(), name=f"watch of app {self.name}")]

    @classmethod
    async def spawn(cls, source: AppSource, text: str, memory: int, show_errors: bool = False) -> "WorkerProcess":
        """Start a worker that loads ``source``. Raises ``Fatal`` if no process can be started."""
        own_socket, worker_socket = socket.socketpair()
        try:
            process = cls(source, worker_socket.fileno())
        except BaseException:
            own_socket.close()
            raise
        finally:
            worker_socket.close()
        own_socket.setblocking(False)
        process._link = await WorkerLink.open(own_socket, process._handle_message, process._on_link_lost)
        process._link.send(encode_message(protocol.LoadApp(source, text, memory, show_errors)))
        return process

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    def begin_watch(self, ping_seconds: float, answer_within: float) -> None:
        """Kill the process as soon as it is frozen: see ``FreezeDetector``."""
        watch = self._kill_frozen(ping_seconds, answer_within)
        self._tasks.append(asyncio.get_running_loop().create_task(watch, name=f"pulse of app {self.name}"))

    async def _kill_frozen(self, ping_seconds: float, answer_within: float) -> None:
        if await self._pulse.wait_until_frozen(self.gone, ping_seconds, answer_within):
            self.kill(f"it was frozen: no answer within {answer_within:g} s")

    async def wait_ready(self) -> Description:
        """Wait until the app is loaded. Raises its error, and ``AppFailed`` if the process ends."""
        return await asyncio.shield(self._ready)

    # Requests

    def add_request(self, request: WorkerRequest) -> int:
        """Return a number for ``request``, which then gets its messages."""
        self._last += 1
        self.requests[self._last] = request
        return self._last

    def remove_request(self, id: int) -> None:
        """Remove request ``id``, which the worker has ended."""
        self.requests.pop(id, None)
        if not self.requests and self.on_idle is not None:
            self.on_idle()

    def send(self, message: protocol.WorkerMessage) -> None:
        """Send a message, or drop it if the process is gone. Raises ``TooLarge``."""
        if self._link is not None:
            self._link.send(encode_message(message))

    async def drain(self) -> None:
        """Wait until the worker has read most of the messages."""
        if self._link is not None:
            await self._link.drain()

    # The end

    def kill(self, why: str) -> None:
        """Kill the process and its children. ``why`` is in the error of its requests."""
        self._why = self._why or why
        self._process.kill()

    async def stop(self, within: float) -> None:
        """Stop the process: it may cancel its work for ``within`` seconds, then it is killed."""
        if not self.gone.is_set():
            self._why = self._why or "it was stopped"
            self.send(protocol.StopWorker())
            self._fail_requests(self._ended_error())
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self.gone.wait()
        self.kill(self._why)
        await self.gone.wait()
        if self._link is not None:
            self._link.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch_exit(self) -> None:
        code = await self._process.wait()
        self._why = self._why or (f"signal {-code}" if code < 0 else f"exit code {code}")
        self.gone.set()
        self._fail_requests(self._ended_error())
        await self._process.drain_output()

    def _log_line(self, line: str) -> None:
        """Log an output line. Control characters are replaced: they could affect a terminal or forge a line."""
        if text := line[:_MAX_LOGGED_CHARS].rstrip():
            log.info("app %s: %s", self.name, "".join(each if each.isprintable() else "\ufffd" for each in text))

    def _ended_error(self) -> AppFailed:
        return AppFailed(f"the process of the app {self.name} ended: {self._why}", stage=self.name)

    def _fail_requests(self, error: OmnibusError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # marked as retrieved, even if no task waits
        requests, self.requests = self.requests, {}
        for request in requests.values():
            request.on_worker_lost(error)
        if self.on_idle is not None:
            self.on_idle()

    # Messages of the worker

    def _handle_message(self, body: bytes) -> None:
        message = from_worker(body)
        match message:
            case protocol.AppReady(description):
                if self._ready.done():
                    raise ProtocolError("the worker reports twice that it is ready")
                self.name = description.name
                self._ready.set_result(description)
            case protocol.Pong():
                self._pulse.record_pong()
            case protocol.Broken(problem):
                if not self._ready.done():
                    self._ready.set_exception(from_problem(problem))
                    self._ready.exception()
            case _:
                request = self.requests.get(message.id)
                if request is not None:  # otherwise the request has just ended
                    request.handle_message(message, len(body))

    def _on_link_lost(self, error: OmnibusError | None) -> None:
        if error is not None:
            log.error("killing the worker of app %s after a protocol violation: %s", self.name, error)
            self.kill(f"it sent an invalid message ({error})"[:300])
        elif not self.gone.is_set():
            # Messages cannot reach it any longer, so it must exit soon.
            asyncio.get_running_loop().call_later(_LINK_CLOSE_SECONDS, self._kill_if_running)

    def _kill_if_running(self) -> None:
        if not self.gone.is_set():
            self.kill("it closed its link")


def _execute_worker(source: AppSource, link: int, log_line: Callable[[str], None]) -> ChildProcess:
    try:
        return ChildProcess(
            f"app {source.module}",
            (sys.executable, "-P", "-u", "-m", "omnibus.app.worker", str(link)),
            log_line,
            env=worker_environment(source.kind, os.environ),
            cwd="/" if source.kind == UPLOAD else None,
            pass_fds=(link,),
        )
    except OSError as error:
        raise Fatal(f"no process can be started for {source.module}: {error.strerror}") from error


def worker_environment(kind: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: variables of the gateway contain passwords.

    An upload gets only the path where Python finds this SDK, and the thread limits of every worker.
    """
    path = str(Path(omnibus.__file__).resolve().parents[1])
    if kind == UPLOAD:
        return {**_SINGLE_THREAD_ENV, "PYTHONPATH": path}
    variables = {name: value for name, value in environment.items() if not name.startswith("OMNIBUS_")}
    more = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
    return {**_SINGLE_THREAD_ENV, **variables, "PYTHONPATH": os.pathsep.join([path, *more])}
