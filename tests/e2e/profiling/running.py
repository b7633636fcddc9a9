"""``omnibus profile`` as a person runs it."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from omnibus.process.spec import PACKAGE_PATH
from omnibus.process.tuning import die_with_parent
from omnibus.up.shm import SHARED_MEMORY
from tests.e2e import warm
from tests.e2e.system import ROOT, VL

WITHIN = 200.0  # seconds

#: Service times of tens of milliseconds, so that neither the machine nor the client is the bottleneck.
SIM: dict[str, Any] = {
    "time_scale": 0.5,
    "default": {
        "startup": 0.2,
        "components": {
            "vision": {"slots": 4, "batch": {"base": 0.02, "per_item": 0.03}, "tokens": {"image": 64}, "width": 16},
            "thinker": {
                "slots": 4, "batch": {"base": 0.001, "per_token": 1e-4}, "step": {"base": 0.01, "per_item": 0.001},
                "steps": 12, "width": 16, "chunk": 16,
            },
        },
    },
    "options": {"EL": {"alpha": 1.2}},
}  # fmt: skip


def question_body(words: int, tokens: int, *pictures: list[int]) -> dict[str, Any]:
    content = [*({"image": size} for size in pictures), {"type": "text", "text": "word" * words}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "ignore_eos": True}


class ProfileRun:
    """One ``omnibus profile``: its process and its output."""

    def __init__(self, here: Path, *arguments: str) -> None:
        paths = f"{ROOT}:{PACKAGE_PATH}"
        self._process = subprocess.Popen(
            warm.omnibus_command("profile", *arguments),
            cwd=here,
            env={**os.environ, "PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(here)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent(),
        )
        self._pid = warm.wait_for_fork(self._process)
        self.said = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self.said += line
                self._news.notify_all()

    def until(self, words: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: words in self.said, WITHIN), self.said

    def executor(self, option: str) -> psutil.Process:
        """The process that runs ``option``."""
        processes = psutil.Process(self._pid).children(recursive=True)
        return next(one for one in processes if one.environ().get("OMNIBUS_EXECUTOR_OPTION") == option)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return exit code and output, and check for leftovers."""
        family = psutil.Process(self._pid).children(recursive=True) if self._process.poll() is None else []
        assert self._process.stdout is not None
        output = self._process.stdout.read()
        code = self._process.wait(WITHIN)
        self._reader.join(WITHIN)
        alive = [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        assert alive == []
        assert list(SHARED_MEMORY.glob(f"omnibus-local-{self._pid}*")) == []
        return code, output

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()


@contextmanager
def start_profile(here: Path, *arguments: str) -> Iterator[ProfileRun]:
    run = ProfileRun(here, *arguments)
    try:
        yield run
    finally:
        run.kill()


def run_profile(here: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and messages of a complete run."""
    with start_profile(here, *arguments) as run:
        code, output = run.end()
        return code, output, run.said


def write_speaking(here: Path, sim: dict[str, Any], *requests: tuple[float, dict[str, Any]]) -> list[str]:
    """``simulated`` of a model that speaks."""
    arguments = write_simulation(here, sim, *requests)
    (here / "models.json").write_text(
        json.dumps({"models": {VL: {"family": "qwen2_5_omni", "checkpoint": str(here / "nothing")}}})
    )
    return arguments


def write_simulation(here: Path, profile: dict[str, Any], *requests: tuple[float, dict[str, Any]]) -> list[str]:
    """Arguments of a run on the ``sim`` engine with ``profile``; ``requests`` are shares and bodies."""
    (here / "sim.json").write_text(json.dumps(profile))
    entries = [{"share": share, "body": body} for share, body in requests]
    (here / "workload.json").write_text(json.dumps({"requests": entries}))
    (here / "models.json").write_text(
        json.dumps({"models": {VL: {"family": "qwen2_5_vl", "checkpoint": str(here / "nothing")}}})
    )
    return [
        VL, "--models", "models.json", "--workload", "workload.json", "--out", "vl.json",
        "--engine", "omnibus_engines:sim", "--engine-profile", "sim.json",
    ]  # fmt: skip
