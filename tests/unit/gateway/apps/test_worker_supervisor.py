"""A worker's start, supervision, restart, drain and stop; the gateway survives any behaviour of the app."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from omnibus.app_record import AppSource
from omnibus.errors import AppFailed, BadRequest, DeadlineExceeded, OmnibusError, StageUnavailable
from omnibus.process.spec import PACKAGE_PATH
from omnibus_gateway.apps.worker_process import worker_environment
from omnibus_gateway.apps.worker_supervisor import WorkerLimits, WorkerSupervisor
from tests.unit.gateway.apps.workers import CALM, ECHO, Abacus, is_alive, run_worker, wait_until_true, write_app

ROOT = Path(__file__).parents[4]


async def test_a_started_worker_says_what_its_app_is_and_serves_it(tmp_path):
    host = WorkerSupervisor(write_app(tmp_path, '"""Echoes."""\n' + ECHO))
    assert not host.is_ready
    with pytest.raises(StageUnavailable, match="has not been started"):
        _ = host.description

    await host.start()
    try:
        assert host.is_ready
        assert host.description.name == "sample_app"
        assert {task.name for task in host.description.tasks} == {"spell", "spell-upper_true", "add", "say"}
        assert host.description.restricted == ()
        assert await host.invoke(Abacus(), b'{"a":[1,2.5,null]}').read_answer() == b'{"a":[1,2.5,null]}'
    finally:
        await host.stop()


def test_a_worker_serves_a_gateway_on_uvloop(tmp_path):
    async def run_scenario():
        async with run_worker(write_app(tmp_path, ECHO)) as host:
            os.kill(host.pid, signal.SIGKILL)
            await wait_until_true(lambda: not host.is_ready)
            await wait_until_true(lambda: host.is_ready)
            return await host.invoke(Abacus(), b"1").read_answer()

    assert uvloop.run(run_scenario()) == b"1"


@pytest.mark.parametrize(
    ("text", "kind", "fault"),
    [
        (
            "import no_such_library",
            BadRequest,
            "sample_app cannot be imported: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("x = 1", BadRequest, "sample_app is not an app: it has no `serve`"),
        ("def serve(request): ...", BadRequest, "must be `async def`"),
        ("import os; os._exit(7)", AppFailed, "the process of the app sample_app ended: exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", AppFailed, "the process of the app sample_app ended: signal 9"),
    ],
    ids=["import", "no-serve", "not-async", "exit", "killed"],
)
async def test_an_app_that_cannot_be_loaded_says_why(tmp_path, text, kind, fault):
    host = WorkerSupervisor(write_app(tmp_path, text), rules=CALM)

    with pytest.raises(kind, match=fault):
        await host.start()

    assert not host.is_ready
    assert host.pid == 0
    await host.stop()


async def test_an_app_that_never_loads_is_given_up(tmp_path):
    root = tmp_path / "pid"
    source = write_app(tmp_path, f"open({str(root)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)\n")

    for within in (2, 10, 30):  # a busy machine may take longer until the app is imported at all
        host = WorkerSupervisor(source, rules=WorkerLimits(ready_within=within))
        with pytest.raises(DeadlineExceeded, match=f"sample_app did not load within {within} s"):
            await host.start()
        if root.exists():
            break

    assert not is_alive(int(root.read_text()))


async def test_a_worker_that_is_killed_starts_again_and_only_its_requests_fail(tmp_path):
    async with (
        run_worker(
            write_app(tmp_path, "async def serve(request):\n    await asyncio.sleep(1000)\n", "hang_app")
        ) as hung,
        run_worker(write_app(tmp_path, ECHO, "echo_app")) as other,
    ):
        runs = [Abacus(), Abacus()]
        calls = [hung.invoke(run, b"1") for run in runs]
        pid = hung.pid

        os.kill(pid, signal.SIGKILL)

        for call, run in zip(calls, runs, strict=True):
            with pytest.raises(AppFailed, match="the process of the app hang_app ended: signal 9"):
                await call.read_answer()
            assert run.status == "failed"
        assert await other.invoke(Abacus(), b"2").read_answer() == b"2"
        await wait_until_true(lambda: hung.is_ready)
        assert hung.pid != pid


async def test_a_request_that_comes_as_the_worker_ends_does_not_wait_for_its_deadline(tmp_path):
    async with run_worker(write_app(tmp_path, ECHO)) as host:
        process = host._process
        os.kill(host.pid, signal.SIGKILL)
        while not process.gone.is_set():  # the worker's supervisor notices one loop turn later
            await asyncio.sleep(0)

            if process.gone.is_set():
                with pytest.raises(StageUnavailable, match="starts again"):
                    host.invoke(Abacus(), b"1")


async def test_a_worker_that_starts_again_serves_what_its_file_says_now(tmp_path):
    source = write_app(tmp_path, ECHO)
    async with run_worker(source) as host:
        write_app(tmp_path, "async def serve(request):\n    return 'new'\n")

        os.kill(host.pid, signal.SIGKILL)
        await wait_until_true(lambda: not host.is_ready)
        with pytest.raises(StageUnavailable, match="starts again after a crash"):
            host.invoke(Abacus(), b"1")
        await wait_until_true(lambda: host.is_ready)

        assert await host.invoke(Abacus(), b"1").read_answer() == b'"new"'


async def test_a_worker_that_cannot_start_again_is_tried_until_it_can(tmp_path, caplog):
    source = write_app(tmp_path, ECHO)
    async with run_worker(source) as host:
        write_app(tmp_path, "import no_such_library")
        with caplog.at_level(logging.ERROR):
            os.kill(host.pid, signal.SIGKILL)
            await wait_until_true(lambda: "does not restart" in caplog.text)
        assert not host.is_ready

        write_app(tmp_path, ECHO)
        await wait_until_true(lambda: host.is_ready)

        assert await host.invoke(Abacus(), b"1").read_answer() == b"1"


async def test_an_app_that_ends_its_process_is_a_crash(tmp_path):
    async with run_worker(write_app(tmp_path, "async def serve(request):\n    os._exit(3)\n")) as host:
        run = Abacus()

        with pytest.raises(AppFailed, match="ended: exit code 3"):
            await host.invoke(run, b"1").read_answer()

        await wait_until_true(lambda: host.is_ready)


SLOW = """
GO = asyncio.Event()
async def serve(request):
    if request == "go":
        GO.set()
    await GO.wait()
    return request
"""


async def test_draining_lets_requests_finish_and_takes_no_more(tmp_path):
    async with run_worker(write_app(tmp_path, SLOW)) as host:
        waiting = host.invoke(Abacus(), b'"wait"')
        release = host.invoke(Abacus(), b'"go"')

        draining = asyncio.create_task(host.drain(20.0))
        await asyncio.sleep(0)

        assert not host.is_ready
        with pytest.raises(StageUnavailable, match="is being replaced"):
            host.invoke(Abacus(), b"1")
        assert await release.read_answer() == b'"go"'
        assert await waiting.read_answer() == b'"wait"'
        await draining


async def test_draining_ends_when_its_time_is_over(tmp_path):
    async with run_worker(write_app(tmp_path, SLOW)) as host:
        run = Abacus()
        call = host.invoke(run, b'"wait"')

        await host.drain(0.05)
        await host.stop()

        with pytest.raises(AppFailed, match="it was stopped"):
            await call.read_answer()
        assert run.status == "failed"


async def test_draining_an_idle_or_lost_worker_takes_no_time(tmp_path):
    async with run_worker(write_app(tmp_path, ECHO)) as host:
        await host.drain(1000.0)
    async with run_worker(write_app(tmp_path, SLOW, "lost_app")) as host:
        call = host.invoke(Abacus(), b'"wait"')
        draining = asyncio.create_task(host.drain(1000.0))
        await asyncio.sleep(0)

        os.kill(host.pid, signal.SIGKILL)

        await draining
        with pytest.raises(AppFailed):
            await call.read_answer()


CHILD = """
import subprocess
CHILD = subprocess.Popen(["/bin/sleep", "1000"])
async def serve(request):
    return CHILD.pid
"""


async def test_stopping_leaves_nothing_of_what_the_app_started(tmp_path):
    async with run_worker(write_app(tmp_path, CHILD)) as host:
        child = int(await host.invoke(Abacus(), b"1").read_answer())
        worker = host.pid
        assert is_alive(child)

    assert not is_alive(worker)
    await wait_until_true(lambda: not is_alive(child))


async def test_stopping_cancels_what_runs_before_anything_is_killed(tmp_path):
    begin_path, path = tmp_path / "begun", tmp_path / "cleaned"
    text = f"""
    async def serve(request):
        open({str(begin_path)!r}, "w").close()
        try:
            await asyncio.sleep(1000)
        finally:
            open({str(path)!r}, "w").close()
    """
    async with run_worker(write_app(tmp_path, text)) as host:
        host.invoke(Abacus(), b"1")
        await wait_until_true(begin_path.exists)

        await host.stop()

    assert path.exists()


async def test_an_app_that_will_not_stop_is_killed(tmp_path):
    async with run_worker(write_app(tmp_path, "async def serve(request):\n    time.sleep(1000)\n")) as host:
        host.invoke(Abacus(), b"1")
        pid = host.pid

    assert not is_alive(pid)


async def test_what_an_app_prints_is_logged_under_its_name(tmp_path, caplog):
    text = 'async def serve(request):\n    print("out", request)\n    print("err", file=sys.stderr)\n    print("x" * 9000)\n    return 1\n'
    async with run_worker(write_app(tmp_path, text, "chatty_app")) as host:
        with caplog.at_level(logging.INFO):
            await host.invoke(Abacus(), b"5").read_answer()
            await wait_until_true(lambda: "app chatty_app: xxx" in caplog.text)

    assert "app chatty_app: out 5" in caplog.text
    assert "app chatty_app: err" in caplog.text
    assert max(map(len, caplog.messages)) < 3000


async def test_what_an_app_prints_steers_no_terminal_and_begins_no_line(tmp_path, caplog):
    text = "print('one\\x1b[2J\\rtwo\\x85\\u202ethree', flush=True)\n" + ECHO
    with caplog.at_level(logging.INFO):
        async with run_worker(write_app(tmp_path, text)):
            await wait_until_true(lambda: "three" in caplog.text)

    (line,) = [message for message in caplog.messages if "three" in message]
    assert line == "app sample_app: one\ufffd[2J\ufffdtwo\ufffd\ufffdthree"


async def test_a_terminal_reaches_the_gateway_alone(tmp_path):
    async with run_worker(write_app(tmp_path, ECHO)) as host:
        assert os.getsid(host.pid) == host.pid

        os.kill(host.pid, signal.SIGINT)

        assert await host.invoke(Abacus(), b"1").read_answer() == b"1"


async def test_an_installed_app_sees_the_environment_without_the_gateways_own(tmp_path, monkeypatch):
    monkeypatch.setenv("OMNIBUS_STORE_URL", "redis://:s3cret@h")
    monkeypatch.setenv("COMPANY_KEY", "k")
    async with run_worker(write_app(tmp_path, "async def serve(request):\n    return dict(os.environ)\n")) as host:
        environment = await host.invoke(Abacus(), b"1").read_answer()

    assert b'"COMPANY_KEY":"k"' in environment
    assert b"OMNIBUS_" not in environment


def test_an_upload_is_started_with_next_to_no_environment():
    environment = worker_environment(
        "upload", {"OMNIBUS_STORE_URL": "redis://:s3cret@h", "HOME": "/root", "PATH": "/bin"}
    )

    assert set(environment) == {"PYTHONPATH", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}


GATEWAY = """
import asyncio, sys
from omnibus_gateway.apps.worker_supervisor import WorkerSupervisor
from omnibus.app_record import AppSource
from tests.unit.gateway.apps.workers import Abacus

async def main():
    host = WorkerSupervisor(AppSource("directory", sys.argv[2], sys.argv[1]))
    await host.start()
    host.invoke(Abacus(1000), b"1")
    print(host.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("hangs", ["await asyncio.sleep(1000)", "time.sleep(1000)"], ids=["idle", "blocked"])
async def test_a_worker_does_not_outlive_its_gateway(tmp_path, hangs):
    begin_path = tmp_path / "begun"
    write_app(tmp_path, f"async def serve(request):\n    open({str(begin_path)!r}, 'w').close()\n    {hangs}\n")
    env = {**os.environ, "PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}"}
    with subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(tmp_path), "sample_app"], env=env, cwd=ROOT, stdout=subprocess.PIPE
    ) as gateway:
        pid = int(await asyncio.to_thread(gateway.stdout.readline))
        await wait_until_true(begin_path.exists)
        assert is_alive(pid)

        gateway.kill()

    await wait_until_true(lambda: not is_alive(pid))


async def test_a_host_that_cannot_start_a_process_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))

    with pytest.raises(OmnibusError, match="no process can be started for sample_app"):
        await WorkerSupervisor(AppSource("directory", "sample_app", str(tmp_path))).start()
