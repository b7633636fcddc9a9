"""Processes forked from a template behave like processes started normally."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from omnibus.families import catalog
from omnibus.process.spec import PACKAGE_PATH
from omnibus.up import fork_client, fork_server, health
from omnibus.up.fork_servers import EXECUTOR_MODULES
from omnibus.up.stack import Stack
from omnibus.up.tiny_models import tiny_models
from omnibus_models import tiny
from tests.unit.up.births import ForkServer, read_pids
from tests.unit.up.programs import WITHIN, Lines, all_gone, becomes_true, log_to

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> ForkServer:
    return ForkServer(tmp_path_factory.mktemp("fork-server"))


@pytest.fixture(scope="module")
def process(home) -> Iterator["subprocess.Popen[str]"]:
    """One fork server for tests that do not change it."""
    with home.run_server() as process:
        yield process


@pytest.fixture
def fork_server_(home, process) -> ForkServer:
    return home


def test_a_process_has_the_streams_arguments_environment_and_directory_of_its_sprout(fork_server_, tmp_path):
    environ = {"WHO": "me", "ODD": "=\n", "LC_ALL": "C.UTF-8"}
    end = fork_server_.run("tells", "a", "b c", stdin="hello", env=environ, cwd=tmp_path)

    report = json.loads(end.stdout)
    assert report["argv"] == ["a", "b c"]
    assert report["environ"] == environ
    assert report["cwd"] == report["path"] == str(tmp_path)
    assert report["in"] == "hello"
    assert report["main"] == "__main__"
    assert end.stderr == "a complaint\n"
    assert end.returncode == 0


def test_what_the_fork_server_has_imported_is_shared_and_chance_is_not(fork_server_, process):
    one, other = (json.loads(fork_server_.run("tells").stdout) for _ in range(2))

    assert one["imported_by"] == other["imported_by"] == process.pid
    assert one["pid"] != other["pid"]
    assert not set(one["dice"]) & set(other["dice"])


def test_a_process_leads_a_group_of_its_own_and_holds_no_descriptor_of_others(fork_server_):
    with fork_server_.run_proxy("sleeps") as neighbour:
        read_pids(neighbour)

        report = json.loads(fork_server_.run("tells").stdout)

    assert report["group"] == report["pid"]
    # The standard streams, its lifeline, and the directory that it lists.
    assert {"0", "1", "2"} < set(report["descriptors"])
    assert len(report["descriptors"]) == 5


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        (["returns"], 0, ""),
        (["exits", "77"], 77, ""),
        (["exits_with_text"], 1, "no such model\n"),
        (["raises"], 1, r"(?s)Traceback.*LookupError: lost\n"),
        (["no_such_module"], 1, "(?s).*No module named no_such_module\n"),
        (["kills_itself", "9"], -signal.SIGKILL, ""),
        (["kills_itself", "6"], -signal.SIGABRT, ""),
    ],
)
def test_a_sprout_ends_as_its_process_ends(fork_server_, call, code, says):
    end = fork_server_.run(*call)

    assert end.returncode == code
    assert re.fullmatch(says, end.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_sprout_reaches_the_process(fork_server_, number):
    with fork_server_.run_proxy("handles") as process:
        assert process.stdout.readline() == "up\n"

        process.send_signal(number)

        assert process.wait(WITHIN) == 10 + number


def test_a_process_that_handles_no_signal_dies_of_it(fork_server_):
    with fork_server_.run_proxy("sleeps") as process:
        pids = read_pids(process)

        process.terminate()

        assert process.wait(WITHIN) == -signal.SIGTERM
        assert all_gone(pids)


def test_a_killed_process_ends_its_sprout_the_same_way(fork_server_):
    with fork_server_.run_proxy("sleeps") as process:
        (pid,) = read_pids(process)

        os.kill(pid, signal.SIGKILL)

        assert process.wait(WITHIN) == -signal.SIGKILL


def test_a_killed_sprout_takes_the_process_and_its_children_along(fork_server_):
    with fork_server_.run_proxy("family", "stays") as process:
        pids = read_pids(process)

        process.kill()

        assert all_gone(pids)


def test_a_process_that_ends_leaves_no_child_behind(fork_server_):
    with fork_server_.run_proxy("family", "ends") as process:
        pids = read_pids(process)

        assert process.wait(WITHIN) == 0
        assert all_gone(pids)


async def test_a_fork_server_answers_who_asks_whether_it_serves(fork_server_, tmp_path):
    assert await health.fork_server_answers(fork_server_.socket, 0)
    assert not await health.fork_server_answers(str(tmp_path / "none"), 0)
    assert fork_server_.run("exits", "3").returncode == 3


def test_a_sprout_waits_for_a_fork_server_that_starts_again(tmp_path):
    home = ForkServer(tmp_path)
    with home.run_server() as server_process:
        server_process.kill()
        server_process.wait(WITHIN)
    with home.run_proxy("exits", "5") as process, home.run_server():
        assert process.wait(WITHIN) == 5


def test_a_hundred_births_leave_no_descriptor_and_no_zombie(fork_server_, process):
    template = psutil.Process(process.pid)
    fork_server_.run("returns")
    before = template.num_fds()  # those of the first birth may be among them: they close just after its end is known

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda n: fork_server_.run("exits", str(n)).returncode, range(100)))

    assert codes == list(range(100))
    assert becomes_true(lambda: template.num_fds() <= before and not template.children())


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 100, b"\0\0\0\0", b"\0\0\0\4hey!", fork_client.pack_request(["returns"], {}, "/")]
)
def test_a_connection_that_makes_no_sense_is_closed_and_harms_nobody(fork_server_, garbage):
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as stranger:
        for each in (silent, stranger):
            each.settimeout(WITHIN)
            each.connect(fork_server_.socket)
        stranger.sendall(garbage)

        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        assert fork_server_.run("exits", "3").returncode == 3


def test_a_request_may_come_in_pieces():
    request = fork_client.pack_request(["a", "b"], {b"X": b"\xff", b"EMPTY": b""}, "/tmp")

    assert [fork_client.unpack_request(request[:end]) for end in range(len(request))] == [None] * len(request)
    assert fork_client.unpack_request(request) == (["a", "b"], {"X": "\udcff", "EMPTY": ""}, "/tmp")


def test_only_its_owner_may_connect(fork_server_):
    assert stat.S_IMODE(Path(fork_server_.socket).stat().st_mode) == 0o600


def test_processes_import_by_themselves_when_an_import_has_started_threads(tmp_path):
    home = ForkServer(tmp_path, "shared_module", "threads")
    with home.run_server() as process:
        end = home.run("tells", "a", stdin="hello", env=home.environ, cwd=tmp_path)
        with home.run_proxy("sleeps", env=home.environ) as proxy:
            pids = read_pids(proxy)
            process.kill()  # its lifeline alone ends the process then
            process.wait(WITHIN)
            proxy.kill()
            assert all_gone(pids)

    report = json.loads(end.stdout)
    assert report["imported_by"] == report["pid"] != process.pid
    assert (report["argv"], report["in"], report["group"]) == (["a"], "hello", report["pid"])


def test_the_thread_of_an_allocator_that_survives_forks_is_no_hindrance(tmp_path):
    home = ForkServer(tmp_path, "shared_module", "allocates")
    with home.run_server() as process:
        report = json.loads(home.run("tells", env=home.environ, cwd=tmp_path).stdout)

    assert report["imported_by"] == process.pid != report["pid"]


def test_an_import_that_fails_is_named(tmp_path):
    assert "LookupError: lost" in ForkServer(tmp_path, "raises").read_error()


@pytest.mark.parametrize(
    "setting", [{"OMNIBUS_UP_FORK_SERVER": "0"}, {"OMNIBUS_EXECUTOR_ENGINE": "tests.bench.null:engine"}]
)
def test_other_engines_have_no_fork_server(setting):
    assert fork_server.can_fork_executors({})
    assert fork_server.can_fork_executors({"OMNIBUS_EXECUTOR_DEVICE": "cuda:1"})
    assert not fork_server.can_fork_executors(setting)


def test_a_driver_that_does_not_survive_forks_is_seen_by_what_it_holds_open(tmp_path, monkeypatch, capsys):
    device = tmp_path / "driver"
    device.touch()
    monkeypatch.setattr(fork_server, "_GPU_DEVICES", {str(device)})

    assert not fork_server.warn_of_gpu_drivers()
    with device.open("rb"):
        assert fork_server.warn_of_gpu_drivers()

    assert f"the imports used a GPU ({device})" in capsys.readouterr().err


# With real engines

#: Prints the number of threads, then for each family what a fork imports to load every component of it.
LOADS = """
import importlib, os, pathlib, sys
directory, families, *modules = sys.argv[1:]
for name in modules:
    importlib.import_module(name)
print(len(os.listdir("/proc/self/task")), flush=True)
for family in families.split():
    if (child := os.fork()) == 0:
        from omnibus_models.families import load_family
        before = set(sys.modules)
        found = load_family(family)
        for component in found.components:
            found.load(component, pathlib.Path(directory) / family)
        print(family, *sorted(set(sys.modules) - before), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, family
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """The directory of tiny models, built once for these tests."""
    directory = tmp_path_factory.mktemp("checkpoints")
    for family in catalog.TINY.values():
        tiny.build(family, directory / family)
    return directory


async def test_a_loading_executor_imports_nothing_that_the_fork_server_could_have(checkpoints):
    families = list(catalog.TINY.values())

    loads = [sys.executable, "-c", LOADS, str(checkpoints), " ".join(families), *EXECUTOR_MODULES]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{PACKAGE_PATH}", "OMP_NUM_THREADS": "1"}
    output = await asyncio.to_thread(subprocess.check_output, loads, env=environ, text=True, timeout=240)

    # One thread, and no module after the name of each family.
    assert output.splitlines() == ["1", *families]


async def test_executors_are_born_and_come_back_after_they_or_the_fork_server_are_killed(checkpoints):
    lines, model = Lines(), "qwen2.5-vl-tiny"
    models = await tiny_models([model], checkpoints)
    two = {"OMP_NUM_THREADS": "2", "OMNIBUS_EXECUTOR_THREADS": "2"}

    async with Stack(models, log=log_to(lines), env=two) as stack:
        first = await wait_for_children(stack, 3)
        answers = [await read_answer(stack, model)]

        first[0].kill()
        second = await wait_for_children(stack, 3, but=first[:1])
        assert set(first[1:]) < set(second)

        old_pid = stack.supervisor.pids["fork-server"]
        os.kill(old_pid, signal.SIGKILL)
        async with asyncio.timeout(90):
            while stack.supervisor.pids.get("fork-server", old_pid) == old_pid:
                await asyncio.sleep(0.05)
        assert all(one.is_running() for one in second)
        answers.append(await read_answer(stack, model))

        second[0].kill()  # the new one forks its successor
        third = await wait_for_children(stack, 1)
        await stack.wait_until_ready(90)
        answers.append(await read_answer(stack, model))
        pids = [*stack.supervisor.pids.values(), *(one.pid for one in (*second, *third))]

    assert answers[0] == answers[1] == answers[2] != ""
    assert all_gone(pids)


async def wait_for_children(stack: Stack, count: int, but: Sequence[psutil.Process] = ()) -> list[psutil.Process]:
    """Wait until the fork server has ``count`` live children outside ``but``."""
    async with asyncio.timeout(90):
        while True:
            with contextlib.suppress(KeyError, psutil.NoSuchProcess):  # between two runs
                children = psutil.Process(stack.supervisor.pids["fork-server"]).children()
                if len(children) == count and not set(children) & set(but):
                    return children
            await asyncio.sleep(0.05)


async def read_answer(stack: Stack, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 20}
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        response = await client.post("/v1/chat/completions", json=body)
    return response.raise_for_status().json()["choices"][0]["message"]["content"]
