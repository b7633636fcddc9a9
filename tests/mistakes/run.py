"""Make one mistake for real, and check the command's output."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnibus.process.spec import PACKAGE_PATH
from tests.mistakes.table import ANY, Mistake

ROOT = Path(__file__).parents[2]
#: Seconds after which a command that still runs has failed, on a loaded machine too.
TIMEOUT_SECONDS = 60
#: Most lines that an answer may have.
MAX_LINES = 3
#: The command as people start it.
OMNIBUS = (sys.executable, "-m", "omnibus.cli")


@dataclass(frozen=True)
class Answer:
    """Output of a command, and its seconds.

    ``problems`` is empty if the output matches the table.
    """

    printed: str
    seconds: float
    problems: list[str]


def run_mistake(
    mistake: Mistake, directory: Path, environ: Mapping[str, str] | None = None, omnibus: Sequence[str] = OMNIBUS
) -> Answer:
    """Make ``mistake`` in an empty ``directory``.

    It is also the home and the directory for temporary files. ``omnibus`` starts the command.
    """
    work, home = directory / "work", directory / "home"
    for each in (work, home):
        each.mkdir()
    for name, text in mistake.files.items():
        (work / name).write_text(text)
    places = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OMNIBUS_")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"taken": str(taken.getsockname()[1])}
        command = [*omnibus, *shlex.split(_fill(mistake.command, values))[1:]]
        begun = time.monotonic()
        done = subprocess.run(
            command,
            cwd=work,
            env={
                **inherited,
                "PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}",
                **places,
                **(environ or {}),
                **mistake.environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        seconds = time.monotonic() - begun
    printed = done.stdout.strip()
    problems = [
        *_problems(mistake, printed, done.returncode, values),
        *(f"left behind: {each}" for each in _left(home)),
    ]
    return Answer(printed, seconds, problems)


def _problems(mistake: Mistake, printed: str, code: int, values: Mapping[str, str]) -> list[str]:
    found = []
    if code != mistake.code:
        found.append(f"exit code {code} instead of {mistake.code}")
    if len(printed.splitlines()) > MAX_LINES:
        found.append(f"{len(printed.splitlines())} lines")
    pattern = ".*".join(map(re.escape, _fill(mistake.answer, values).split(ANY)))
    if not re.fullmatch(pattern, printed):
        found.append(f"printed {printed!r}")
    return found


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _left(home: Path) -> list[str]:
    """Files that the command left; a failed command must not leave any."""
    return [str(each.relative_to(home)) for each in home.rglob("*") if each.is_file()]
