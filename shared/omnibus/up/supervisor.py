"""Runs a set of processes as one: starts them in order, keeps them running, stops all of them.

Children of the supervisor that a fork server forks: they share its memory, and the supervisor owns them.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from graphlib import TopologicalSorter
from types import TracebackType
from typing import Any, TypeVar

from omnibus.process.logs import Log
from omnibus.process.process import ChildProcess, WriteLine, kill_group
from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import OnExit, ProcessKeeper, RestartPolicy, start_child
from omnibus.up import fork_client
from omnibus.up.shm import remove_shared_memory

_SPAWN_TIMEOUT_SECONDS = 60.0  # seconds to wait for the fork server, which may import again after a kill
_ANSWER_TIMEOUT_SECONDS = 60.0  # seconds that a fork may take on a busy machine
_RETRY_PAUSE_SECONDS = 0.05
_LOST_CODE = 1  # exit code of a process whose fork server ended before it


async def start_process(spec: ProcessSpec, write_line: WriteLine) -> ChildProcess:
    """Start the process of ``spec``. Its fork server forks it, if it has one.

    Without the fork server, it starts as any other process if it ``starts_alone``, and otherwise waits for one. Raises
    ``OSError`` if the process cannot be started.
    """
    if not spec.fork_server:
        return start_child(spec, write_line)
    give_up = time.monotonic() + _SPAWN_TIMEOUT_SECONDS
    while True:
        try:
            return await _fork_child(spec, write_line)
        except OSError as error:
            if spec.starts_alone:
                return start_child(spec, write_line)
            if time.monotonic() > give_up:
                raise OSError(f"the fork server at {spec.fork_server} does not answer: {error}") from error
        await asyncio.sleep(_RETRY_PAUSE_SECONDS)


class ForkedChild(ChildProcess):
    """Running process in a group of its own, which ends with the ``lifeline``.

    ``connection`` is that to the fork server, ``pid`` and ``descriptor`` are its answer. The kernel kills the group
    when no process has the ``lifeline`` open, so that it does not outlive this process.
    """

    def __init__(self, connection: socket.socket, pid: int, descriptor: int, lifeline: int) -> None:
        self._connection = connection
        self._pid = pid
        self._descriptor = descriptor
        self._lifeline = lifeline
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()

    def follow_process(self, name: str, output: int, write_line: WriteLine) -> None:
        """Copy the lines of ``output``, and wait for the end."""
        self._write_line = write_line
        self._copy_lines(name, output, write_line)
        self._loop.add_reader(self._connection, self._on_status)

    @property
    def pid(self) -> int:
        return self._pid

    def kill(self) -> None:
        """KILL the process and everything in its group, at once."""
        self._close_lifeline()  # first: the kernel kills the group only while the process has its end of it
        self._send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def _send_signal(self, number: signal.Signals) -> None:
        if not self._exit.done():
            with suppress(OSError):  # it has ended
                signal.pidfd_send_signal(self._descriptor, number)

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _on_status(self) -> None:
        try:
            answer = self._connection.recv(fork_client.STATUS_BYTES)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        self._loop.remove_reader(self._connection)
        self._connection.close()
        if len(answer) == fork_client.STATUS_BYTES:
            self._finish(os.waitstatus_to_exitcode(int.from_bytes(answer, "big")))
            return
        self._write_line("the fork server has ended; this process continues without it")
        self._loop.add_reader(self._descriptor, self._on_lost_end)

    def _on_lost_end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        kill_group(self._pid)  # the rest of its group, as the fork server does
        self._write_line("ended; its fork server ended before it, so its exit code is unknown")
        self._finish(_LOST_CODE)

    def _finish(self, code: int) -> None:
        self._close_lifeline()
        os.close(self._descriptor)
        self._exit.set_result(code)


async def _fork_child(spec: ProcessSpec, write_line: WriteLine) -> ForkedChild:
    """Return the process that the fork server forks. Raises ``OSError`` if it does not."""
    loop = asyncio.get_running_loop()
    with ExitStack() as unless_forked, ExitStack() as always:
        connection = unless_forked.enter_context(socket.socket(socket.AF_UNIX))
        connection.setblocking(False)
        await loop.sock_connect(connection, spec.fork_server)
        output, write_end = _open_pipe(unless_forked, always)
        line, lifeline = os.pipe()
        always.callback(os.close, line)
        unless_forked.callback(os.close, lifeline)
        null = os.open(os.devnull, os.O_RDONLY)
        always.callback(os.close, null)
        request = fork_client.pack_request(_module_arguments(spec), _environment(spec), str(spec.cwd or os.getcwd()))
        byte_count = socket.send_fds(connection, [request], [null, write_end, write_end, line])
        await loop.sock_sendall(connection, request[byte_count:])
        pid, descriptor = await _read_process(connection)
        unless_forked.pop_all()
        child = ForkedChild(connection, pid, descriptor, lifeline)
    child.follow_process(spec.name, output, write_line)
    return child


def _open_pipe(unless_forked: ExitStack, always: ExitStack) -> tuple[int, int]:
    output, write_end = os.pipe()
    unless_forked.callback(os.close, output)
    always.callback(os.close, write_end)
    return output, write_end


def _module_arguments(spec: ProcessSpec) -> tuple[str, ...]:
    """Return the module and its arguments of the command ``python -u -m``."""
    return spec.argv[spec.argv.index("-m") + 1 :]


def _environment(spec: ProcessSpec) -> dict[bytes, bytes]:
    own = {os.fsencode(name): os.fsencode(value) for name, value in spec.env.items()}
    return {**own, **os.environb, **own}  # in this order, as the kernel shows only what fits


async def _read_process(connection: socket.socket) -> tuple[int, int]:
    """Return the id of the new process and a descriptor of it. Raises ``OSError`` without one."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(connection, partial(_set_once, readable))
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
            await readable
    finally:
        loop.remove_reader(connection)
    answer, descriptors, _, _ = socket.recv_fds(connection, fork_client.STATUS_BYTES, 1)
    if not descriptors:
        raise OSError("it did not start this process; see its log lines for the reason")
    os.set_inheritable(descriptors[0], False)
    return int.from_bytes(answer, "big"), descriptors[0]


def _set_once(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


_Result = TypeVar("_Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Async context in which every process runs; none is left afterwards.

    Use it from the main thread. The first SIGINT, SIGTERM or SIGHUP stops everything in order, a second one kills it. A
    process that has served is restarted forever. A process that has never served and fails for good is forgotten and
    may be added again. Until ``confirm_all``, if it is vital, it ends the context with its error. Shared-memory files
    whose name begins with ``shm_prefix`` are removed at the end.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec] = (),
        *,
        log: Log | None = None,
        policy: RestartPolicy | None = None,
        on_exit: OnExit | None = None,
        shm_prefix: str = "",
    ) -> None:
        self._specs = _in_order(specs)
        self._log = log or Log()
        self._policy = policy or RestartPolicy()
        self._on_exit = on_exit
        self._shm_prefix = shm_prefix
        self._keepers: dict[str, ProcessKeeper] = {}
        self._stopping = False
        self._up = False

    @property
    def pids(self) -> dict[str, int]:
        """Return the process ids of all running processes, by name."""
        return {name: keeper.pid for name, keeper in self._keepers.items() if keeper.pid is not None}

    @property
    def specs(self) -> dict[str, ProcessSpec]:
        """Return the specs of all kept processes, by name. These include processes between two starts and those being
        stopped."""
        return {name: keeper.spec for name, keeper in self._keepers.items()}

    async def __aenter__(self) -> "Supervisor":
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = self._loop.create_future()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and so does this
                self._loop.add_signal_handler(number, self._on_signal, number)
        try:
            await self.unless_over(self._start_processes(self._specs))
        except BaseException:
            await self._stop_everything()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_everything()

    async def run_until_signal(self) -> int:
        """Wait for a signal and return its number. Raises the ``Fatal`` of a process that failed for good."""
        return await asyncio.shield(self._over)

    def kill(self, name: str) -> None:
        """KILL the process ``name`` and its group now. It is restarted as after any other end."""
        if name in self._keepers:
            self._keepers[name].kill()

    def terminate(self, name: str) -> None:
        """Send TERM to the process ``name``, so that it is restarted."""
        if name in self._keepers:
            self._keepers[name].terminate()

    def change_spec(self, spec: ProcessSpec) -> None:
        """Use ``spec`` for the process of its name from its next start. The running process continues."""
        if spec.name in self._keepers:
            self._keepers[spec.name].spec = spec

    def confirm(self, name: str) -> None:
        """Restart the process ``name`` forever from now on, as it has served."""
        if name in self._keepers:
            self._keepers[name].confirm()

    def confirm_all(self) -> None:
        """Confirm all processes. After this, a process that fails does not end the others."""
        self._up = True
        for keeper in self._keepers.values():
            keeper.confirm()

    async def add(self, *specs: ProcessSpec) -> None:
        """Start more processes and wait until they are ready. ``after`` may name running ones.

        Either all of them run afterwards, or none and the first error is raised. A signal does not end the wait: see
        ``unless_over``.
        """
        for spec in specs:
            if spec.name in self._keepers:
                raise ValueError(f"a process named {spec.name} is already running: remove it first")
        try:
            await self._start_processes(_in_order(specs, other_names=self._keepers))
        except BaseException:
            await self.remove(*(spec.name for spec in specs))
            raise

    async def remove(self, *names: str) -> None:
        """Stop these processes with TERM and, after a grace period, KILL. Dependants are stopped first.

        Their names are free afterwards. If this is cancelled, processes that it has begun to stop still end.
        """
        keepers = {name: self._keepers[name] for name in names if name in self._keepers}
        needs = _process_dependencies(keeper.spec for keeper in keepers.values())
        needed_by = {name: [other for other, wants in needs.items() if name in wants] for name in needs}
        try:
            await _walk_dependencies(needed_by, lambda name: keepers[name].stop())
        finally:
            for keeper in keepers.values():
                if keeper.has_ended:
                    self._forget_keeper(keeper)

    async def _start_processes(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            self._log.register(spec.name)
            self._keepers[spec.name] = ProcessKeeper(spec, self._log, self._policy, start_process, self._on_exit)
        await _walk_dependencies(_process_dependencies(specs), lambda name: self._start_keeper(self._keepers[name]))

    async def _start_keeper(self, keeper: ProcessKeeper) -> None:
        await keeper.start(partial(self._on_keeper_end, keeper))

    async def _stop_everything(self) -> None:
        self._stopping = True
        try:
            await self.remove(*self._keepers)
        finally:
            for number in SIGNALS:
                self._loop.remove_signal_handler(number)
            if not self._over.done():
                self._over.cancel()
            elif not self._over.cancelled():
                self._over.exception()  # mark as seen: a waiter got it, or it was too late to matter
            remove_shared_memory(self._shm_prefix)

    def _on_signal(self, number: int) -> None:
        if self._over.done() or self._stopping:
            for keeper in self._keepers.values():
                keeper.kill()
        else:
            self._over.set_result(number)

    def _on_keeper_end(self, keeper: ProcessKeeper, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if self._up or not keeper.spec.vital:
            self._log.write_line(keeper.spec.name, "given up; everything else continues without it")
            self._forget_keeper(keeper)
        elif not self._over.done():
            self._over.set_exception(error)

    def _forget_keeper(self, keeper: ProcessKeeper) -> None:
        if self._keepers.get(keeper.spec.name) is keeper:
            del self._keepers[keeper.spec.name]

    async def unless_over(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return the result of ``work``, cancelled by a signal or failure. A failure is a process that fails for good.

        Then raises ``SystemExit`` or the ``Fatal`` of the process. Wrap each wait for processes inside the context in
        this.
        """
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if self._over.done() and task.cancelled():
            raise SystemExit(128 + self._over.result())
        return task.result()


def _in_order(specs: Sequence[ProcessSpec], other_names: Iterable[str] = ()) -> list[ProcessSpec]:
    """Return ``specs`` sorted so that each follows its dependencies. Raises ``ValueError``."""
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) < len(specs):
        raise ValueError(f"process names must differ: {sorted(spec.name for spec in specs)}")
    for spec in specs:
        if missing := set(spec.after) - {*by_name, *other_names}:
            raise ValueError(f"{spec.name} must start after {sorted(missing)}, which is not started")
    order = TopologicalSorter({spec.name: spec.after for spec in specs}).static_order()
    return [by_name[name] for name in order if name in by_name]


def _process_dependencies(specs: Iterable[ProcessSpec]) -> dict[str, list[str]]:
    after = {spec.name: spec.after for spec in specs}
    return {name: [other for other in needs if other in after] for name, needs in after.items()}


async def _walk_dependencies(needs: Mapping[str, list[str]], act: Callable[[str], Awaitable[None]]) -> None:
    """Call ``act`` for every name after its dependencies, otherwise concurrently.

    The first failure cancels the rest and is raised.
    """
    events = {name: asyncio.Event() for name in needs}

    async def visit(name: str) -> None:
        for other in needs[name]:
            await events[other].wait()
        await act(name)
        events[name].set()

    try:
        async with asyncio.TaskGroup() as group:
            for name in needs:
                group.create_task(visit(name))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
