"""Walk the paths in an empty directory: run, time and check each command."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as File

from omnibus.process.spec import PACKAGE_PATH
from omnibus.up.ports import free_ports
from tests.paths.table import WORLD_PORT, Command, Path

ROOT = File(__file__).parents[2]
#: Seconds after which a command that still runs has failed, on a loaded machine too.
TIMEOUT_SECONDS = 240


class WrongOutputError(Exception):
    """A command of a path failed, or its output was wrong."""


@dataclass(frozen=True)
class Walked:
    """A completed path: seconds of its system's start (0 without one), and of each command."""

    path: Path
    start_seconds: float
    seconds: tuple[float, ...]

    @property
    def total_seconds(self) -> float:
        return self.start_seconds + sum(self.seconds)


@dataclass
class _System:
    """A background run of ``omnibus up``, or the slot for one."""

    directory: File
    port: int
    seconds: float = 0.0
    found: dict[str, str] = field(default_factory=dict)

    def run(self, command: Command, *more: str) -> float:
        """Run ``command``; return its seconds. Raises ``WrongOutputError``."""
        start = time.monotonic()
        process = subprocess.run(
            ["bash", "-c", " ".join([self._fill_text(command.text), command.ending, *more])],
            cwd=self.directory,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("OMNIBUS_")},
                "PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}",
                "XDG_RUNTIME_DIR": str(self.directory / "run"),
            },
            text=True,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        seconds = time.monotonic() - start
        match = re.search(command.right, process.stdout, re.MULTILINE | re.DOTALL)
        if process.returncode or match is None:
            raise WrongOutputError(f"{command.text}\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}")
        self.found |= match.groupdict()
        return seconds

    def _fill_text(self, text: str) -> str:
        """The command with this environment, port and the ids that were found."""
        text = re.sub(r"^(?:\.venv/bin/)?omnibus\b", f"{sys.executable} -m omnibus.cli", text)
        text = text.replace(f"127.0.0.1:{WORLD_PORT}", f"127.0.0.1:{self.port}")
        return re.sub(r"\bID\b", self.found.get("id", "ID"), text)


def walk_paths(paths: Iterable[Path]) -> Iterator[Walked]:
    """Walk ``paths`` in sequence; those that begin with the same command share one system.

    Raises ``WrongOutputError`` for the first command with wrong output.
    """
    waiting = list(paths)
    while waiting:
        begins = waiting[0].system
        alike = [path for path in waiting if path.system == begins]
        waiting = [path for path in waiting if path.system != begins]
        with _run_system(begins) as system:
            for path in alike:
                for name, text in path.files:
                    (system.directory / name).write_text(text)
                yield Walked(path, system.seconds, tuple(system.run(command) for command in path.commands))
                for command in path.beyond:
                    system.run(command)


@contextmanager
def _run_system(begins: Command | None) -> Iterator[_System]:
    """Run ``begins`` in an empty directory with the examples; remove everything at the end."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="omnibus-paths-") as name:
        system = _System(File(name), port)
        (system.directory / "run").mkdir(mode=0o700)
        shutil.copytree(ROOT / "examples", system.directory / "examples")
        if begins is None:
            yield system
            return
        try:
            system.seconds = system.run(begins, "--detach", "--port", str(port))
            yield system
        finally:
            system.run(Command("omnibus down --all", "", ""))
