"""Children of a supervisor that a fork server forks: started, ended and missed like other children."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from omnibus.process.process import ChildProcess
from omnibus.process.spec import ProcessSpec, python_command
from omnibus.up import supervisor as forked_child
from tests.unit.up.births import ForkServer
from tests.unit.up.programs import WITHIN, all_gone


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = ForkServer(tmp_path_factory.mktemp("fork-server"))
    with home.run_server():
        yield home


class Output:
    """Lines of a process; a test can wait for the next one."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, line: str) -> None:
        self._queue.put_nowait(line)

    async def read_line(self) -> str:
        return await asyncio.wait_for(self._queue.get(), WITHIN)


def describe_process(home: ForkServer, module: str, *arguments: str, **env: str) -> ProcessSpec:
    own = {**env, "PYTHONPATH": home.environ["PYTHONPATH"]}
    return ProcessSpec(module, python_command(module, *arguments), env=own, cwd=home.directory, fork_server=home.socket)


@asynccontextmanager
async def run_process(spec: ProcessSpec, output: Output) -> AsyncIterator[ChildProcess]:
    async with asyncio.timeout(WITHIN):
        child = await forked_child.start_process(spec, output)
    try:
        yield child
    finally:
        child.kill()
        async with asyncio.timeout(WITHIN):
            await child.wait()
            await child.drain_output()


async def test_a_process_has_its_arguments_environment_output_and_exit_code(home):
    output = Output()

    async with run_process(describe_process(home, "exits", "5"), output) as child:
        assert await asyncio.wait_for(child.wait(), WITHIN) == 5
    async with run_process(describe_process(home, "sleeps", "a b", OWN_WORD="own"), output) as child:
        assert int(await output.read_line()) == child.pid
        process = psutil.Process(child.pid)
        assert [word for word in process.cmdline() if word] == [*python_command("sleeps", "a b")]
        assert process.environ()["OWN_WORD"] == "own"
        assert process.cwd() == str(home.directory)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_process_ends_with_its_whole_group_when_it_is_told_to(home, number):
    output = Output()

    async with run_process(describe_process(home, "family", "stays"), output) as child:
        pids = list(map(int, (await output.read_line()).split()))
        assert pids[0] == child.pid
        (child.terminate if number == signal.SIGTERM else child.kill)()

        assert await asyncio.wait_for(child.wait(), WITHIN) == -number
    assert all_gone(pids)


async def test_a_process_outlives_its_fork_server_and_is_still_owned(tmp_path):
    home, output = ForkServer(tmp_path), Output()
    async with home.open_server() as server, run_process(describe_process(home, "family", "stays"), output) as child:
        pids = list(map(int, (await output.read_line()).split()))
        server.kill()
        assert "continues without it" in await output.read_line()
        assert psutil.Process(child.pid).is_running()

        child.kill()

        assert await asyncio.wait_for(child.wait(), WITHIN) == 1
        assert "exit code is unknown" in await output.read_line()
    assert all_gone(pids)


async def test_without_a_fork_server_a_process_starts_alone_or_waits_for_one(tmp_path):
    home, output = ForkServer(tmp_path), Output()
    spec = describe_process(home, "sleeps")

    async with run_process(replace(spec, starts_alone=True), output) as child:
        assert psutil.Process(child.pid).ppid() == os.getpid()
        assert int(await output.read_line()) == child.pid
    waiting = asyncio.create_task(forked_child.start_process(spec, output))
    await asyncio.wait({waiting}, timeout=0.2)
    assert not waiting.done()
    async with home.open_server() as server:
        child = await asyncio.wait_for(waiting, WITHIN)
        assert psutil.Process(child.pid).ppid() == server.pid
        child.kill()
        await asyncio.wait_for(child.wait(), WITHIN)


async def test_what_a_fork_server_forked_and_did_not_say_ends_when_the_process_starts_alone(tmp_path):
    """The fork server ends between the fork and its reply: there must not be two processes."""
    path, output = str(tmp_path / "broken.sock"), Output()
    spec = replace(describe_process(ForkServer(tmp_path), "sleeps"), fork_server=path, starts_alone=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        starting = asyncio.create_task(forked_child.start_process(spec, output))
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection:
            _, (*streams, lifeline), _, _ = await asyncio.to_thread(socket.recv_fds, connection, 1 << 20, 4)
        for each in streams:
            os.close(each)
        child = await asyncio.wait_for(starting, WITHIN)

    assert os.read(lifeline, 1) == b""  # its other end is closed, since the forked process is killed
    os.close(lifeline)
    assert int(await output.read_line()) == child.pid
    child.kill()
    await asyncio.wait_for(child.wait(), WITHIN)


async def test_no_descriptor_is_left_open(home):
    count = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(3):
        async with run_process(describe_process(home, "exits", "0"), Output()) as child:
            await asyncio.wait_for(child.wait(), WITHIN)

    assert len(list(Path("/proc/self/fd").iterdir())) == count
