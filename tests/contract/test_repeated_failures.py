"""``.ci/run`` runs tests that fail once more, and fails if they fail again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci/run"

TESTS = """
import pathlib

import pytest


@pytest.mark.parametrize("word", ["a b", "c"])
def test_first(word):
    mark = pathlib.Path("ran")
    ran, _ = mark.exists(), mark.write_text("")
    assert ran


def test_second():
    assert {second}
"""
SCRIPT = """
set -um
LOGS=. LIMIT=100 ARGS=-q repeated=()
{functions}
test_target 0 test > >(tee test.log) 2>&1
echo "status $?, once more: ${{repeated[*]:-}}"
"""


def run_target(directory: Path, makefile: str = "test:\n\t.venv/bin/python -m pytest $(ARGS)\n") -> str:
    """Run ``test_target`` of ``.ci/run`` in ``directory``, and return the last line."""
    script = CI.read_text()
    functions = "\n".join(re.findall(r"^(?:make_until|test_target)\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL))
    (directory / ".venv/bin").mkdir(parents=True)
    python = directory / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (directory / "Makefile").write_text(makefile)
    command = ["bash", "-c", SCRIPT.format(functions=functions)]
    output = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    return output.stdout.splitlines()[-1]


@pytest.mark.parametrize("second", [True, False])
def test_what_fails_runs_once_more(tmp_path: Path, second: bool):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_both.py").write_text(TESTS.format(second=second))
    expected = "status 0, once more: tests/test_both.py::test_first" if second else "status 1, once more: "

    assert run_target(tmp_path) == expected


def test_a_run_that_was_interrupted_is_not_repeated(tmp_path: Path):
    makefile = "test:\n\t@echo 'FAILED tests/test_both.py::test_first - broken'; exit 2\n"

    assert run_target(tmp_path, makefile) == "status 1, once more: "
