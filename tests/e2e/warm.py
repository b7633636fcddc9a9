"""One fork server for all systems of a session of tests: theirs are born by it, instead of importing the libraries.

The import takes most of the processor time of a start. ``python -m tests.e2e.warm SOCKET BORN up ...`` is
``omnibus up ...`` with that one difference: its fork server is a child of the one at SOCKET, and bears executors as any
other. So are its gateways, its sidecars and its planner, if BORN is ``services``: each of them imports for one to two
seconds. The command itself imports as long, and is forked as well: see ``omnibus_command``.
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
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnibus.cli import main as run_command
from omnibus.cli import up
from omnibus.process import run_module
from omnibus.process.parent_death import die_with_parent
from omnibus.process.spec import ProcessSpec, python_command
from omnibus.up import fork_client, stack
from omnibus.up.motion import find_forked_pid
from omnibus.up.stack import FORK_SERVER_MODULES, Stack

if TYPE_CHECKING:
    import pytest

_ROOT = Path(__file__).parents[2]
_STOP_SECONDS = 10.0
_IMPORT_SECONDS = 240.0  # on a busy machine
#: How variables begin that are read later than the fork server's libraries are imported: our own, and those of libraries
#: that a service imports when it needs them.
_READ_LATE = ("OMNIBUS_", "OTEL_", "UCX_")
#: Services that are born, and what they import.
_SERVICE_MODULES = {
    "gateway": "services.gateway.service",
    "planner": "services.planner.service",
    "sidecar": "services.sidecar.service",
}
#: What the command imports to run a system.
_COMMAND_MODULES = ("omnibus.cli.up",)
#: What is born beside executors.
SERVICES, EXECUTORS_ALONE = "services", "executors"


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
    command = python_command(
        "omnibus.up.fork_server", path, *FORK_SERVER_MODULES, *_SERVICE_MODULES.values(), *_COMMAND_MODULES
    )
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


def omnibus_command(*arguments: str, born: str = SERVICES) -> tuple[str, ...]:
    """The command line of ``omnibus arguments`` that imports nothing itself, and whose systems are as ``born`` says."""
    fork_server = fork_server_socket()
    return fork_client.fork_server_command(fork_server, "tests.e2e.warm", fork_server, born, *arguments)


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
    """A stack whose fork server is born by another one; so are its services where it ``bears_services``."""

    parent_socket = ""
    bears_services = False

    def _fork_server_spec(self) -> ProcessSpec:
        spec = super()._fork_server_spec()
        _, _, _, module, *arguments = spec.argv
        return replace(spec, argv=fork_client.fork_server_command(self.parent_socket, module, *arguments))

    def _service_spec(self, service: str, **more: Any) -> ProcessSpec:
        spec = super()._service_spec(service, **more)
        if not self.bears_services or service not in _SERVICE_MODULES:
            return spec
        return replace(spec, argv=fork_client.fork_server_command(self.parent_socket, f"services.{service}"))


def warm_stack_class(parent_socket: str, born: str = EXECUTORS_ALONE) -> type[Stack]:
    """The class of stacks whose fork servers are born by the one at ``parent_socket``, and services if ``born`` says so."""
    _WarmStack.parent_socket, _WarmStack.bears_services = parent_socket, born == SERVICES
    return _WarmStack


def main(parent_socket: str, born: str, *arguments: str) -> int:
    """Run ``omnibus`` with ``arguments``."""
    stack.Stack = up.Stack = warm_stack_class(parent_socket, born)  # type: ignore[misc]
    tempfile.tempdir = None  # that of whoever started this
    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
