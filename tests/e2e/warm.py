"""One fork server for all systems of a session of tests: theirs are born by it, instead of importing the libraries.

The import takes most of the processor time of a start. ``python -m tests.e2e.warm SOCKET up ...`` is ``omnibus up ...``
with that one difference: its fork servers are children of the one at SOCKET, and bear executors and services as any
other. The command itself imports as long, and is forked as well: see ``omnibus_command``.
"""

import atexit
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from omnibus.cli import main as run_command
from omnibus.cli import up
from omnibus.process import run_module
from omnibus.process.parent_death import die_with_parent
from omnibus.process.spec import ProcessSpec, python_command
from omnibus.up import fork_client, stack
from omnibus.up.fork_servers import EXECUTOR_MODULES, SERVICE_MODULES
from omnibus.up.motion import find_forked_pid
from omnibus.up.stack import Stack

if TYPE_CHECKING:
    import pytest

_ROOT = Path(__file__).parents[2]
_STOP_SECONDS = 10.0
_IMPORT_SECONDS = 240.0  # on a busy machine
#: How variables begin that are read later than the fork server's libraries are imported: our own, and those of libraries
#: that a service imports when it needs them.
_READ_LATE = ("OMNIBUS_", "OTEL_", "UCX_")
#: What the command imports to run a system.
_COMMAND_MODULES = ("omnibus.cli.up",)


def may_start_warm(settings: Mapping[str, str]) -> bool:
    """Return whether no library of the fork server reads one of ``settings``: they do so while they are imported."""
    return all(name.startswith(_READ_LATE) for name in settings)


@lru_cache(1)
def fork_server_socket() -> str:
    """The socket of the session's fork server, which is started by the first call and ends with this process."""
    directory = tempfile.mkdtemp(prefix="omnibus-warm-")
    path = str(Path(directory) / "fork-server.sock")
    # As `omnibus up` sets them for its own.
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "shared")]),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "PYTHONWARNINGS": "ignore::RuntimeWarning:runpy",  # of modules that are run where others have imported them
    }
    command = python_command("omnibus.up.fork_server", path, *EXECUTOR_MODULES, *SERVICE_MODULES, *_COMMAND_MODULES)
    process = subprocess.Popen(command, env=env, cwd=_ROOT, preexec_fn=die_with_parent())

    def end() -> None:
        process.terminate()
        process.wait(_STOP_SECONDS)
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    give_up = time.monotonic() + _IMPORT_SECONDS
    while listener_process_id(path) is None:
        assert process.poll() is None, "the fork server ended"
        assert time.monotonic() < give_up, "the fork server imports for too long"
        time.sleep(0.05)
    return path


def omnibus_command(*arguments: str) -> tuple[str, ...]:
    """The command line of ``omnibus arguments`` that imports nothing itself, nor do its systems."""
    fork_server = fork_server_socket()
    return fork_client.fork_server_command(fork_server, "tests.e2e.warm", fork_server, *arguments)


def wait_for_fork(command: "subprocess.Popen[str]") -> int:
    """Wait until a process of ``omnibus_command`` stands for a forked one, or has ended; the id of the forked one."""
    give_up = time.monotonic() + _IMPORT_SECONDS
    while (pid := find_forked_pid(command.pid)) == command.pid and command.poll() is None:
        assert time.monotonic() < give_up, "the command was not forked"
        time.sleep(0.002)
    return pid


def fork_modules(patch: "pytest.MonkeyPatch") -> None:
    """Have what ``omnibus.process.run_module`` runs of ``omnibus_models`` forked by the session's fork server."""

    def command(module: str, *arguments: str) -> tuple[str, ...]:
        if not module.startswith("omnibus_models."):
            return python_command(module, *arguments)
        return fork_client.fork_server_command(fork_server_socket(), module, *arguments)

    patch.setattr(run_module, "python_command", command)


def listener_process_id(path: str) -> int | None:
    """The process that listens at the socket ``path``; None when there is none."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return None
        packed = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", packed)[0]
    return pid


class _WarmStack(Stack):
    """A stack whose fork servers are born by another one."""

    parent_socket = ""

    def _fork_server_spec(self, name: str, socket: str, modules: Sequence[str]) -> ProcessSpec:
        spec = super()._fork_server_spec(name, socket, modules)
        _, _, _, module, *arguments = spec.argv
        return replace(spec, argv=fork_client.fork_server_command(self.parent_socket, module, *arguments))


def warm_stack_class(parent_socket: str) -> type[Stack]:
    """The class of stacks whose fork servers are born by the one at ``parent_socket``."""
    _WarmStack.parent_socket = parent_socket
    return _WarmStack


def main(parent_socket: str, *arguments: str) -> int:
    """Run ``omnibus`` with ``arguments``."""
    stack.Stack = up.Stack = warm_stack_class(parent_socket)  # type: ignore[misc]
    tempfile.tempdir = None  # that of whoever started this
    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
