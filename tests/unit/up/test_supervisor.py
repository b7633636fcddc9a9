"""Starting, restarting and stopping real processes."""

import asyncio
import os
import signal
import uuid

import pytest
import redis.asyncio as redis

from omnibus.errors import BadRequest, DeadlineExceeded, Fatal
from omnibus.process.spec import ProcessSpec
from omnibus.process.supervise import Exit, RestartPolicy
from omnibus.up import infra
from omnibus.up.shm import SHARED_MEMORY
from omnibus.up.supervisor import Supervisor
from tests.unit.up.programs import DRAINS, SLEEPS, STUBBORN, WITHIN, Lines, all_gone, log_to, python_code

QUICK = RestartPolicy(first=0.01, longest=0.02, limit=2)


@pytest.fixture
def lines():
    return Lines()


class Exits:
    """A recorder of exits; a test can wait for the next one."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Exit] = asyncio.Queue()
        self.seen: list[Exit] = []

    async def __call__(self, end: Exit) -> None:
        self.seen.append(end)
        self._queue.put_nowait(end)

    async def next_exit(self) -> Exit:
        return await asyncio.wait_for(self._queue.get(), WITHIN)


async def test_the_servers_run_inside_the_context_and_leave_nothing(tmp_path, lines):
    bus, store = infra.prepare_nats(tmp_path), infra.prepare_valkey(tmp_path)

    async with Supervisor([bus.spec, store.spec], log=log_to(lines)) as supervisor:
        pids = supervisor.pids
        assert set(pids) == {"nats", "valkey"}
        for port in (*bus.ports, *store.ports):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()

    assert all_gone(list(pids.values()))
    for port in (*bus.ports, *store.ports):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_killed_server_comes_back_on_its_port(tmp_path, lines):
    server, exits = infra.prepare_valkey(tmp_path), Exits()
    async with Supervisor([server.spec], log=log_to(lines), policy=QUICK, on_exit=exits) as supervisor:
        first = supervisor.pids["valkey"]

        os.kill(first, signal.SIGKILL)

        assert await exits.next_exit() == Exit("valkey", first, -signal.SIGKILL, wanted=False)
        await lines.until("restarting in")
        async with asyncio.timeout(WITHIN):
            await infra.valkey_ready(server.ports[0])
        store = redis.from_url(server.url)
        assert await store.ping()
        await store.aclose()
        assert supervisor.pids["valkey"] != first


async def test_a_process_that_keeps_ending_is_given_up_with_its_last_lines(lines):
    crashes = python_code("crasher", "print('out of luck')")

    with pytest.raises(Fatal, match="gave up") as caught:
        async with Supervisor([crashes], log=log_to(lines), policy=QUICK) as supervisor, asyncio.timeout(WITHIN):
            await supervisor.run_until_signal()

    assert "out of luck" in caught.value.message
    assert caught.value.executor == "crasher"
    assert lines.getvalue().count("restarting in") == QUICK.limit


@pytest.mark.parametrize("ready", [True, False])
async def test_a_process_whose_settings_are_wrong_is_given_up_at_once_with_its_last_line(lines, ready):
    code = "import sys; print('starting'); print('OMNIBUS_X=1: a number'); sys.exit(78)"
    spec = python_code("a", code, lines if ready else None)

    with pytest.raises(BadRequest, match="^OMNIBUS_X=1: a number$"):
        async with Supervisor([spec], log=log_to(lines), policy=QUICK) as supervisor:
            await supervisor.run_until_signal()

    assert lines.getvalue().count("starting") == 1


async def test_one_that_is_not_vital_is_given_up_alone_and_its_name_is_free(lines):
    crashes = python_code("crasher", "print('out of luck')", vital=False)

    async with Supervisor([python_code("base", SLEEPS), crashes], log=log_to(lines), policy=QUICK) as supervisor:
        base = supervisor.pids["base"]
        await supervisor.unless_over(lines.until("crasher *\\| given up"))
        await supervisor.add(python_code("crasher", SLEEPS, lines))

        assert supervisor.pids["base"] == base
        assert set(supervisor.specs) == {"base", "crasher"}


async def test_what_was_told_to_stop_is_not_hurried_by_being_told_again(lines, tmp_path):
    exits, gate = Exits(), tmp_path / "gate"
    os.mkfifo(gate)
    slow = python_code("slow", DRAINS, lines, env={"GATE": str(gate)})
    async with Supervisor([slow], log=log_to(lines), on_exit=exits) as supervisor:
        first = asyncio.create_task(supervisor.remove("slow"))
        await lines.until("draining")
        first.cancel()
        await asyncio.wait({first})
        assert set(supervisor.specs) == {"slow"}

        second = asyncio.create_task(supervisor.remove("slow"))
        await asyncio.to_thread(gate.write_text, "")
        await asyncio.wait_for(second, WITHIN)
        assert supervisor.specs == {}

    assert [(end.code, end.wanted) for end in exits.seen] == [(0, True)]


async def test_a_process_that_ends_before_it_is_ready_stops_the_start_with_its_last_lines(lines):
    exits = Exits()
    fine = python_code("fine", SLEEPS, lines)
    broken_spec = python_code("broken", "import sys; sys.exit('no such model')", lines, after=("fine",))

    with pytest.raises(Fatal, match=r"exit code 1.*\n.*no such model"):
        async with Supervisor([fine, broken_spec], log=log_to(lines), on_exit=exits):
            pytest.fail("started although a process is broken")

    assert all_gone([end.pid for end in exits.seen])
    assert {end.name for end in exits.seen} == {"fine", "broken"}


async def test_a_process_that_never_becomes_ready_is_ended_at_its_deadline(lines):
    slow = python_code("slow", "print('loading'); import time; time.sleep(1000)", lines, ready_within=0.5)

    with pytest.raises(DeadlineExceeded, match=r"slow was not ready in time \(0.5 s"):
        async with Supervisor([slow], log=log_to(lines)):
            pytest.fail("started although a process is not ready")


async def test_a_program_that_does_not_exist_is_named(lines):
    missing = ProcessSpec("ghost", ("/no/such/program",))

    with pytest.raises(Fatal, match="cannot start ghost"):
        async with Supervisor([missing], log=log_to(lines)):
            pytest.fail("started although a program is missing")


async def test_processes_start_after_what_they_need_and_stop_before_it(lines):
    exits = Exits()
    base = python_code("base", SLEEPS, lines)
    middle = python_code("middle", SLEEPS, lines, after=("base",))
    top = python_code("top", SLEEPS, lines, after=("base", "middle"))

    async with Supervisor([top, base, middle], log=log_to(lines), on_exit=exits):
        start_order = [line.split()[0] for line in lines.getvalue().splitlines() if "ready after" in line]

    assert start_order == ["base", "middle", "top"]
    assert [end.name for end in exits.seen] == ["top", "middle", "base"]
    assert all(end.wanted for end in exits.seen)


async def test_processes_are_added_and_removed_while_others_run(lines):
    async with Supervisor([python_code("base", SLEEPS, lines)], log=log_to(lines)) as supervisor:
        base = supervisor.pids["base"]

        await supervisor.add(python_code("x", SLEEPS, lines, after=("base",)), python_code("y", SLEEPS, lines))
        added_pids = supervisor.pids
        await supervisor.remove("x")

        assert set(added_pids) == {"base", "x", "y"}
        assert set(supervisor.pids) == {"base", "y"}
        assert supervisor.pids["base"] == base
        assert all_gone([added_pids["x"]])
        await supervisor.add(python_code("x", SLEEPS, lines))
        assert supervisor.pids["x"] != added_pids["x"]


async def test_adding_is_all_or_nothing(lines):
    async with Supervisor([python_code("base", SLEEPS, lines)], log=log_to(lines)) as supervisor:
        with pytest.raises(Fatal, match="broken ended"):
            await supervisor.add(
                python_code("fine", SLEEPS, lines), python_code("broken", "raise SystemExit(3)", lines, after=("fine",))
            )

        assert set(supervisor.pids) == {"base"}


async def test_a_process_that_need_not_restart_may_end(lines):
    exits = Exits()
    once = python_code("once", "pass", restart=False)
    async with Supervisor([once, python_code("base", SLEEPS, lines)], log=log_to(lines), on_exit=exits) as supervisor:
        end = await exits.next_exit()

        assert (end.name, end.code, end.wanted) == ("once", 0, False)
        assert set(supervisor.pids) == {"base"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_wait(number, lines):
    async with Supervisor([python_code("base", SLEEPS, lines)], log=log_to(lines)) as supervisor:
        pids = supervisor.pids
        os.kill(os.getpid(), number)

        assert await asyncio.wait_for(supervisor.run_until_signal(), WITHIN) == number

    assert all_gone(list(pids.values()))


async def test_a_signal_during_the_start_ends_it_without_a_trace(lines):
    exits = Exits()
    never = python_code("never", "print('loading', flush=True); import time; time.sleep(1000)", lines)

    async def interrupt_start() -> None:
        await lines.until("loading")
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = asyncio.create_task(interrupt_start())
    with pytest.raises(SystemExit) as caught:
        async with Supervisor([never], log=log_to(lines), on_exit=exits):
            pytest.fail("started although it was interrupted")

    await interrupting
    assert caught.value.code == 128 + signal.SIGINT
    assert all_gone([end.pid for end in exits.seen])


async def test_a_second_signal_kills_what_ignores_the_first(lines):
    stubborn = python_code("stubborn", STUBBORN, lines, grace=1000.0)
    supervisor = Supervisor([stubborn], log=log_to(lines))
    await supervisor.__aenter__()
    pids = supervisor.pids
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(supervisor.run_until_signal(), WITHIN)

    closing = asyncio.create_task(supervisor.__aexit__(None, None, None))
    await asyncio.sleep(0)  # let the stop begin: the handlers are still ours until it ends
    os.kill(os.getpid(), signal.SIGINT)

    await asyncio.wait_for(closing, WITHIN)
    assert all_gone(list(pids.values()))


async def test_a_process_that_ignores_term_is_killed_after_its_grace(lines):
    exits = Exits()
    async with Supervisor([python_code("stubborn", STUBBORN, lines, grace=0.2)], log=log_to(lines), on_exit=exits):
        pass

    assert exits.seen[0].code == -signal.SIGKILL


@pytest.mark.parametrize("parent_ends", ["by_itself", "when_stopped"])
async def test_grandchildren_end_with_their_parent(parent_ends, lines):
    wait = "wait" if parent_ends == "when_stopped" else "true"
    family = ProcessSpec(
        "family",
        ("sh", "-c", f"sleep 1000 & echo child $! end; {wait}"),
        restart=False,
    )

    async with Supervisor([family], log=log_to(lines)):
        await lines.until(r"child \d+ end")
        grandchild = int(lines.getvalue().split("child ")[1].split()[0])

    assert all_gone([grandchild])


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm on this system")
async def test_shared_memory_of_a_killed_process_is_removed_and_no_other(lines):
    prefix, other = f"omnibus-{uuid.uuid4().hex}", SHARED_MEMORY / f"other-{uuid.uuid4().hex}"
    other.touch()
    writes = f"open('/dev/shm/{prefix}-arena', 'wb').write(b'x'); " + SLEEPS
    spec = python_code("writer", writes, lines)

    try:
        async with Supervisor([spec], log=log_to(lines), shm_prefix=prefix) as supervisor:
            assert (SHARED_MEMORY / f"{prefix}-arena").exists()
            os.kill(supervisor.pids["writer"], signal.SIGKILL)

        assert not (SHARED_MEMORY / f"{prefix}-arena").exists()
        assert other.exists()
    finally:
        other.unlink()


@pytest.mark.parametrize(
    ("specs", "complaint"),
    [
        ([ProcessSpec("a", ("true",), after=("b",))], "is not started"),
        ([ProcessSpec("a", ("true",)), ProcessSpec("a", ("true",))], "must differ"),
        ([ProcessSpec("a", ("true",), after=("b",)), ProcessSpec("b", ("true",), after=("a",))], "cycle"),
    ],
)
def test_impossible_sets_are_refused_before_anything_starts(specs, complaint):
    with pytest.raises(ValueError, match=complaint):
        Supervisor(specs)


async def test_the_environment_and_directory_of_a_process_are_its_own(lines, tmp_path):
    code = "import os; print('up', os.environ['WHO'], os.getcwd(), 'PATH' in os.environ, flush=True); " + SLEEPS
    spec = python_code("a", code, lines, env={"WHO": "me"}, cwd=tmp_path)

    async with Supervisor([spec], log=log_to(lines)):
        assert f"a | up me {tmp_path} True" in lines.getvalue()


async def test_processes_without_ties_start_at_the_same_time(lines):
    one_waits_for_the_other = [
        python_code("left", SLEEPS, ready=lambda: lines.until(r"^right *\| up")),
        python_code("right", SLEEPS, ready=lambda: lines.until(r"^left *\| up")),
    ]

    async with Supervisor(one_waits_for_the_other, log=log_to(lines)) as supervisor:
        assert set(supervisor.pids) == {"left", "right"}


async def test_work_inside_the_context_ends_when_a_process_is_given_up(lines):
    crashes = python_code("crasher", "pass")

    with pytest.raises(Fatal, match="gave up"):
        async with Supervisor([crashes], log=log_to(lines), policy=QUICK) as supervisor:
            await asyncio.wait_for(supervisor.unless_over(asyncio.Event().wait()), WITHIN)


async def test_work_inside_the_context_ends_at_a_signal(lines):
    async with Supervisor([python_code("base", SLEEPS, lines)], log=log_to(lines)) as supervisor:
        os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(SystemExit) as caught:
            await supervisor.unless_over(asyncio.sleep(WITHIN))

    assert caught.value.code == 128 + signal.SIGTERM
