"""Children of the supervisor that a fork server forks: they share its memory, and the supervisor owns them."""

import asyncio
import os
import signal
import socket
import time
from contextlib import ExitStack, suppress
from functools import partial

from omnibus.process.process import ChildProcess, WriteLine, kill_group
from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import start_child
from omnibus.up import fork_client

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
