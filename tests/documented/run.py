"""A reader of a page: one directory, one shell, and the system that the page started last."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from omnibus.errors import OmnibusError
from omnibus.process.spec import PACKAGE_PATH
from omnibus.up.ports import free_ports
from tests.documented.blocks import JSON, PYTHON, ROOT, SHELL, Step
from tests.documented.data import read_data
from tests.documented.table import (
    BEFORE,
    PLACEHOLDERS,
    RESULTS,
    SAVED,
    WITHOUT_SYSTEM,
    Result,
    Saved,
    entries_for,
    first_entry,
)
from tests.e2e import warm
from tests.e2e.debugging import stand_in

#: Seconds that one step may take on a busy machine; the start of a system is one.
STEP_SECONDS = 600.0
_STOP_SECONDS = 30.0  # after Ctrl-C
_SUCCESS = Result()
_UP = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?omnibus up\b")
_ADDRESS = re.compile(r"\b(?:localhost|127\.0\.0\.1):8000\b")


class StepFailedError(Exception):
    """A step of a page failed, took too long, or printed something else than the page promises."""


class NotStartedError(Exception):
    """The system of a page is not up in time."""


@contextmanager
def open_page(page: str, directory: Path) -> Iterator["Reader"]:
    """Yield a reader of ``page`` in an empty ``directory``; the system stops at the end."""
    reader = Reader(page, directory)
    try:
        yield reader
    finally:
        reader.stop_system()


class Reader:
    """Runs the steps of one page as its text says, with the port of this run and the values of this reader."""

    def __init__(self, page: str, directory: Path) -> None:
        self._page = page
        (self._port,) = free_ports(1)
        self._work, self._variables = directory / "work", directory / "variables"
        self._variables.touch()
        shutil.copytree(ROOT / "examples", self._work / "examples")
        commands = self._work / ".venv" / "bin"
        commands.mkdir(parents=True)
        _write_command(commands / "omnibus", *warm.omnibus_command())
        _write_command(commands / "python", sys.executable)
        _write_command(commands / "curl", str(shutil.which("curl")), "-sS", "--fail-with-body")
        if shutil.which("nats") is None:
            _write_command(commands / "nats", sys.executable, stand_in.__file__)
        (directory / "run").mkdir(mode=0o700)
        paths = (str(commands), str(Path(sys.executable).parent), os.environ["PATH"])
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OMNIBUS_")},
            "PATH": os.pathsep.join(paths),
            "PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}",
            "MYPYPATH": PACKAGE_PATH,
            "XDG_RUNTIME_DIR": str(directory / "run"),
            "HF_HUB_OFFLINE": "1",
        }
        self._system, self._is_up = ExitStack(), False

    def find_fault(self, step: Step) -> str:
        """Return why ``step`` does not work, or "". Raises ``NotStartedError``, which ends the page."""
        try:
            self.run_step(step)
        except (StepFailedError, OmnibusError, ValueError) as error:
            return f"{step.page}: {error}"
        return ""

    def run_step(self, step: Step) -> None:
        """Do what ``step`` and the text around it say. Raises ``StepFailedError``."""
        if step.language == JSON:
            read_data(step.text, self._work)
            return
        if not self._is_up and self._page not in WITHOUT_SYSTEM and not _UP.match(step.text):
            self._start_system("omnibus up")
        for preparation in entries_for(BEFORE, step):
            self._run_shell(self._fill_text(preparation))
        text, result = self._fill_text(step.text), first_entry(RESULTS, step, _SUCCESS)
        if step.language == PYTHON:
            self._run_shell(self._save_block(text, first_entry(SAVED, step, Saved())), result)
        elif _UP.match(step.text):
            self._start_system(text)
        else:
            assert step.language == SHELL, step
            run = self._watch if result.meanwhile else self._run_shell
            run(text, result)

    def stop_system(self) -> None:
        """Stop the system, if one runs, with Ctrl-C."""
        self._is_up = False
        self._system.close()

    def _start_system(self, command: str) -> None:
        """Run ``command`` in a terminal of its own until the system is up."""
        self.stop_system()
        command = re.sub(r"\s+#.*", "", command) + f" --port {self._port}"
        file = self._variables.with_name("system")
        process = self._system.enter_context(self._running(command, file, saves=False))
        try:
            self._wait_for_output(command, process, file, Result("is up", meanwhile="sleep 0.5"))
        except StepFailedError as error:
            raise NotStartedError(str(error)) from error
        self._is_up = True

    def _save_block(self, text: str, saved: Saved) -> str:
        """Save a block of Python as the page says; return the command that runs it."""
        parts = [(self._work / name).read_text() for name in saved.after]
        (self._work / saved.name).write_text("\n\n".join([*parts, text]))
        return f"{saved.command} {saved.name}"

    def _fill_text(self, text: str) -> str:
        for placeholder, value in PLACEHOLDERS.get(self._page, {}).items():
            text = text.replace(placeholder, value)
        return _ADDRESS.sub(f"127.0.0.1:{self._port}", text)

    def _run_shell(self, text: str, result: Result = _SUCCESS) -> None:
        file = self._variables.with_name("output")
        with self._running(text, file) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STEP_SECONDS)
            output = file.read_text(errors="replace")
            if process.returncode != result.code or not re.search(result.output, output, re.MULTILINE):
                ended = "still runs" if process.returncode is None else f"ended with {process.returncode}"
                raise StepFailedError(f"{text}\n{ended}, expected {result}:\n{output[-4000:]}")

    def _watch(self, text: str, result: Result) -> None:
        """Run ``text`` until its output is right, then press Ctrl-C. Meanwhile another command repeats."""
        file = self._variables.with_name("watched")
        with self._running(text, file) as process:
            self._wait_for_output(text, process, file, result)

    def _wait_for_output(self, text: str, process: "subprocess.Popen[bytes]", file: Path, result: Result) -> None:
        give_up = time.monotonic() + STEP_SECONDS
        while not re.search(result.output, file.read_text(errors="replace"), re.MULTILINE):
            if process.poll() is not None or time.monotonic() > give_up:
                raise StepFailedError(f"{text}\nexpected {result}:\n{file.read_text()[-4000:]}")
            self._run_shell(self._fill_text(result.meanwhile))

    @contextmanager
    def _running(self, text: str, output: Path, saves: bool = True) -> Iterator["subprocess.Popen[bytes]"]:
        """Run ``text`` in a shell that has the variables and the directory of earlier ones; Ctrl-C ends it.

        With ``saves``, later ones have its own.
        """
        variables = shlex.quote(str(self._variables))
        state = f'{{ export -p; printf "cd %q" "$PWD"; }} > {variables}' if saves else ""
        command = ["bash", "-c", f"set -eo pipefail -a\n. {variables}\n{text}\n{state}"]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self._work, env=self._env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise


def _write_command(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
