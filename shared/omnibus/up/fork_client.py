"""Proxy of a process that the fork server forks: shares its standard streams, forwards signals, and exits as it does.

Runs as a file in a bare interpreter, see ``fork_server_command``. With the standard library alone, it costs a few
milliseconds and megabytes. The parent of the proxy owns the process: killing the proxy kills the process, because the
proxy holds the other end of the process's lifeline. The fork server is needed to start the process and to read its exit
code.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

_SPAWN_TIMEOUT_SECONDS = 60.0  # seconds to wait for the fork server, which may import again after a kill
_RETRY_PAUSE_SECONDS = 0.05  # seconds between two attempts to reach it
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LENGTH_BYTES = 4  # bytes of the length before a request
STATUS_BYTES = 4  # bytes of an answer: the process id after the fork, the wait status of waitpid at the end
PING = bytes(_LENGTH_BYTES)  # an empty request: the fork server closes the connection
_MAX_REQUEST_BYTES = 8 << 20  # bytes of a request; the kernel allows less for a separate process


def fork_server_command(fork_server: str, module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of ``python -m module``, forked by a fork server.

    The fork server listens at the socket ``fork_server``, and the process waits for it. Interpreter options and
    ``PYTHONPATH`` are its own.
    """
    return (sys.executable, "-I", "-S", __file__, fork_server, module, *arguments)


def pack_request(argv: Sequence[str], environ: Mapping[bytes, bytes], cwd: str) -> bytes:
    """Return a request: length, then directory, number of arguments, arguments and environment, separated by NUL."""
    parts = [os.fsencode(cwd), str(len(argv)).encode(), *map(os.fsencode, argv)]
    body = b"\0".join([*parts, *(name + b"=" + value for name, value in environ.items())])
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def unpack_request(data: bytes) -> tuple[list[str], dict[str, str], str] | None:
    """Return arguments, environment and directory of a request. Returns None while the request is incomplete.

    Raises ``ValueError`` for an invalid request.
    """
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    if end > _MAX_REQUEST_BYTES:
        raise ValueError(f"a request must have at most {_MAX_REQUEST_BYTES} bytes, not {end}")
    if len(data) < max(end, _LENGTH_BYTES):
        return None
    cwd, count, *rest = [os.fsdecode(part) for part in data[_LENGTH_BYTES:end].split(b"\0")]
    argv, environ = rest[: int(count)], dict(entry.split("=", 1) for entry in rest[int(count) :])
    if not argv:
        raise ValueError("a request must name a module")
    return argv, environ, cwd


def main(arguments: Sequence[str]) -> int:
    """Run ``arguments[1:]`` in a fork of the fork server at ``arguments[0]``. Waits for the end and returns the exit
    code."""
    path, *argv = arguments
    with socket.socket(socket.AF_UNIX) as fork_server:
        try:
            _connect_fork_server(fork_server, path)
            child, pid = _request_process(fork_server, argv)
        except OSError as error:
            return _report_failure(f"the fork server at {path} does not answer: {error}")
        if child < 0:
            return _report_failure("the fork server did not start this process; see its log lines for the reason")
        answer = _read_status(fork_server)
    if len(answer) < STATUS_BYTES:
        return _wait_without_fork_server(child, pid)
    return _exit_with_status(int.from_bytes(answer, "big"))


def _connect_fork_server(fork_server: socket.socket, path: str) -> None:
    give_up = time.monotonic() + _SPAWN_TIMEOUT_SECONDS
    while True:
        try:
            return fork_server.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() >= give_up:
                raise
        time.sleep(_RETRY_PAUSE_SECONDS)


def _request_process(fork_server: socket.socket, argv: Sequence[str]) -> tuple[int, int]:
    """Return a descriptor of the new process and its id. The descriptor is as of ``os.pidfd_open``, or -1 without a
    process. Raises ``OSError``."""
    child = -1
    early: list[int] = []

    def forward_signal(number: int, _: object) -> None:
        if child < 0:
            early.append(number)
        else:
            _send_signal(child, number)

    # Before the request is sent, a signal ends this process. After that, signals are for the other one.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    _send_request(fork_server, argv)
    for number in _FORWARDED:
        signal.signal(number, forward_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    fork_server.settimeout(_SPAWN_TIMEOUT_SECONDS)
    answer, descriptors, _, _ = socket.recv_fds(fork_server, STATUS_BYTES, 1)
    fork_server.settimeout(None)
    child = descriptors[0] if descriptors else -1
    if early and child < 0:
        raise SystemExit(128 + early[0])
    for each in early:
        _send_signal(child, each)
    return child, int.from_bytes(answer, "big")


def _send_request(fork_server: socket.socket, argv: Sequence[str]) -> None:
    # The other end of the lifeline is never closed here: the kernel closes it when this process ends.
    line, _ = os.pipe()
    request = pack_request(argv, os.environb, os.getcwd())
    byte_count = socket.send_fds(fork_server, [request], [0, 1, 2, line])
    os.close(line)
    fork_server.sendall(request[byte_count:])


def _send_signal(child: int, number: int) -> None:
    with suppress(OSError):  # it has ended
        signal.pidfd_send_signal(child, number)


def _read_status(fork_server: socket.socket) -> bytes:
    """Return the wait status. It is shorter than ``STATUS_BYTES`` if the fork server ends before the process."""
    try:
        return fork_server.recv(STATUS_BYTES, socket.MSG_WAITALL)
    except OSError:
        return b""


def _wait_without_fork_server(child: int, pid: int) -> int:
    """Wait until the process ends, without its exit code."""
    sys.stderr.write("the fork server has ended; this process continues without it\n")
    select.select([child], [], [])
    with suppress(OSError):  # the rest of its group, as the fork server does
        os.killpg(pid, signal.SIGKILL)
    return _report_failure("ended; its fork server ended before it, so its exit code is unknown")


def _exit_with_status(status: int) -> int:
    """Return the exit code for a wait status. After a process that a signal has killed, exit by the same signal."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _report_failure(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
