"""The proxy of a forked process: linked to its process, and able to run it without a fork server."""

import json
import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from omnibus.process.spec import python_command
from omnibus.up import fork_client, motion
from tests.unit.up.births import ForkServer, read_pids, start_process
from tests.unit.up.programs import WITHIN


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


def test_a_process_that_need_not_be_born_begins_by_itself_without_a_fork_server(tmp_path):
    home = ForkServer(tmp_path)
    command = fork_client.fork_server_command(home.socket, "tells", "a", or_begin=True)

    def run_sprout() -> dict[str, object]:
        end = subprocess.run(
            command,
            env=home.environ,
            cwd=tmp_path,
            input="hello",
            text=True,
            capture_output=True,
            check=False,
            timeout=WITHIN,
        )
        assert end.returncode == 0
        return json.loads(end.stdout)

    without = run_sprout()
    with home.run_server() as server_process:
        forked_report = run_sprout()
        server_process.kill()
        server_process.wait(WITHIN)
    last_report = run_sprout()

    assert [each["imported_by"] == each["pid"] for each in (without, forked_report, last_report)] == [True, False, True]
    assert {(*each["argv"], each["in"], each["main"]) for each in (without, forked_report, last_report)} == {
        ("a", "hello", "__main__")
    }


def test_what_a_fork_server_bore_and_did_not_say_ends_when_its_sprout_begins_by_itself(tmp_path):
    """The fork server ends between the fork and its reply: there must not be two processes."""
    path = str(tmp_path / "broken.sock")
    command = fork_client.fork_server_command(path, "tells", or_begin=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with start_process(
            command, env=ForkServer(tmp_path).environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as end:
            connection, _ = listener.accept()
            with connection:
                _, (*streams, lifeline), _, _ = socket.recv_fds(connection, 1 << 20, 4)
            for each in streams:
                os.close(each)
            report = json.loads(end.stdout.read())

        assert report["pid"] == end.pid == report["imported_by"]
        assert os.read(lifeline, 1) == b""  # its other end is closed, since the forked process is killed
        os.close(lifeline)
