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
from tests.unit.executor.arithmetic import (
    Place,
    Work,
    make_call,
    make_invocation,
    put_number,
    send_numbers,
    wait_forever,
)
from tests.unit.sidecar.node import wait_until


async def fail_request(here: Place, work: Work, **inputs) -> NodeFailed:
    await here.executor("a", {"work": work, "number": put_number})
    request = here.office.send(make_invocation([make_call("work", **inputs)], ["a"], [(0, "y")]))
    [node_failure] = await here.office.until(NodeFailed, request)
    assert here.status("a").inflight == 0
    await here.emptied()
    return node_failure


async def check_alive(here: Place, id: str = "a") -> None:
    request = here.office.send(make_invocation([make_call("number", x=1)], [id], [(0, "y")]))
    assert len(await here.office.done(request)) == 1
    here.office.tensors.end_invocation(request.id)


async def test_an_engine_that_breaks_fails_its_request_and_lives(here: Place):
    async def divide_input(job: Job) -> None:
        await job.put("y", {"n": 1 / job.inputs["x"]})

    node_failure = await fail_request(here, divide_input, x=0)

    error = from_problem(node_failure.problem)
    assert isinstance(error, StageFailed)
    assert (error.stage, error.executor, error.attempt) == ("work", "a", 0)
    assert "ZeroDivisionError" in error.message
    await check_alive(here)


async def test_nothing_of_an_engines_own_words_leaves(here: Place):
    async def raise_secret(job: Job) -> None:
        raise RuntimeError("the prompt was: secret")

    assert "secret" not in (await fail_request(here, raise_secret)).problem.message


@pytest.mark.parametrize(
    "error",
    [BadRequest("x must be positive", param="x"), ContextTooLong("too long"), Overloaded("full", retry_after=3)],
)
async def test_a_typed_error_passes_through(here: Place, error: BadRequest):
    async def raise_error(job: Job) -> None:
        raise error

    problem = (await fail_request(here, raise_error)).problem

    assert (problem.code, problem.message, problem.param) == (error.code, error.message, error.param)
    assert problem.retry_after == getattr(error, "retry_after", 0)
    assert (problem.stage, problem.executor) == ("work", "a")
    await check_alive(here)


async def test_a_task_that_this_executor_does_not_run_is_a_stale_route(here: Place):
    await here.executor("a", {"number": put_number})
    request = here.office.send(
        make_invocation([make_call("number", x=1), make_call("unheard")], ["a", "a"], [(0, "y"), (1, "y")])
    )

    [node_failure] = await here.office.until(NodeFailed, request)

    assert node_failure.problem.code == "stage_failed"
    assert "route is stale" in node_failure.problem.message


async def test_a_chunk_too_large_for_the_bus_fails_its_request_alone(here: Place):
    start_event = asyncio.Event()

    async def send_oversized(job: Job) -> None:
        await start_event.wait()
        await job.put("y", {"text": "x" * 100_000})

    await here.executor("a", {"shout": send_oversized, "number": put_number})
    loud = here.office.send(make_invocation([make_call("shout")], ["a"], [(0, "y")]))
    quiet = here.office.send(make_invocation([make_call("number", x=1)], ["a"], [(0, "y")]))
    start_event.set()

    [node_failure] = await here.office.until(NodeFailed, loud)

    assert node_failure.problem.code == "protocol_error"
    assert len(await here.office.done(quiet)) == 1


async def test_the_deadline_ends_work_that_does_not_end_itself(here: Place):
    await here.executor("a", {"work": wait_forever, "number": put_number})
    request = here.office.send(make_invocation([make_call("work")], ["a"], [(0, "y")], within=0.2))

    [node_failure] = await here.office.until(NodeFailed, request)

    assert (node_failure.problem.code, node_failure.problem.stage) == ("deadline_exceeded", "work")
    assert time.time() > request.deadline
    await here.emptied()
    await check_alive(here)


async def test_the_deadline_ends_a_wait_for_an_input_that_never_comes(here: Place):
    await here.executor("a", {"tell": send_numbers, "number": put_number})
    calls = [make_call("number", x=1), make_call("tell", item=make_ref(0, "y"))]
    request = here.office.send(make_invocation(calls, ["nobody", "a"], [(1, "said")], within=0.2), "a")

    [node_failure] = await here.office.until(NodeFailed, request)

    assert (node_failure.problem.code, node_failure.node) == ("deadline_exceeded", 1)
    await here.emptied()


async def test_an_input_that_was_freed_is_a_stale_handle(here: Place):
    handle = await here.office.tensors.put(np.ones(4, np.float32), invocation="x", deadline=time.time() + 60)
    here.office.tensors.end_invocation("x")
    await here.office.tensors.stats()
    await here.executor("a", {"tell": send_numbers})
    item = {HANDLE: {name: getattr(handle, name) for name in handle.__struct_fields__}, "sha256": "aa"}
    request = here.office.send(make_invocation([make_call("tell", item=item)], ["a"], [(0, "said")]))

    [node_failure] = await here.office.until(NodeFailed, request)

    assert node_failure.problem.code == "stale_handle"


# Ends


@pytest.mark.parametrize("status", ["cancelled", "failed", "expired", "done"])
async def test_an_end_stops_the_work_everywhere_and_frees_everything(here: Place, status: str):
    invocation_ids: list[str] = []
    ready = asyncio.Event()

    async def hold_memory(job: Job) -> None:
        await job.value("items")
        rows = await job.open_rows("rows", 10, 4, "float32")
        rows.write(np.ones((2, 4), np.float32))
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            invocation_ids.append(job.invocation)

    await here.executor("a", {"number": put_number})
    await here.executor("b", {"hold": hold_memory})
    await here.executor("c", {"listen": wait_forever})
    calls = [
        make_call("number", x=1),
        make_call("hold", items=[make_ref(0, "y")]),
        make_call("listen", rows=make_ref(1, "rows")),
    ]
    request = here.office.send(make_invocation(calls, ["a", "b", "c"], [(2, "y")]))
    await ready.wait()
    assert await here.blocks() == 2

    here.office.end(request, status)
    here.office.tensors.end_invocation(request.id)

    await wait_until(lambda: invocation_ids == [request.id])
    await here.emptied()
    assert not here.office.of(NodeFailed, request)


async def test_memory_that_is_asked_for_after_the_end_is_freed_too(here: Place):
    """The gateway's message reaches the sidecar before the executor."""
    go, given_out = asyncio.Event(), asyncio.Event()

    async def put_late(job: Job) -> None:
        await go.wait()
        await job.send("y", {}, np.ones(100, np.float32))
        given_out.set()
        await asyncio.Event().wait()

    await here.executor("a", {"late": put_late})
    request = here.office.send(make_invocation([make_call("late")], ["a"], [(0, "y")]))
    await wait_until(lambda: here.status("a").inflight == 1)

    here.office.tensors.end_invocation(request.id)
    await here.office.tensors.stats()
    go.set()
    await given_out.wait()
    here.office.end(request)

    await here.emptied()


async def test_an_end_of_an_older_attempt_leaves_the_newer_one_alone(here: Place):
    await here.executor("a", {"work": wait_forever, "number": put_number})
    request = here.office.send(make_invocation([make_call("work")], ["a"], [(0, "y")], attempt=2))
    await wait_until(lambda: here.status("a").inflight == 1)

    here.office.end(request, "moved", attempt=1)
    await check_alive(here)
    assert here.status("a").inflight == 1

    here.office.end(request, "moved", attempt=2)
    await wait_until(lambda: here.status("a").inflight == 0)


async def test_ending_twice_or_what_was_never_there_is_harmless(here: Place):
    await here.executor("a", {"work": wait_forever, "number": put_number})
    request = here.office.send(make_invocation([make_call("work")], ["a"], [(0, "y")]))
    await wait_until(lambda: here.status("a").inflight == 1)

    for _ in range(3):
        here.office.end(request)
    here.office.end(make_invocation([make_call("work")], ["a"], [(0, "y")], id="never"))

    await here.emptied()
    await check_alive(here)


async def test_edges_that_came_early_go_with_the_end(here: Place):
    await here.executor("a", {"number": put_number})
    await here.executor("b", {"tell": send_numbers})
    request = make_invocation(
        [make_call("number", x=5), make_call("tell", item=make_ref(0, "y"))], ["a", "b"], [(1, "said")]
    )
    here.office.send(request, "a")
    await wait_until(lambda: bool(here.executors["b"]._early))

    here.office.end(request)
    here.office.tensors.end_invocation(request.id)

    await wait_until(lambda: not here.executors["b"]._early)
    await here.emptied()


async def test_a_probe_of_the_edge_is_no_message(here: Place):
    await here.executor("a", {"number": put_number})
    refusals: list[bytes] = []
    await here.bus.subscribe("probe.>", lambda delivery: refusals.append(delivery.data))

    here.bus.publish(subjects.edge_subject("a"), b"", reply="probe.a")
    here.bus.publish(subjects.edge_subject("gone"), b"", reply="probe.gone")

    await wait_until(lambda: len(refusals) == 1)
    await check_alive(here)


async def test_work_whose_office_is_gone_stops_and_frees_everything(here: Place):
    stop_event = asyncio.Event()

    async def send_forever(job: Job) -> None:
        try:
            for n in range(1000):
                await job.send("y", {"n": n}, np.ones(4, np.float32))
                await asyncio.sleep(0.01)
        finally:
            stop_event.set()

    await here.executor("a", {"speak": send_forever, "number": put_number})
    request = make_invocation([make_call("speak")], ["a"], [(0, "y")])
    orphan_request = msgspec.structs.replace(request, reply=subjects.reply_subject("closed"))

    here.office.send(orphan_request)

    await asyncio.wait_for(stop_event.wait(), 10)
    await here.emptied()
    await check_alive(here)


# The gateway


async def work_for_nobody(here: Place) -> None:
    """Start work for a gateway that the server cannot find."""
    await here.executor("a", {"work": wait_forever, "number": put_number})
    request = make_invocation([make_call("work")], ["a"], [(0, "y")])
    here.office.send(msgspec.structs.replace(request, reply=subjects.reply_subject("elsewhere")))


async def test_what_a_gateway_that_is_gone_has_asked_for_is_stopped(here: Place):
    await work_for_nobody(here)

    await here.emptied()


async def test_a_gateway_that_changes_servers_is_waited_for(here: Place):
    here.bus.clustered = True
    await work_for_nobody(here)
    await wait_until(lambda: here.executors["a"]._refusals._refused != {})
    assert here.status("a").inflight == 1

    await here.emptied()  # it is found at no other server


async def test_a_gateway_that_has_changed_servers_keeps_what_it_has_asked_for(here: Place):
    here.bus.clustered = True
    await work_for_nobody(here)
    await wait_until(lambda: here.executors["a"]._refusals.overdue_peers() != [])
    probes: list[bytes] = []

    await here.bus.subscribe(subjects.reply_subject("elsewhere"), lambda delivery: probes.append(delivery.data))

    await wait_until(lambda: b"" in probes)
    await wait_until(lambda: here.executors["a"]._refusals._refused == {})
    assert here.status("a").inflight == 1
