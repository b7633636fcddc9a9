"""Workers of apps that are forked from a template. Each saves most of a second of imports.

Otherwise they are as in ``omnibus.process.process``: children of this process in separate sessions.
"""

import atexit
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omnibus.process import process
from omnibus.process.tuning import die_with_parent
from omnibus_gateway.apps.worker_process import worker_environment

_PROGRAM = Path(__file__).with_name("worker_template.py")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_FORK_SECONDS = 60.0  # the template imports before the first one, perhaps on a busy machine
_STOP_SECONDS = 10.0


class ForkedWorker:
    """A worker with the interface of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        """Wait for its end. Returns the exit code, or minus the signal that killed it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Fork workers until ``patch`` is undone; other processes start as usual."""
    _start_template()  # in this thread: the kernel ends the template with it
    fake_subprocess = SimpleNamespace(Popen=_start_process, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    patch.setattr(process, "subprocess", fake_subprocess)


def template_pid() -> int:
    """Return the process id of the template; 0 before the first worker was forked."""
    return _start_template()[1].pid if _start_template.cache_info().currsize else 0


def _start_process(argv: Sequence[str], **options: Any) -> "ForkedWorker | subprocess.Popen[bytes]":
    is_worker = argv[0] == sys.executable and "omnibus.app.worker" in argv
    return _fork_worker(options) if is_worker else subprocess.Popen(argv, **options)


def _fork_worker(options: Mapping[str, Any]) -> ForkedWorker:
    orders, _ = _start_template()
    (link,) = options["pass_fds"]
    order = {"environment": dict(options["env"]), "directory": options["cwd"] or os.getcwd()}
    with _adopt_descendants():
        socket.send_fds(orders, [json.dumps(order).encode()], [options["stdout"], link])
        return ForkedWorker(int(orders.recv(64)))


@contextmanager
def _adopt_descendants() -> Iterator[None]:
    """Adopt descendants whose parent has ended, until the end of the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _start_template() -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Return the template's socket and process.

    The first call starts the process; it ends with this one.
    """
    parent_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent_socket.settimeout(_FORK_SECONDS)
    command = [sys.executable, "-P", "-u", str(_PROGRAM), str(child_socket.fileno()), "omnibus.app.worker"]
    environment = worker_environment("directory", os.environ)
    template_process = subprocess.Popen(
        command,
        env=environment,
        pass_fds=(child_socket.fileno(),),
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )
    child_socket.close()

    def end_template() -> None:
        parent_socket.close()
        template_process.wait(_STOP_SECONDS)

    atexit.register(end_template)
    return parent_socket, template_process
