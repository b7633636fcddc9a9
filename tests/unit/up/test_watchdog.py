"""Hung processes are killed and restarted; those that wait for a starved machine are left alone."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.cluster.presence import ID
from omnibus.metrics.http import ScrapeServer
from omnibus.process.spec import PACKAGE_PATH, ProcessSpec, python_command
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings
from omnibus.up import infra
from omnibus.up.health import Endpoints, fetch_status
from omnibus.up.supervisor import Supervisor
from omnibus.up.tiny_models import tiny_models
from omnibus.up.watchdog import Watchdog, find_forked_pid, read_thread_states
from omnibus_models import tiny
from tests.e2e import warm
from tests.memory_bus import MemoryBus
from tests.unit.up.programs import WITHIN, Lines, log_to

ROOT = Path(__file__).parents[3]

SILENT = 2.0  # seconds
NODE = f"watchdog-{os.getpid()}"


@pytest.fixture
def lines() -> Lines:
    return Lines()


@asynccontextmanager
async def watch_processes(
    lines: Lines, *specs: ProcessSpec, silent: float = SILENT, **limits: float
) -> AsyncIterator[Supervisor]:
    async with Supervisor(specs, log=log_to(lines), shm_prefix=f"omnibus-{NODE}") as supervisor:
        watching = asyncio.create_task(Watchdog(supervisor, log_to(lines), silent, **limits).run())
        yield supervisor
        await until_cancelled(watching)


async def wait_for_replacement(supervisor: Supervisor, name: str, pid: int) -> int:
    """Return the process that replaced ``pid`` as ``name``."""
    async with asyncio.timeout(WITHIN):
        while supervisor.pids.get(name, pid) == pid:
            await asyncio.sleep(0.01)
    return supervisor.pids[name]


def make_sidecar(directory: Path) -> ProcessSpec:
    """Return a real service with its endpoint."""
    metrics = str(directory / "metrics")
    return ProcessSpec(
        "sidecar",
        python_command("omnibus_sidecar"),
        env={
            "PYTHONPATH": f"{ROOT}:{PACKAGE_PATH}",
            "OMNIBUS_SIDECAR_SOCKET": str(directory / "s"),
            "OMNIBUS_SIDECAR_NODE": NODE,
            "OMNIBUS_SIDECAR_ARENA_MIB": "1",
            "OMNIBUS_SERVICE_METRICS_DIR": metrics,
        },
        cwd=ROOT,
        alive=Endpoints(metrics).service_answers,
    )


async def test_a_server_or_service_that_is_frozen_is_killed_and_started_again(tmp_path, lines):
    specs = [infra.prepare_nats(tmp_path).spec, infra.prepare_valkey(tmp_path).spec, make_sidecar(tmp_path)]
    async with watch_processes(lines, *specs) as supervisor:
        before, first = supervisor.pids, supervisor.pids
        endpoints = Endpoints(str(tmp_path / "metrics"))
        async with asyncio.timeout(WITHIN):
            while not await endpoints.service_answers(before["sidecar"]):
                await asyncio.sleep(0.01)
        await asyncio.sleep(SILENT)  # each has been probed, and none is killed for it
        assert supervisor.pids == before

        for name, pid in before.items():
            os.kill(pid, signal.SIGSTOP)
            assert await wait_for_replacement(supervisor, name, pid) != first[name]

        assert lines.getvalue().count("does not answer") == 3


async def test_time_in_which_the_supervisor_itself_did_not_run_is_nobodys_silence(tmp_path, lines):
    async with watch_processes(lines, infra.prepare_valkey(tmp_path).spec) as supervisor:
        before = supervisor.pids
        await asyncio.sleep(1.5)  # it has answered

        time.sleep(1.5 * SILENT)  # noqa: ASYNC251 as a machine that was suspended
        await asyncio.sleep(1.5)

        assert supervisor.pids == before
        assert "does not answer" not in lines.getvalue()


async def test_nothing_is_expected_of_a_process_that_has_not_answered_yet(tmp_path, lines):
    ask_event = asyncio.Event()

    async def hang_forever(_: int) -> bool:
        ask_event.set()
        await asyncio.Event().wait()
        return True

    loading = ProcessSpec("loading", ("sleep", "1000"), alive=hang_forever)
    async with watch_processes(lines, loading) as supervisor:
        before = supervisor.pids
        await asyncio.wait_for(ask_event.wait(), WITHIN)
        await asyncio.sleep(2 * SILENT)

        assert supervisor.pids == before


#: Answers one probe, then follows its command without answering again.
ANSWERS_ONCE = """
import os, socket, sys, threading, time
with socket.create_server(("127.0.0.1", 0)) as server:
    open(os.environ["PORT"], "w").write(str(server.getsockname()[1]))
    os.rename(os.environ["PORT"], os.environ["PORT"] + ".there")
    one, _ = server.accept()
    one.recv(999)
    one.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
    one.close()
    end = time.monotonic() + 4
    while "busy" in sys.argv and time.monotonic() < end:
        pass
    threading.Event().wait()
"""


def answers_once(directory: Path, does: str) -> ProcessSpec:
    async def ask_port(_: int) -> bool:
        port = directory / f"{does}.there"
        return port.exists() and await fetch_status("127.0.0.1", int(port.read_text()), "/") == "200"

    argv = (sys.executable, "-c", ANSWERS_ONCE, does)
    return ProcessSpec(does, argv, env={"PORT": str(directory / does)}, alive=ask_port)


async def test_a_process_that_stands_still_is_frozen_and_one_that_computes_is_not(tmp_path, lines):
    specs = [answers_once(tmp_path, does) for does in ("still", "busy", "blocks")]
    specs[2] = replace(specs[2], blocks=True)
    began = time.monotonic()
    async with watch_processes(lines, *specs, silent=1000, frozen=2) as supervisor:
        before = supervisor.pids

        await wait_for_replacement(supervisor, "still", before["still"])

        if time.monotonic() - began < 4:  # the other one computes as long as that
            assert supervisor.pids["busy"] == before["busy"]
        await wait_for_replacement(supervisor, "busy", before["busy"])  # now it hangs as well
        assert supervisor.pids["blocks"] == before["blocks"]
    assert "stands still" in lines.getvalue()


SPINS = "while True: pass"


async def test_seconds_in_which_a_process_waits_for_a_processor_do_not_count(tmp_path, lines):
    """As an executor with a low priority beside other programs."""
    probes = []

    async def spins_on(pid: int) -> bool:
        probes.append(time.monotonic())
        process = psutil.Process(pid)
        target = process.cpu_times().user + 0.2
        while process.cpu_times().user < target:
            await asyncio.sleep(0.01)
        return True

    one_core = {min(os.sched_getaffinity(0))}
    slow = ProcessSpec("slow", (sys.executable, "-c", SPINS), alive=spins_on)
    async with watch_processes(lines, slow, silent=SILENT, frozen=1000) as supervisor:
        async with asyncio.timeout(WITHIN):
            while len(probes) < 2:  # it has answered
                await asyncio.sleep(0.01)
        before = supervisor.pids
        fast = await asyncio.create_subprocess_exec(sys.executable, "-c", SPINS)
        try:
            for pid in (before["slow"], fast.pid):
                os.sched_setaffinity(pid, one_core)
            os.sched_setscheduler(before["slow"], os.SCHED_IDLE, os.sched_param(0))
            with suppress(OSError):  # each process is a session of its own: a kernel may schedule them as groups
                Path(f"/proc/{before['slow']}/autogroup").write_text("19")
            await asyncio.sleep(4 * SILENT)

            assert time.monotonic() - probes[-1] > SILENT
            assert supervisor.pids == before
        finally:
            fast.kill()
            await fast.wait()
    assert "does not answer" not in lines.getvalue()


#: Loads for long: it usually waits, but for more than one thing.
COMES_AND_GOES = """
import time
while True:
    time.sleep(0.05)
"""


async def test_a_process_that_froze_before_its_first_answer_is_started_again(tmp_path, lines):
    async def hang_forever(_: int) -> bool:
        await asyncio.Event().wait()
        return True

    starting = ProcessSpec("starting", (sys.executable, "-c", COMES_AND_GOES), alive=hang_forever)
    frozen = replace(starting, name="frozen")
    async with watch_processes(lines, starting, frozen, silent=1000, frozen=2, starting=1.5) as supervisor:
        before = supervisor.pids

        os.kill(before["frozen"], signal.SIGSTOP)

        await wait_for_replacement(supervisor, "frozen", before["frozen"])
        assert supervisor.pids["starting"] == before["starting"]
    assert "has not begun to answer" in lines.getvalue()


async def test_who_watches_another_process_does_not_stand_for_it(tmp_path):
    child = await asyncio.create_subprocess_exec("sleep", "1000")
    descriptor = os.pidfd_open(child.pid)
    try:
        assert find_forked_pid(os.getpid()) == os.getpid()
        assert find_forked_pid(child.pid) == child.pid
        async with asyncio.timeout(WITHIN):  # it is being loaded at first
            while (states := read_thread_states(child.pid)) is None or states.wants_to_run:
                await asyncio.sleep(0.01)
    finally:
        os.close(descriptor)
        child.kill()
        await child.wait()
    assert read_thread_states(child.pid) is None


async def test_an_executor_is_asked_in_the_process_that_it_says_it_is(tmp_path):
    bus, endpoints, scrape = MemoryBus(BusSettings()), Endpoints(str(tmp_path)), ScrapeServer("llm")
    alive = partial(endpoints.executor_answers, "m-L-0", 1)
    await endpoints.listen(bus)
    await scrape.start("127.0.0.1", 0)
    scrape.write_discovery_file(str(tmp_path), "127.0.0.1")

    bus.publish(subjects.event_subject(subjects.EXECUTOR), b"not a status")
    assert not await alive()
    status = ExecutorStatus("m-L-0", "m", "L", ("thinker",), ("t",), "n", "ready", 1, pid=os.getpid())
    bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))
    await asyncio.sleep(0)

    assert not await alive()  # it starts
    scrape.set_ready(True)
    assert await alive()
    await scrape.close()
    assert not await alive()


async def test_a_frozen_gateway_and_a_frozen_executor_of_a_whole_system_are_replaced(tmp_path, lines):
    tiny.build("qwen2_5_vl", tmp_path / "qwen2_5_vl")  # where the declarations look for it
    models = await tiny_models(["qwen2.5-vl-tiny"], tmp_path)
    warm_stack = warm.warm_stack_class(warm.fork_server_socket())
    async with warm_stack(models, log=log_to(lines), env={"OMNIBUS_UP_SILENT": "40"}) as stack:
        first = stack.supervisor.pids
        executor = next(name for name in first if "/" in name)
        endpoints = Endpoints(str(stack.metrics_dir))
        await endpoints.listen(stack.bus)
        id = stack.supervisor.specs[executor].env[ID]
        async with asyncio.timeout(WITHIN):
            while not await endpoints.executor_answers(id, 0):
                await asyncio.sleep(0.05)
        await asyncio.sleep(SILENT)  # the watchdog has probed them as well

        os.kill(endpoints._executors[id], signal.SIGSTOP)
        os.kill(stack.pids["gateway"], signal.SIGSTOP)

        for name in (executor, "gateway"):
            await lines.until(rf"{name} +\| does not answer for [\d.]+ s and stands still")
            await wait_for_replacement(stack.supervisor, name, first[name])
        await stack.wait_until_ready(90)
        assert {name for name, pid in stack.supervisor.pids.items() if first[name] != pid} == {executor, "gateway"}
