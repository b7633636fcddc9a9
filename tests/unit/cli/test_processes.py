"""Runs in the background: starting, listing, inspecting and stopping them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from omnibus.process.spec import PACKAGE_PATH
from tests.e2e import warm

ROOT = Path(__file__).parents[3]


class BackgroundShell:
    """Commands of one user, with runs invisible to other users."""

    def __init__(self, directory: Path) -> None:
        paths = f"{ROOT}:{PACKAGE_PATH}"
        self.env = {**os.environ, "PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(directory), "OMNIBUS_UP_FORK_SERVER": "0"}

    def run(self, *arguments: str, code: int = 0, **env: str) -> str:
        """Run ``omnibus arguments``, check its exit code and return its output."""
        process = subprocess.run(
            warm.omnibus_command(*arguments), env={**self.env, **env}, cwd=ROOT,
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert process.returncode == code, process.stdout + process.stderr
        return process.stdout + process.stderr


@pytest.fixture
def shell(tmp_path: Path):
    user_shell = BackgroundShell(tmp_path)
    yield user_shell
    user_shell.run("down", "--all")


def test_runs_in_the_background_are_listed_looked_at_and_ended(shell: BackgroundShell):
    up = ("up", "--detach", "--port", "0", "--no-models", "--name")
    start_text = shell.run(*up, "one")
    assert "In the background as one" in start_text
    shell.run(*up, "two")

    runs = json.loads(shell.run("ps", "--json"))
    assert [(run["name"], run["ready"]) for run in runs] == [("one", True), ("two", True)]
    assert runs[0]["url"] in start_text
    assert "name one of several runs with --run NAME or OMNIBUS_RUN: one (http" in shell.run("status", code=1)
    status = json.loads(shell.run("status", "--run", "two", "--json"))
    assert (status["url"], status["missing"]) == (runs[1]["url"], "")
    assert set(status["pids"]) == {"nats", "valkey", "planner", "sidecar", "gateway"}
    log_lines = shell.run("logs", "gateway", OMNIBUS_RUN="one").splitlines()
    assert all(line.startswith("gateway |") for line in log_lines)
    assert any(runs[0]["url"] in line for line in log_lines)
    assert "no process fish of one" in shell.run("logs", "fish", "--run", "one", code=1)
    assert "a run named two is up" in shell.run(*up, "two", code=78)
    shell.run("down", "--run", "two")

    assert [run["name"] for run in json.loads(shell.run("ps", "--json"))] == ["one"]
    assert shell.run("status").startswith("one: ready")


def test_what_keeps_a_run_from_starting_is_said_by_the_command_that_started_it(shell: BackgroundShell):
    error = shell.run("up", "--detach", "--no-models", "--port", "99999", code=78)

    assert error.splitlines()[-1].startswith("omnibus: port 99999 must be a number")


def test_a_variable_that_is_no_setting_is_said_before_anything_starts(shell: BackgroundShell):
    error = shell.run("up", "--no-models", "--port", "0", code=78, OMNIBUS_GATEWAY_KEYZ="1")

    assert error == "omnibus: OMNIBUS_GATEWAY_KEYZ is not a setting: did you mean OMNIBUS_GATEWAY_KEYS?\n"
