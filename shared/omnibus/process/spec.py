"""The description of one process that the supervisor is to keep running."""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Directory of the packages ``omnibus`` and ``omnibus_models``.
SHARED = Path(__file__).parents[2]
#: Directory of the package ``services``: that of an installed wheel, or the root of a checkout.
ROOT = SHARED if (SHARED / "services").is_dir() else SHARED.parent
#: Exit code of a process whose settings or declarations are wrong, as ``EX_CONFIG`` of BSD's sysexits: another start
#: ends in the same way until somebody changes them.
EXIT_MISCONFIGURED = 78


@dataclass(frozen=True)
class ProcessSpec:
    """One process: what to run, when it counts as ready, and what happens when it ends. Times are in seconds."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # on top of the supervisor's own environment
    cwd: Path | None = None
    # Returns once the process serves; called anew after each restart. None: ready as soon as it runs.
    ready: Callable[[], Awaitable[None]] | None = None
    ready_within: float = 60.0
    # Asks the process with this id, see ``omnibus.up.watchdog.Probe``. None: it is never taken for one that hangs.
    alive: Callable[[int], Awaitable[bool]] | None = field(default=None, compare=False)
    blocks: bool = False  # code of others may wait in its event loop, so that it stands still and is well
    after: tuple[str, ...] = ()  # names of processes that must be ready before this one starts
    restart: bool = True
    vital: bool = True  # when it is given up at the start, everything ends; else the others run on without it
    grace: float = 10.0  # between TERM and KILL


def python_path() -> str:
    """``PYTHONPATH`` with which a process finds all packages of ours, and what this one finds by its own."""
    return os.pathsep.join(filter(None, [str(ROOT), str(SHARED), os.environ.get("PYTHONPATH")]))


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of ``python -m module`` with this interpreter, its output unbuffered."""
    return (sys.executable, "-u", "-m", module, *arguments)
