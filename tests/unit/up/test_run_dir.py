"""The run directory: private, found by other commands, gone or cleaned up afterwards."""

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

from omnibus.errors import Fatal, StageUnavailable
from omnibus.up import run_dir
from omnibus.up.run_dir import RunDirectory, RunState
from omnibus.up.shm import SHARED_MEMORY

HOLDER = """
import sys, time
from omnibus.up.run_dir import RunDirectory, RunState
with RunDirectory() as directory:
    directory.write_state(RunState(str(directory.path), 1, time.time(), "nats://n", "redis://r", shm_prefix=sys.argv[1]))
    print(directory.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def environ(tmp_path, monkeypatch):
    """A runtime directory and a directory for temporary files of this test's own."""
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

        assert run_dir.read_state() == state
        assert run_dir.read_state(directory.path) == state

    with pytest.raises(StageUnavailable, match="omnibus up"):
        run_dir.read_state()


def test_without_a_runtime_directory_the_home_is_used(tmp_path):
    assert run_dir.pointer_path({"HOME": str(tmp_path)}) == tmp_path / ".omnibus" / "run" / "current.json"


def test_a_given_directory_is_kept_without_its_state(tmp_path):
    with RunDirectory(tmp_path / "mine") as directory:
        directory.write_state(state_of(directory))

    assert directory.path.is_dir()
    assert not (directory.path / "up.json").exists()


def test_one_directory_serves_one_run(tmp_path):
    with (
        RunDirectory(tmp_path / "mine"),
        pytest.raises(Fatal, match="still running"),
        RunDirectory(tmp_path / "mine"),
    ):
        pass


def test_an_earlier_run_does_not_take_the_pointer_of_a_later_one_with_it():
    with RunDirectory() as later:
        with RunDirectory() as earlier:
            earlier.write_state(state_of(earlier))
            later.write_state(state_of(later))

        assert run_dir.read_state().directory == str(later.path)


def test_a_passing_run_is_found_only_while_there_is_no_other():
    with RunDirectory(passing=True) as passing:
        with RunDirectory() as stays:
            stays.write_state(state_of(stays))
            passing.write_state(state_of(passing))
            assert run_dir.read_state().directory == str(stays.path)

        passing.write_state(state_of(passing))
        assert run_dir.read_state().directory == str(passing.path)


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
            run_dir.read_state()
        with RunDirectory():
            assert not left.exists()
            assert not segment.exists()
