"""Failures affect one request: typed errors, cancelled work, and a ledger that returns to zero."""

import asyncio
import time

import msgspec
import numpy as np
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import NodeFailed
from omnibus.errors import BadRequest, ContextTooLong, Overloaded, StageFailed, from_problem
from omnibus.executor.runner import Job
from omnibus.graph import HANDLE, make_ref
from tests.unit.executor.arithmetic import Place, Work, call, forever, invocation, number, tell
from tests.unit.sidecar.node import until


async def failure(here: Place, work: Work, **inputs) -> NodeFailed:
    await here.executor("a", {"work": work, "number": number})
    given = here.office.send(invocation([call("work", **inputs)], ["a"], [(0, "y")]))
    [failed] = await here.office.until(NodeFailed, given)
    assert here.status("a").inflight == 0
    await here.emptied()
    return failed


async def alive(here: Place, id: str = "a") -> None:
    given = here.office.send(invocation([call("number", x=1)], [id], [(0, "y")]))
    assert len(await here.office.done(given)) == 1
    here.office.tensors.end_invocation(given.id)


async def test_an_engine_that_breaks_fails_its_request_and_lives(here: Place):
    async def divide(job: Job) -> None:
        await job.put("y", {"n": 1 / job.inputs["x"]})

    failed = await failure(here, divide, x=0)

    error = from_problem(failed.problem)
    assert isinstance(error, StageFailed)
    assert (error.stage, error.executor, error.attempt) == ("work", "a", 0)
    assert "ZeroDivisionError" in error.message
    await alive(here)


async def test_nothing_of_an_engines_own_words_leaves(here: Place):
    async def leak(job: Job) -> None:
        raise RuntimeError("the prompt was: secret")

    assert "secret" not in (await failure(here, leak)).problem.message


@pytest.mark.parametrize(
    "error",
    [BadRequest("x must be positive", param="x"), ContextTooLong("too long"), Overloaded("full", retry_after=3)],
)
async def test_a_typed_error_passes_through(here: Place, error: BadRequest):
    async def refuse(job: Job) -> None:
        raise error

    problem = (await failure(here, refuse)).problem

    assert (problem.code, problem.message, problem.param) == (error.code, error.message, error.param)
    assert problem.retry_after == getattr(error, "retry_after", 0)
    assert (problem.stage, problem.executor) == ("work", "a")
    await alive(here)


async def test_a_task_that_this_executor_does_not_run_is_a_stale_route(here: Place):
    await here.executor("a", {"number": number})
    given = here.office.send(invocation([call("number", x=1), call("unheard")], ["a", "a"], [(0, "y"), (1, "y")]))

    [failed] = await here.office.until(NodeFailed, given)

    assert failed.problem.code == "stage_failed"
    assert "route is stale" in failed.problem.message


async def test_a_chunk_too_large_for_the_bus_fails_its_request_alone(here: Place):
    begun = asyncio.Event()

    async def shout(job: Job) -> None:
        await begun.wait()
        await job.put("y", {"text": "x" * 100_000})

    await here.executor("a", {"shout": shout, "number": number})
    loud = here.office.send(invocation([call("shout")], ["a"], [(0, "y")]))
    quiet = here.office.send(invocation([call("number", x=1)], ["a"], [(0, "y")]))
    begun.set()

    [failed] = await here.office.until(NodeFailed, loud)

    assert failed.problem.code == "protocol_error"
    assert len(await here.office.done(quiet)) == 1


async def test_the_deadline_ends_work_that_does_not_end_itself(here: Place):
    await here.executor("a", {"work": forever, "number": number})
    given = here.office.send(invocation([call("work")], ["a"], [(0, "y")], within=0.2))

    [failed] = await here.office.until(NodeFailed, given)

    assert (failed.problem.code, failed.problem.stage) == ("deadline_exceeded", "work")
    assert time.time() > given.deadline
    await here.emptied()
    await alive(here)


async def test_the_deadline_ends_a_wait_for_an_input_that_never_comes(here: Place):
    await here.executor("a", {"tell": tell, "number": number})
    calls = [call("number", x=1), call("tell", item=make_ref(0, "y"))]
    given = here.office.send(invocation(calls, ["nobody", "a"], [(1, "said")], within=0.2), "a")

    [failed] = await here.office.until(NodeFailed, given)

    assert (failed.problem.code, failed.node) == ("deadline_exceeded", 1)
    await here.emptied()


async def test_an_input_that_was_freed_is_a_stale_handle(here: Place):
    handle = await here.office.tensors.put(np.ones(4, np.float32), invocation="x", deadline=time.time() + 60)
    here.office.tensors.end_invocation("x")
    await here.office.tensors.stats()
    await here.executor("a", {"tell": tell})
    item = {HANDLE: {name: getattr(handle, name) for name in handle.__struct_fields__}, "sha256": "aa"}
    given = here.office.send(invocation([call("tell", item=item)], ["a"], [(0, "said")]))

    [failed] = await here.office.until(NodeFailed, given)

    assert failed.problem.code == "stale_handle"


# Ends


@pytest.mark.parametrize("status", ["cancelled", "failed", "expired", "done"])
async def test_an_end_stops_the_work_everywhere_and_frees_everything(here: Place, status: str):
    stopped: list[str] = []
    ready = asyncio.Event()

    async def hold(job: Job) -> None:
        await job.value("items")
        rows = await job.open_rows("rows", 10, 4, "float32")
        rows.write(np.ones((2, 4), np.float32))
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(job.invocation)

    await here.executor("a", {"number": number})
    await here.executor("b", {"hold": hold})
    await here.executor("c", {"listen": forever})
    calls = [call("number", x=1), call("hold", items=[make_ref(0, "y")]), call("listen", rows=make_ref(1, "rows"))]
    given = here.office.send(invocation(calls, ["a", "b", "c"], [(2, "y")]))
    await ready.wait()
    assert await here.blocks() == 2

    here.office.end(given, status)
    here.office.tensors.end_invocation(given.id)

    await until(lambda: stopped == [given.id])
    await here.emptied()
    assert not here.office.of(NodeFailed, given)


async def test_memory_that_is_asked_for_after_the_end_is_freed_too(here: Place):
    """The gateway's message reaches the sidecar before the executor."""
    go, given_out = asyncio.Event(), asyncio.Event()

    async def late(job: Job) -> None:
        await go.wait()
        await job.send("y", {}, np.ones(100, np.float32))
        given_out.set()
        await asyncio.Event().wait()

    await here.executor("a", {"late": late})
    given = here.office.send(invocation([call("late")], ["a"], [(0, "y")]))
    await until(lambda: here.status("a").inflight == 1)

    here.office.tensors.end_invocation(given.id)
    await here.office.tensors.stats()
    go.set()
    await given_out.wait()
    here.office.end(given)

    await here.emptied()


async def test_an_end_of_an_older_attempt_leaves_the_newer_one_alone(here: Place):
    await here.executor("a", {"work": forever, "number": number})
    given = here.office.send(invocation([call("work")], ["a"], [(0, "y")], attempt=2))
    await until(lambda: here.status("a").inflight == 1)

    here.office.end(given, "moved", attempt=1)
    await alive(here)
    assert here.status("a").inflight == 1

    here.office.end(given, "moved", attempt=2)
    await until(lambda: here.status("a").inflight == 0)


async def test_ending_twice_or_what_was_never_there_is_harmless(here: Place):
    await here.executor("a", {"work": forever, "number": number})
    given = here.office.send(invocation([call("work")], ["a"], [(0, "y")]))
    await until(lambda: here.status("a").inflight == 1)

    for _ in range(3):
        here.office.end(given)
    here.office.end(invocation([call("work")], ["a"], [(0, "y")], id="never"))

    await here.emptied()
    await alive(here)


async def test_edges_that_came_early_go_with_the_end(here: Place):
    await here.executor("a", {"number": number})
    await here.executor("b", {"tell": tell})
    given = invocation([call("number", x=5), call("tell", item=make_ref(0, "y"))], ["a", "b"], [(1, "said")])
    here.office.send(given, "a")
    await until(lambda: bool(here.executors["b"]._early))

    here.office.end(given)
    here.office.tensors.end_invocation(given.id)

    await until(lambda: not here.executors["b"]._early)
    await here.emptied()


async def test_a_probe_of_the_edge_is_no_message(here: Place):
    await here.executor("a", {"number": number})
    refused: list[bytes] = []
    await here.bus.subscribe("probe.>", lambda delivery: refused.append(delivery.data))

    here.bus.publish(subjects.edge_subject("a"), b"", reply="probe.a")
    here.bus.publish(subjects.edge_subject("gone"), b"", reply="probe.gone")

    await until(lambda: len(refused) == 1)
    await alive(here)


async def test_work_whose_office_is_gone_stops_and_frees_everything(here: Place):
    stopped = asyncio.Event()

    async def speak(job: Job) -> None:
        try:
            for n in range(1000):
                await job.send("y", {"n": n}, np.ones(4, np.float32))
                await asyncio.sleep(0.01)
        finally:
            stopped.set()

    await here.executor("a", {"speak": speak, "number": number})
    given = invocation([call("speak")], ["a"], [(0, "y")])
    gone = msgspec.structs.replace(given, reply=subjects.reply_subject("closed"))

    here.office.send(gone)

    await asyncio.wait_for(stopped.wait(), 10)
    await here.emptied()
    await alive(here)


# The gateway


async def work_for_nobody(here: Place) -> None:
    """Start work for a gateway that the server cannot find."""
    await here.executor("a", {"work": forever, "number": number})
    given = invocation([call("work")], ["a"], [(0, "y")])
    here.office.send(msgspec.structs.replace(given, reply=subjects.reply_subject("elsewhere")))


async def test_what_a_gateway_that_is_gone_has_asked_for_is_stopped(here: Place):
    await work_for_nobody(here)

    await here.emptied()


async def test_a_gateway_that_changes_servers_is_waited_for(here: Place):
    here.bus.clustered = True
    await work_for_nobody(here)
    await until(lambda: here.executors["a"]._refusals._refused != {})
    assert here.status("a").inflight == 1

    await here.emptied()  # it is found at no other server


async def test_a_gateway_that_has_changed_servers_keeps_what_it_has_asked_for(here: Place):
    here.bus.clustered = True
    await work_for_nobody(here)
    await until(lambda: here.executors["a"]._refusals.overdue_peers() != [])
    probes: list[bytes] = []

    await here.bus.subscribe(subjects.reply_subject("elsewhere"), lambda delivery: probes.append(delivery.data))

    await until(lambda: b"" in probes)
    await until(lambda: here.executors["a"]._refusals._refused == {})
    assert here.status("a").inflight == 1
