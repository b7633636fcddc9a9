"""Processes outlive their fork server, and still end with their proxy."""

import os
import signal
import subprocess

import pytest

from tests.unit.up.births import ForkServer, read_pids
from tests.unit.up.programs import WITHIN, all_gone


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_outlive_the_fork_server_and_still_obey_their_sprout(tmp_path, number):
    home = ForkServer(tmp_path)
    with (
        home.run_server() as fork_server_process,
        home.run_proxy("handles", stderr=subprocess.PIPE) as process,
        home.run_proxy("works") as working,
    ):
        assert process.stdout.readline() == "up\n"
        read_pids(working)

        fork_server_process.send_signal(number)
        fork_server_process.wait(WITHIN)
        assert "continues without it" in process.stderr.readline()
        assert read_pids(working)  # it says another number
        process.terminate()

        assert process.wait(WITHIN) == 1
        assert "its exit code is unknown" in process.stderr.read()


@pytest.mark.parametrize("module", ["family", "hangs"])
def test_a_killed_sprout_takes_the_process_and_its_children_along_when_the_fork_server_is_gone(tmp_path, module):
    home = ForkServer(tmp_path)
    with home.run_server() as fork_server_process, home.run_proxy(module, "stays", stderr=subprocess.PIPE) as process:
        pids = read_pids(process)
        fork_server_process.kill()
        assert "continues without it" in process.stderr.readline()

        process.kill()

        assert all_gone(pids)


def test_a_process_that_ends_when_the_fork_server_is_gone_ends_its_sprout_and_its_children(tmp_path):
    home = ForkServer(tmp_path)
    with home.run_server() as fork_server_process, home.run_proxy("family", "stays", stderr=subprocess.PIPE) as process:
        pids = read_pids(process)
        fork_server_process.kill()
        assert "continues without it" in process.stderr.readline()

        os.kill(pids[0], signal.SIGKILL)

        assert process.wait(WITHIN) == 1
        assert all_gone(pids)


def test_a_fork_server_that_starts_again_bears_beside_those_that_outlived_the_first(tmp_path):
    home = ForkServer(tmp_path)
    with home.run_server() as first, home.run_proxy("works") as process:
        read_pids(process)
        first.kill()
        first.wait(WITHIN)

        with home.run_server():
            assert home.run("exits", "6").returncode == 6
            assert read_pids(process)
