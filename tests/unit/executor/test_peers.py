"""A job sees the inputs of calls that are read with it."""

from typing import Any

from omnibus.executor.runner import Job
from omnibus.graph import GraphNode, make_ref
from tests.unit.executor.arithmetic import Place, make_call, make_invocation, put_number, put_sum


async def collect_peers(here: Place, calls: list[GraphNode], outputs: list[tuple[int, str]]) -> dict[Any, list[Any]]:
    """Return the peers' ``x`` by the ``x`` of each call of ``make``."""
    peer_inputs: dict[Any, list[Any]] = {}

    async def record_peers(job: Job) -> None:
        peer_inputs[job.inputs["x"]] = [peer["x"] for peer in job.peers]
        await put_number(job)

    for id in ("a", "b"):
        await here.executor(id, {"make": record_peers, "number": put_number, "add": put_sum})
    route = ["a" if one.component == "make" else "b" for one in calls]
    await here.office.done(here.office.send(make_invocation(calls, route, outputs)))
    return peer_inputs


async def test_calls_of_the_same_task_that_are_read_together_see_each_other(here: Place):
    calls = [make_call("make", x=1), make_call("number", x=5), make_call("make", x=2)]

    peers = await collect_peers(
        here, [*calls, make_call("add", items=[make_ref(0, "y"), make_ref(1, "y"), make_ref(2, "y")])], [(3, "y")]
    )

    assert peers == {1: [1, 2], 2: [1, 2]}


async def test_one_that_is_read_twice_counts_twice(here: Place):
    peers = await collect_peers(
        here, [make_call("make", x=1), make_call("add", items=[make_ref(0, "y"), make_ref(0, "y")])], [(1, "y")]
    )

    assert peers == {1: [1, 1]}


async def test_calls_that_are_read_apart_do_not_see_each_other(here: Place):
    calls = [
        make_call("make", x=1),
        make_call("make", x=2),
        make_call("add", items=[make_ref(0, "y")]),
        make_call("add", items=[make_ref(1, "y")]),
    ]

    peers = await collect_peers(here, calls, [(2, "y"), (3, "y")])

    assert peers == {1: [1], 2: [2]}


async def test_of_several_readers_the_one_that_reads_most_counts(here: Place):
    calls = [
        make_call("make", x=1),
        make_call("make", x=2),
        make_call("add", items=[make_ref(0, "y")]),
        make_call("add", items=[make_ref(0, "y"), make_ref(1, "y")]),
    ]

    peers = await collect_peers(here, calls, [(2, "y"), (3, "y")])

    assert peers == {1: [1, 2], 2: [1, 2]}


async def test_one_that_only_the_client_reads_is_alone(here: Place):
    peers = await collect_peers(here, [make_call("make", x=1), make_call("make", x=2)], [(0, "y"), (1, "y")])

    assert peers == {1: [1], 2: [2]}
