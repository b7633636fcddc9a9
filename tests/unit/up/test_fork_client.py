"""The proxy of a forked process: linked to its process."""

from pathlib import Path

import psutil
import pytest

from omnibus.process.spec import python_command
from omnibus.up import watchdog as motion
from tests.unit.up.births import ForkServer, read_pids


@pytest.fixture(scope="module")
def fork_server_(tmp_path_factory):
    """One fork server for tests that do not change it."""
    home = ForkServer(tmp_path_factory.mktemp("fork-server"))
    with home.run_server():
        yield home


def test_a_process_has_a_command_line_of_its_own_and_its_sprout_stands_for_it(fork_server_):
    with fork_server_.run_proxy("sleeps", "a", "b c") as process:
        (pid,) = read_pids(process)

        assert [word for word in psutil.Process(pid).cmdline() if word] == [*python_command("sleeps", "a", "b c")]
        assert motion.find_forked_pid(process.pid) == pid
        assert motion.find_forked_pid(pid) == pid


def test_a_command_line_that_does_not_fit_is_cut_off(fork_server_):
    with fork_server_.run_proxy("sleeps", "x" * 10_000) as process:
        (pid,) = read_pids(process)
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()

    assert " ".join(python_command("sleeps", "xxx")) in command_line.replace(b"\0", b" ").decode()
    assert len(command_line) < 10_000
