"""``python -m tests.repeat`` counts flaky failures, and runs that end early."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import repeat

FLAKY = """
import pathlib
import pytest

def test_it():
    runs = pathlib.Path(__file__).with_suffix(".runs")
    runs.write_text(runs.read_text() + "." if runs.exists() else ".")
    assert len(runs.read_text()) != 2, "the second time"

@pytest.mark.skip
def test_nothing(): pass
"""


@pytest.fixture
def flaky_directory(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    return tmp_path


def test_a_test_that_fails_now_and_then_is_counted_and_its_output_kept(flaky_directory: Path):
    into = flaky_directory / "logs"
    command = [
        sys.executable,
        "-m",
        "tests.repeat",
        "--times",
        "3",
        "--busy",
        "1",
        "--into",
        str(into),
        str(flaky_directory),
    ]

    process = subprocess.run(command, cwd=repeat.ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert process.returncode == 1, process.stderr
    assert "::test_it: AssertionError: the second time" in process.stdout
    row = process.stdout.splitlines()[-1].split(" | ")
    assert row[0].endswith("test_flaky.py")
    assert (row[1], row[2], row[-1]) == ("3", "1", "test_it (1) |")
    assert ["the second time" in each.read_text() for each in into.iterdir()] == [True]


def test_a_run_without_results_is_a_failure(tmp_path: Path):
    (case,) = repeat.run_target(str(tmp_path / "test_absent.py"), ["-p", "no:cacheprovider"], tmp_path / "absent.log")

    assert case.failure == "pytest ended with 4"
