"""The run directory: private, found by other commands, removed or cleaned up afterwards."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from omnibus.errors import BadRequest, Conflict, Fatal, StageUnavailable
from omnibus.up import runs
from omnibus.up import runs as run_dir
from omnibus.up.runs import RunDirectory, RunState
from omnibus.up.shm import SHARED_MEMORY

HOLDER = """
import sys, time
from omnibus.up.runs import RunDirectory
from omnibus.up.runs import RunState
with RunDirectory() as directory:
    directory.write_state(RunState(str(directory.path), 1, time.time(), "nats://n", "redis://r", shm_prefix=sys.argv[1]))
    print(directory.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def environ(tmp_path, monkeypatch):
    """A runtime directory and a temporary directory for one test."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return os.environ


def state_of(directory: RunDirectory, **more: Any) -> RunState:
    return RunState(str(directory.path), os.getpid(), time.time(), "nats://n", "redis://r", **more)


def test_a_fresh_directory_is_private_and_goes_away():
    with RunDirectory() as directory:
        assert directory.path.stat().st_mode & 0o777 == 0o700

    assert not directory.path.exists()


def test_the_latest_run_is_found_and_forgotten_at_its_end():
    with RunDirectory() as directory:
        state = state_of(directory, ports={"nats": 4222}, pids={"nats": 7})
        directory.write_state(state)

        assert runs.read_state() == runs.read_state(directory.path) == replace(state, name=directory.path.name)

    with pytest.raises(StageUnavailable, match="omnibus up"):
        runs.read_state()


def test_without_a_runtime_directory_the_home_is_used(tmp_path):
    assert runs.registry_path({"HOME": str(tmp_path)}) == tmp_path / ".omnibus" / "runs"


def test_a_given_directory_is_kept_without_its_state(tmp_path):
    with RunDirectory(tmp_path / "mine") as directory:
        directory.write_state(state_of(directory))

    assert directory.path.is_dir()
    assert not (directory.path / "up.json").exists()


def test_one_directory_serves_one_run(tmp_path):
    with (
        RunDirectory(tmp_path / "mine"),
        pytest.raises(Fatal, match="is in use by a running"),
        RunDirectory(tmp_path / "mine"),
    ):
        pass


def test_runs_leave_each_other_alone(monkeypatch: pytest.MonkeyPatch):
    with RunDirectory() as one:
        one.write_state(state_of(one, name="one"))
        with RunDirectory() as other:
            other.write_state(state_of(other, name="other", gateway_url="http://o"))

            assert [state.name for state in runs.list_runs()] == ["one", "other"]
            with pytest.raises(
                BadRequest, match=r"name one of several runs with --run NAME .*: one \(\), other \(http://o\)"
            ):
                runs.read_state()
            monkeypatch.setenv("OMNIBUS_RUN", "other")
            assert runs.read_state().directory == str(other.path)

        with pytest.raises(StageUnavailable, match="unknown run other: running are one"):
            runs.read_state()
        monkeypatch.delenv("OMNIBUS_RUN")
        assert runs.read_state().directory == str(one.path)


def test_two_runs_do_not_have_one_name():
    with RunDirectory() as one:
        one.write_state(state_of(one, name="mine", gateway_url="http://one"))

        with pytest.raises(Conflict, match="mine is up at http://one"), RunDirectory(name="mine"):
            pass
        with RunDirectory() as other, pytest.raises(Conflict, match="mine is up"):
            other.write_state(state_of(other, name="mine"))
        assert runs.read_state().directory == str(one.path)


def test_a_passing_run_is_meant_only_while_there_is_no_other(monkeypatch: pytest.MonkeyPatch):
    with RunDirectory() as passing:
        passing.write_state(state_of(passing, passing=True, name="passing"))
        with RunDirectory() as stays:
            stays.write_state(state_of(stays))
            assert runs.read_state().directory == str(stays.path)
            monkeypatch.setenv("OMNIBUS_RUN", "passing")
            assert runs.read_state().directory == str(passing.path)
            monkeypatch.delenv("OMNIBUS_RUN")

        assert runs.read_state().directory == str(passing.path)


def test_state_files_are_whole_and_private():
    with RunDirectory() as directory:
        for _ in range(3):
            directory.write_state(state_of(directory))

        names = {path.name for path in directory.path.iterdir()}
        assert names == {"up.json", "up.lock"}
        assert (directory.path / "up.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm on this system")
def test_what_a_killed_run_left_is_removed_by_the_next_one():
    prefix = f"omnibus-test-{uuid.uuid4().hex}"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, prefix], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as dead:
        assert dead.stdout is not None
        left = Path(dead.stdout.readline().decode().strip())
        segment = SHARED_MEMORY / f"{prefix}-arena"
        segment.write_bytes(b"x")
        assert run_dir.remove_leftovers() == []
        dead.send_signal(signal.SIGKILL)
        dead.wait(10)

        with pytest.raises(StageUnavailable):
            runs.read_state()
        assert list(runs.registry_path().iterdir()) != []
        with RunDirectory():
            assert list(runs.registry_path().iterdir()) == []
            assert not left.exists()
            assert not segment.exists()
