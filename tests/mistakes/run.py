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
class MistakeAnswer:
    """Output of a command, and its seconds.

    ``problems`` is empty if the output matches the table.
    """

    printed: str
    seconds: float
    problems: list[str]


def run_mistake(
    mistake: Mistake, directory: Path, environ: Mapping[str, str] | None = None, omnibus: Sequence[str] = OMNIBUS
) -> MistakeAnswer:
    """Make ``mistake`` in an empty ``directory``.

    It is also the home and the directory for temporary files. ``omnibus`` starts the command.
    """
    work, home = directory / "work", directory / "home"
    for each in (work, home):
        each.mkdir()
    for name, text in mistake.files.items():
        (work / name).write_text(text)
    places = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")}
    base_environment = {name: value for name, value in os.environ.items() if not name.startswith("OMNIBUS_")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = {"taken": str(server.getsockname()[1])}
        command = [*omnibus, *shlex.split(_fill_text(mistake.command, values))[1:]]
        start = time.monotonic()
        process = subprocess.run(
            command,
            cwd=work,
            env={
                **base_environment,
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
        seconds = time.monotonic() - start
    output = process.stdout.strip()
    problems = [
        *_find_problems(mistake, output, process.returncode, values),
        *(f"left behind: {each}" for each in _list_leftovers(home)),
    ]
    return MistakeAnswer(output, seconds, problems)


def _find_problems(mistake: Mistake, output: str, code: int, values: Mapping[str, str]) -> list[str]:
    problems = []
    if code != mistake.code:
        problems.append(f"exit code {code} instead of {mistake.code}")
    if len(output.splitlines()) > MAX_LINES:
        problems.append(f"{len(output.splitlines())} lines")
    pattern = ".*".join(map(re.escape, _fill_text(mistake.answer, values).split(ANY)))
    if not re.fullmatch(pattern, output):
        problems.append(f"printed {output!r}")
    return problems


def _fill_text(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _list_leftovers(home: Path) -> list[str]:
    """Files that the command left; a failed command must not leave any."""
    return [str(each.relative_to(home)) for each in home.rglob("*") if each.is_file()]
