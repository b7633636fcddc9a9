"""One fork server for all systems of a test session.

Their fork servers are its children, so they need not import the libraries. The import takes most of the processor time
of a start. ``python -m tests.e2e.warm SOCKET EXECUTORS up ...`` is ``omnibus up ...`` with that one difference. Its
fork servers are children of those at SOCKET and EXECUTORS, and fork services and executors as usual.

Both are one process without vLLM. If it is installed, the one at EXECUTORS has also imported it, and forks executors of
vLLM as well. The command itself would import for as long, so it is forked as well: see ``omnibus_command``.
"""

import atexit
import importlib.util
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
from omnibus.executor.settings import ExecutorSettings
from omnibus.process import run_module
from omnibus.process.spec import PACKAGE_PATH, ProcessSpec, python_command
from omnibus.process.tuning import die_with_parent
from omnibus.settings import read_settings
from omnibus.up import executors as executor_specs
from omnibus.up import fork_client, machine, stack
from omnibus.up.fork_server import can_fork_executors
from omnibus.up.fork_servers import EXECUTOR_MODULES, EXECUTORS, SERVICE_MODULES, fork_server_spec
from omnibus.up.stack import Stack
from omnibus.up.watchdog import find_forked_pid

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
#: What executors of vLLM import until they start their engine, in an environment that has it. The first one makes the
#: operators that the others look for.
_VLLM_MODULES = ("omnibus_llm.vllm.v032.engine", "vllm.v1.engine.async_llm", "vllm.v1.engine.core")
#: As ``omnibus_llm.vllm.v032.engine`` sets it before it imports vLLM on a CPU.
_VLLM_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "WARNING", "TORCHDYNAMO_DISABLE": "1"}
_VLLM_ENGINE = "omnibus_engines:vllm"


def may_start_warm(settings: Mapping[str, str]) -> bool:
    """Return True if the fork server's libraries ignore ``settings`` on import."""
    return all(name.startswith(_READ_LATE) for name in settings)


@lru_cache(2)
def fork_server_socket(for_vllm: bool = False) -> str:
    """Socket of the session's fork server.

    The first call starts the server, which ends with this process. With ``for_vllm``, it forks executors alone and has
    imported the modules of vLLM's executors.
    """
    directory = tempfile.mkdtemp(prefix="omnibus-warm-")
    path = str(Path(directory) / "fork-server.sock")
    # As `omnibus up` sets them for its own.
    env = {
        **os.environ,
        "PYTHONPATH": f"{_ROOT}:{PACKAGE_PATH}",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "PYTHONWARNINGS": "ignore::RuntimeWarning:runpy",  # of modules that are run where others have imported them
        **(_VLLM_ENVIRONMENT if for_vllm else {}),
    }
    own = (*EXECUTOR_MODULES, *SERVICE_MODULES, *_COMMAND_MODULES)
    modules = (*_VLLM_MODULES, *EXECUTOR_MODULES) if for_vllm else own
    command = python_command("omnibus.up.fork_server", path, *modules)
    # Executors lower the priority of their session, which must not be that of the tests.
    process = subprocess.Popen(command, env=env, cwd=_ROOT, preexec_fn=die_with_parent(), start_new_session=True)

    def stop_server() -> None:
        process.terminate()
        process.wait(_STOP_SECONDS)
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop_server)
    give_up = time.monotonic() + _IMPORT_SECONDS
    while listener_process_id(path) is None:
        assert process.poll() is None, "the fork server ended"
        assert time.monotonic() < give_up, "the fork server imports for too long"
        time.sleep(0.05)
    return path


def has_vllm() -> bool:
    """Return whether this environment has vLLM."""
    return importlib.util.find_spec("vllm") is not None


def can_fork_vllm(environ: Mapping[str, str]) -> bool:
    """Return True if tests fork executors with this environment.

    This adds vLLM's executors to those that are forked in production.
    """
    own = {**environ, "OMNIBUS_EXECUTOR_ENGINE": ExecutorSettings().engine}
    is_vllm = read_settings(ExecutorSettings, environ).engine == _VLLM_ENGINE
    return can_fork_executors(own if is_vllm else environ)


def omnibus_command(*arguments: str) -> tuple[str, ...]:
    """Command line of ``omnibus arguments`` that imports nothing, as do its systems."""
    fork_server, of_executors = fork_server_socket(), fork_server_socket(has_vllm())
    return fork_client.fork_server_command(fork_server, "tests.e2e.warm", fork_server, of_executors, *arguments)


def wait_for_fork(command: "subprocess.Popen[str]") -> int:
    """Wait until a placeholder process has forked or ended; return the forked id."""
    give_up = time.monotonic() + _IMPORT_SECONDS
    while (pid := find_forked_pid(command.pid)) == command.pid and command.poll() is None:
        assert time.monotonic() < give_up, "the command was not forked"
        time.sleep(0.002)
    return pid


def fork_modules(patch: "pytest.MonkeyPatch") -> None:
    """Fork modules of ``omnibus_models`` from the session's fork server.

    ``omnibus.process.run_module`` runs them.
    """

    def fork_command(module: str, *arguments: str) -> tuple[str, ...]:
        if not module.startswith("omnibus_models."):
            return python_command(module, *arguments)
        return fork_client.fork_server_command(fork_server_socket(), module, *arguments)

    patch.setattr(run_module, "python_command", fork_command)


def listener_process_id(path: str) -> int | None:
    """Process that listens at the socket ``path``, or None."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


class _WarmStack(Stack):
    """A stack whose fork servers are children of another one."""

    services_socket = executors_socket = ""

    def _fork_server_spec(self, name: str, socket: str, modules: Sequence[str]) -> ProcessSpec:
        parent = self.executors_socket if name == EXECUTORS else self.services_socket
        return _child_of(parent, super()._fork_server_spec(name, socket, modules))


def _child_of(parent: str, spec: ProcessSpec) -> ProcessSpec:
    """Return the fork server of ``spec`` as a child of the one at ``parent``."""
    _, _, _, module, *arguments = spec.argv
    return replace(spec, argv=fork_client.fork_server_command(parent, module, *arguments))


def warm_stack_class(services_socket: str, executors_socket: str = "") -> type[Stack]:
    """Class of stacks whose fork servers are children of others.

    These listen at the given sockets. By default the first one serves both.
    """
    _WarmStack.services_socket = services_socket
    _WarmStack.executors_socket = executors_socket or services_socket
    return _WarmStack


def main(services_socket: str, executors_socket: str, *arguments: str) -> int:
    """Run ``omnibus`` with ``arguments``."""
    if has_vllm():
        executor_specs.can_fork_executors = can_fork_vllm
    stack.Stack = up.Stack = warm_stack_class(services_socket, executors_socket)  # type: ignore[misc]
    machine.fork_server_spec = lambda *spec: _child_of(executors_socket, fork_server_spec(*spec))
    tempfile.tempdir = None  # that of the parent process
    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
