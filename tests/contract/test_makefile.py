"""Output of `make` while it installs: progress of pip, and its warnings only after a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.terminal.screen import run_in_terminal

ROOT = Path(__file__).parents[2]
#: A directory of packages that does not exist, of which pip warns.
NOWHERE = "--no-index --find-links /nowhere"


@pytest.fixture
def make_command(tmp_path: Path) -> list[str]:
    """The command of a target ``try``, which installs PACKAGE."""
    (tmp_path / "bin").symlink_to(Path(sys.executable).parent)
    rules = tmp_path / "try.mk"
    rules.write_text(f"include Makefile\ntry:\n\t@$(PIP) --dry-run {NOWHERE} $(PACKAGE) $(OR_FAIL)\n")
    return ["make", "-s", "-C", str(ROOT), "-f", str(rules), f"VENV={tmp_path}", "try"]


def test_a_person_sees_progress_without_warnings(make_command: list[str]):
    code, lines = run_in_terminal([*make_command, "PACKAGE=pip"], {"PATH": "/usr/bin:/bin"})

    assert code == 0
    assert any(line.startswith("Requirement already satisfied") for line in lines)
    assert not any("WARNING" in line for line in lines)


def test_a_log_has_nothing_but_failures(make_command: list[str]):
    silent = subprocess.run([*make_command, "PACKAGE=pip"], capture_output=True, text=True, timeout=60, check=True)
    failed = subprocess.run([*make_command, "PACKAGE=no-such"], capture_output=True, text=True, timeout=60, check=False)

    assert (silent.stdout, silent.stderr) == ("", "")
    assert failed.returncode != 0
    assert "No matching distribution found for no-such" in failed.stderr
