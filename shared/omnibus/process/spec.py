"""Description of one process that the supervisor keeps running."""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Directory of the packages ``omnibus`` and ``omnibus_models``: ``shared`` of a checkout, or all packages of a wheel.
SHARED = Path(__file__).parents[2]
#: Directories of our packages. In a checkout each service has its own.
PACKAGE_DIRECTORIES = (SHARED, *sorted(each.parent for each in SHARED.parent.glob("services/*/omnibus_*")))
#: The same as a ``PYTHONPATH``.
PACKAGE_PATH = os.pathsep.join(map(str, PACKAGE_DIRECTORIES))
#: Exit code of a process with invalid settings or declarations, as ``EX_CONFIG`` of BSD's sysexits. A restart fails
#: in the same way until they are changed.
EXIT_MISCONFIGURED = 78


@dataclass(frozen=True)
class ProcessSpec:
    """Process to run: its command, its readiness, and the handling of its end. Times are in seconds."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # on top of the supervisor's own environment
    cwd: Path | None = None
    # Returns once the process serves; called again after each restart. None: ready as soon as it runs.
    ready: Callable[[], Awaitable[None]] | None = None
    ready_within: float = 60.0
    # Probes the process with this id, see ``omnibus.up.watchdog.Probe``. None: it never counts as hanging.
    alive: Callable[[int], Awaitable[bool]] | None = field(default=None, compare=False)
    blocks: bool = False  # foreign code may wait in its event loop, so a healthy process may stand still
    # Socket of the fork server that forks it, if there is one. ``argv`` is then that of ``python_command``.
    fork_server: str = ""
    starts_alone: bool = False  # as a new interpreter, if the fork server cannot be reached: else it waits
    after: tuple[str, ...] = ()  # names of processes that must be ready before this one starts
    restart: bool = True
    vital: bool = True  # if it fails for good at the start, everything ends; else the others continue
    grace: float = 10.0  # between TERM and KILL


def has_package(name: str) -> bool:
    """Return whether one of our packages is installed next to this one."""
    return any((directory / name).is_dir() for directory in PACKAGE_DIRECTORIES)


def python_path() -> str:
    """Return the ``PYTHONPATH`` for child processes: our packages, and this process's own path."""
    return os.pathsep.join(filter(None, [PACKAGE_PATH, os.environ.get("PYTHONPATH")]))


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of ``python -m module`` with this interpreter, its output unbuffered."""
    return (sys.executable, "-u", "-m", module, *arguments)
