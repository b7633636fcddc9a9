"""A job sees the inputs of calls that are read with it."""

from typing import Any

from omnibus.executor.runner import Job
from omnibus.graph import GraphNode, make_ref
from tests.unit.executor.arithmetic import Place, add, call, invocation, number


async def seen(here: Place, calls: list[GraphNode], outputs: list[tuple[int, str]]) -> dict[Any, list[Any]]:
    """Return the peers' ``x`` by the ``x`` of each call of ``make``."""
    found: dict[Any, list[Any]] = {}

    async def make(job: Job) -> None:
        found[job.inputs["x"]] = [peer["x"] for peer in job.peers]
        await number(job)

    for id in ("a", "b"):
        await here.executor(id, {"make": make, "number": number, "add": add})
    route = ["a" if one.component == "make" else "b" for one in calls]
    await here.office.done(here.office.send(invocation(calls, route, outputs)))
    return found


async def test_calls_of_the_same_task_that_are_read_together_see_each_other(here: Place):
    calls = [call("make", x=1), call("number", x=5), call("make", x=2)]

    found = await seen(
        here, [*calls, call("add", items=[make_ref(0, "y"), make_ref(1, "y"), make_ref(2, "y")])], [(3, "y")]
    )

    assert found == {1: [1, 2], 2: [1, 2]}


async def test_one_that_is_read_twice_counts_twice(here: Place):
    found = await seen(here, [call("make", x=1), call("add", items=[make_ref(0, "y"), make_ref(0, "y")])], [(1, "y")])

    assert found == {1: [1, 1]}


async def test_calls_that_are_read_apart_do_not_see_each_other(here: Place):
    calls = [
        call("make", x=1),
        call("make", x=2),
        call("add", items=[make_ref(0, "y")]),
        call("add", items=[make_ref(1, "y")]),
    ]

    found = await seen(here, calls, [(2, "y"), (3, "y")])

    assert found == {1: [1], 2: [2]}


async def test_of_several_readers_the_one_that_reads_most_counts(here: Place):
    calls = [
        call("make", x=1),
        call("make", x=2),
        call("add", items=[make_ref(0, "y")]),
        call("add", items=[make_ref(0, "y"), make_ref(1, "y")]),
    ]

    found = await seen(here, calls, [(2, "y"), (3, "y")])

    assert found == {1: [1, 2], 2: [1, 2]}


async def test_one_that_only_the_client_reads_is_alone(here: Place):
    found = await seen(here, [call("make", x=1), call("make", x=2)], [(0, "y"), (1, "y")])

    assert found == {1: [1], 2: [2]}
