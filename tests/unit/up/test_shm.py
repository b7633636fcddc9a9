"""Arenas of killed runs are removed, and no others."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from omnibus.tensors.arena import Arena
from omnibus.up.shm import remove_orphaned_arenas

LATER_SECONDS = 3600.0
OTHER_USER = 12345


@pytest.fixture
def dead_pid() -> int:
    """The id of a killed process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.kill()
    return process.pid


def make_arena(directory: Path, pid: int, suffix: str = "") -> Path:
    path = directory / f"omnibus-local-{pid}{suffix}"
    path.write_bytes(b"x")
    return path


def test_arenas_of_a_killed_run_are_removed_on_all_its_nodes(tmp_path: Path, dead_pid: int):
    left = [make_arena(tmp_path, dead_pid), make_arena(tmp_path, dead_pid, "-1")]
    other_files = [
        tmp_path / name for name in ("omnibus-local", "omnibus-node-1", f"omnibus-local-{dead_pid}-peers.txt")
    ]
    for path in other_files:
        path.write_bytes(b"x")

    assert remove_orphaned_arenas(tmp_path) == [path.name for path in left]
    assert sorted(tmp_path.iterdir()) == sorted(other_files)


def test_an_arena_whose_supervisor_lives_is_kept(tmp_path: Path):
    arena_path = make_arena(tmp_path, os.getpid())

    assert remove_orphaned_arenas(tmp_path) == []
    assert arena_path.exists()


def test_an_arena_whose_sidecar_lives_is_kept_whatever_process_ids_say(tmp_path: Path, dead_pid: int):
    mapped_arena = Arena.create(f"omnibus-local-{dead_pid}", 1 << 16, str(tmp_path))  # as a sidecar does

    assert remove_orphaned_arenas(tmp_path) == []
    mapped_arena.close()
    assert make_arena(tmp_path, dead_pid).exists()
    assert remove_orphaned_arenas(tmp_path) == [f"omnibus-local-{dead_pid}"]


def test_a_process_that_has_got_the_id_of_a_killed_one_keeps_nothing(tmp_path: Path):
    left = make_arena(tmp_path, os.getpid())
    before = psutil.Process().create_time() - LATER_SECONDS
    os.utime(left, (before, before))  # it was last used before this process began

    assert remove_orphaned_arenas(tmp_path) == [left.name]


def test_links_are_kept(tmp_path: Path, dead_pid: int):
    target = tmp_path / "target"
    target.write_bytes(b"x")
    (tmp_path / f"omnibus-local-{dead_pid}-1").symlink_to(target)

    assert remove_orphaned_arenas(tmp_path) == []
    assert target.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_files_of_other_users_are_kept(tmp_path: Path, dead_pid: int):
    arena_path = make_arena(tmp_path, dead_pid)
    os.chown(arena_path, OTHER_USER, OTHER_USER)

    assert remove_orphaned_arenas(tmp_path) == []
    assert arena_path.exists()


def test_two_commands_at_once_do_not_disturb_each_other(tmp_path: Path, dead_pid: int):
    left = make_arena(tmp_path, dead_pid)
    with left.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        assert remove_orphaned_arenas(tmp_path) == []
    assert remove_orphaned_arenas(tmp_path) == [left.name]
    assert remove_orphaned_arenas(tmp_path / "none") == []
