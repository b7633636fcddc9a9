"""Stands for a process that the nursery bears: has its standard streams, passes signals on, ends as it ends.

Run as a file by a bare interpreter, see ``command``: with the standard library alone it costs a few
milliseconds and megabytes. Whoever starts it owns the process: killing the sprout kills the process.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

_BORN_WITHIN = 60.0  # seconds for the nursery to answer; it may be importing again after it was killed
_PAUSE = 0.05  # seconds between two attempts to reach it
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HEAD = 4  # bytes of the length before a request
STATUS = 4  # bytes of the answer: the wait status, as waitpid gives it
_LONGEST = 8 << 20  # bytes of a request; the kernel allows less for a process of its own


def command(nursery: str, module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of ``python -m module`` born by the nursery that listens at the socket ``nursery``.

    Interpreter options and ``PYTHONPATH`` are the nursery's.
    """
    return (sys.executable, "-I", "-S", __file__, nursery, module, *arguments)


def pack(argv: Sequence[str], environ: Mapping[bytes, bytes], cwd: str) -> bytes:
    """A request: length, then directory, number of arguments, arguments and environment, NUL between them."""
    parts = [os.fsencode(cwd), str(len(argv)).encode(), *map(os.fsencode, argv)]
    body = b"\0".join([*parts, *(name + b"=" + value for name, value in environ.items())])
    return len(body).to_bytes(_HEAD, "big") + body


def unpack(data: bytes) -> tuple[list[str], dict[str, str], str, bytes] | None:
    """Arguments, environment and directory of a request, and the bytes after it; None while it is not complete.

    Raises ``ValueError`` for anything else.
    """
    end = _HEAD + int.from_bytes(data[:_HEAD], "big")
    if end > _LONGEST:
        raise ValueError(f"a request of {end} bytes; {_LONGEST} are allowed")
    if len(data) < max(end, _HEAD):
        return None
    cwd, count, *rest = [os.fsdecode(part) for part in data[_HEAD:end].split(b"\0")]
    argv, environ = rest[: int(count)], dict(entry.split("=", 1) for entry in rest[int(count) :])
    if not argv:
        raise ValueError("a request that names no module")
    return argv, environ, cwd, data[end:]


def main(arguments: Sequence[str]) -> int:
    """Have ``arguments[1:]`` born by the nursery at ``arguments[0]`` and stay until it ends; its exit code."""
    with socket.socket(socket.AF_UNIX) as nursery:
        try:
            _connect(nursery, arguments[0])
            _ask(nursery, arguments[1:])
            answer = nursery.recv(STATUS, socket.MSG_WAITALL)
        except OSError as error:
            return _failed(f"the nursery at {arguments[0]} does not answer: {error}")
    if len(answer) < STATUS:
        return _failed("the nursery has gone and took this process with it; its own log lines say why")
    return _end(int.from_bytes(answer, "big"))


def _connect(nursery: socket.socket, path: str) -> None:
    give_up = time.monotonic() + _BORN_WITHIN
    while True:
        try:
            return nursery.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > give_up:
                raise
        time.sleep(_PAUSE)


def _ask(nursery: socket.socket, argv: Sequence[str]) -> None:
    def forward(number: int, _: object) -> None:
        with suppress(OSError):  # the nursery has gone: the wait for its answer ends by itself
            nursery.send(bytes([number]))

    # A signal's byte must come after the request, never in the middle.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    request = pack(argv, os.environb, os.getcwd())
    sent = socket.send_fds(nursery, [request], [0, 1, 2])
    nursery.sendall(request[sent:])
    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _end(status: int) -> int:
    """The exit code for a wait status; a process that a signal has killed is followed the same way."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _failed(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
