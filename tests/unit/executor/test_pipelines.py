"""Nodes of one invocation in one or several executors: values, streams, handles, memory."""

import asyncio

import numpy as np
import pytest

from omnibus.bus.messages import Accepted, Chunk, Hop, NodeFailed
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import Place, add, call, forever, invocation, number, tell
from tests.unit.sidecar.node import until


def chain(route: list[str]) -> dict:
    """Return calls that add 2 and 3 and stream the sum."""
    calls = [
        call("number", x=2), call("number", x=3), call("add", items=[make_ref(0, "y"), make_ref(1, "y")], more=1),
        call("tell", item=make_ref(2, "y")),
    ]  # fmt: skip
    return {"calls": calls, "route": route, "outputs": [(3, "said")]}


ALL = {"number": number, "add": add, "tell": tell}


async def test_a_value_goes_from_one_executor_to_another_by_handle(here: Place):
    await here.executor("a", {"number": number})
    await here.executor("b", {"tell": tell})
    given = here.office.send(
        invocation([call("number", x=5), call("tell", item=make_ref(0, "y"))], ["a", "b"], [(1, "said")])
    )

    chunks = await here.office.done(given)

    assert [chunk.data for chunk in chunks] == [{"n": 5.0}] * 4 + [{"end": True}]
    assert [chunk.seq for chunk in chunks] == [0, 1, 2, 3, 4]
    assert [chunk.last for chunk in chunks] == [False] * 4 + [True]
    assert here.granted == 1
    await here.emptied()


async def test_in_one_executor_no_memory_is_asked_for(here: Place):
    await here.executor("a", ALL)
    given = here.office.send(invocation(**chain(["a"] * 4)))

    chunks = await here.office.done(given)

    assert chunks[0].data == {"n": 6.0}
    assert here.granted == 0
    await here.emptied()


@pytest.mark.parametrize(
    "route", [["a", "b", "c", "d"], ["a", "a", "b", "b"], ["a", "b", "b", "a"], ["b", "a", "b", "c"]]
)
async def test_values_fan_out_and_in_over_any_route(here: Place, route: list[str]):
    for id in sorted(set(route)):
        await here.executor(id, ALL)

    given = here.office.send(invocation(**chain(route)))

    assert [chunk.data for chunk in await here.office.done(given)] == [{"n": 6.0}] * 4 + [{"end": True}]
    assert {hop.node: hop.executor for hop in here.office.of(Hop, given)} == dict(enumerate(route))
    await here.emptied()


async def test_one_value_has_many_readers(here: Place):
    for id in ("a", "b", "c"):
        await here.executor(id, ALL)
    calls = [call("number", x=4), *(call("tell", item=make_ref(0, "y")) for _ in range(4))]
    outputs = [(0, "y"), *((node, "said") for node in range(1, 5))]
    given = here.office.send(invocation(calls, ["a", "a", "b", "b", "c"], outputs))

    chunks = await here.office.done(given)

    assert all(sum(chunk.node == node for chunk in chunks) == 5 for node in range(1, 5))
    [mine] = [chunk for chunk in chunks if chunk.node == 0]
    assert here.office.read(mine) == [4.0] * 4
    assert here.granted == 1
    await here.emptied()


async def test_a_node_may_read_one_value_through_several_inputs(here: Place):
    async def twice(job: Job) -> None:
        left, right = await job.value("left"), await job.value("items")
        await job.put("y", {"n": float((left.array + right[0].array + right[1].array)[0])})

    await here.executor("a", {"number": number})
    await here.executor("b", {"twice": twice})
    inputs = {"left": make_ref(0, "y"), "items": [make_ref(0, "y"), make_ref(0, "y")]}
    given = here.office.send(invocation([call("number", x=2), call("twice", **inputs)], ["a", "b"], [(1, "y")]))

    assert [chunk.data for chunk in await here.office.done(given)] == [{"n": 6.0}]
    await here.emptied()


async def test_edges_may_come_before_their_invocation(here: Place):
    await here.executor("a", {"number": number})
    await here.executor("b", {"tell": tell})
    given = invocation([call("number", x=5), call("tell", item=make_ref(0, "y"))], ["a", "b"], [(1, "said")])

    here.office.send(given, "a")
    await until(lambda: here.status("a").steps > 0 and here.status("a").inflight == 0)
    assert here.status("b").inflight == 0
    here.office.send(given, "b")

    assert len(await here.office.done(given)) == 5
    await here.emptied()


async def test_a_stream_is_read_while_it_is_written(here: Place):
    heard = asyncio.Event()

    async def speak(job: Job) -> None:
        await job.send("words", {"n": 1}, np.ones(3, np.float32))
        await asyncio.wait_for(heard.wait(), 10)  # continues only when its consumer has the first word
        await job.send("words", {"n": 2}, np.ones(5, np.float32))

    async def hear(job: Job) -> None:
        async for item in job.stream("words"):
            heard.set()
            assert item.array is not None
            await job.send("said", {"n": item.data["n"], "length": len(item.array)})

    await here.executor("a", {"speak": speak})
    await here.executor("b", {"hear": hear})
    given = here.office.send(
        invocation([call("speak"), call("hear", words=make_ref(0, "words"))], ["a", "b"], [(1, "said")])
    )

    chunks = await here.office.done(given)

    assert [chunk.data for chunk in chunks if not chunk.empty] == [{"n": 1, "length": 3}, {"n": 2, "length": 5}]
    assert [chunk.last for chunk in chunks] == [False, False, True]
    await here.emptied()


@pytest.mark.parametrize("route", [["a", "a"], ["a", "b"]])
async def test_a_stream_may_be_empty(here: Place, route: list[str]):
    async def silent(job: Job) -> None:
        job.close("words")
        job.close("words")

    async def hear(job: Job) -> None:
        await job.put("y", {"count": len([item async for item in job.stream("words")])})

    for id in set(route):
        await here.executor(id, {"silent": silent, "hear": hear})
    given = here.office.send(invocation([call("silent"), call("hear", words=make_ref(0, "words"))], route, [(1, "y")]))

    assert [chunk.data for chunk in await here.office.done(given)] == [{"count": 0}]


async def test_a_runner_that_closes_nothing_has_its_streams_closed(here: Place):
    async def careless(job: Job) -> None:
        await job.send("words", {"n": 1})

    await here.executor("a", {"careless": careless})
    given = here.office.send(invocation([call("careless")], ["a"], [(0, "words"), (0, "never")]))

    chunks = await here.office.done(given)

    assert {chunk.output for chunk in chunks if chunk.last} == {"words", "never"}
    assert [chunk.empty for chunk in chunks if chunk.output == "never"] == [True]


async def test_outputs_that_nobody_wants_cost_nothing(here: Place):
    wanted: list[bool] = []

    async def generous(job: Job) -> None:
        wanted.extend([job.has_consumer("y"), job.has_consumer("z")])
        await job.put("z", {}, np.ones(1000, np.float32))
        await job.put("y", {"n": 1})

    await here.executor("a", {"generous": generous})
    given = here.office.send(invocation([call("generous")], ["a"], [(0, "y")]))

    assert [chunk.output for chunk in await here.office.done(given)] == ["y"]
    assert wanted == [True, False]
    assert here.granted == 0


async def test_a_runner_sees_its_literals_and_who_it_works_for(here: Place):
    seen: dict = {}

    async def look(job: Job) -> None:
        seen.update(inputs=dict(job.inputs), seed=job.seed, deadline=job.deadline, id=job.invocation)
        await job.put("y", {})

    await here.executor("a", {"number": number, "look": look})
    calls = [call("number", x=1), call("look", x={"deep": [1]}, item=make_ref(0, "y"), mixed=[make_ref(0, "y"), 2])]
    given = here.office.send(invocation(calls, ["a", "a"], [(1, "y")]))
    await here.office.done(given)

    assert seen == {"inputs": {"x": {"deep": [1]}}, "seed": 7, "deadline": given.deadline, "id": given.id}


async def test_times_of_all_nodes_reach_the_office_in_order(here: Place):
    for id in "abcd":
        await here.executor(id, ALL)
    given = here.office.send(invocation(**chain(list("abcd"))))
    await here.office.done(given)

    hops = here.office.of(Hop, given)

    assert sorted(hop.node for hop in hops) == [0, 1, 2, 3]
    for hop in hops:
        assert given.created <= hop.taken <= hop.ready <= hop.first <= hop.end


async def test_long_work_is_confirmed_before_it_is_done(here: Place):
    release = asyncio.Event()

    async def slow(job: Job) -> None:
        await release.wait()
        await job.put("y", {})

    await here.executor("a", {"slow": slow})
    given = here.office.send(invocation([call("slow")], ["a"], [(0, "y")]))

    [accepted] = await here.office.until(Accepted, given)
    assert accepted == Accepted(given.id, "a", 0)
    assert here.office.of(Hop, given) == []

    release.set()
    await here.office.done(given)
    assert here.office.of(Accepted, given) == [accepted]


async def test_work_that_is_done_at_once_is_not_confirmed_besides(here: Place):
    await here.executor("a", {**ALL, "forever": forever})
    waiting = here.office.send(invocation([call("forever")], ["a"], [(0, "y")]))
    quick = here.office.send(invocation([call("number", x=1)], ["a"], [(0, "y")]))
    await here.office.done(quick)

    await here.office.until(Accepted, waiting)  # all confirmations of an executor leave together

    assert here.office.of(Accepted, quick) == []


async def test_many_invocations_at_once_do_not_mix(here: Place):
    await here.executor("a", ALL, credits=100)
    await here.executor("b", ALL, credits=100)
    sent = [
        here.office.send(
            invocation([call("number", x=n), call("add", items=[make_ref(0, "y")], more=n)], ["a", "b"], [(1, "y")])
        )
        for n in range(50)
    ]

    for n, given in enumerate(sent):
        [chunk] = await here.office.done(given)
        assert chunk.data == {"n": 2.0 * n}
        assert here.office.read(chunk) == [2.0 * n] * 4

    assert here.office.replies == [reply for reply in here.office.replies if isinstance(reply, Chunk | Hop | Accepted)]
    assert not [reply for reply in here.office.replies if isinstance(reply, NodeFailed)]
    await here.emptied()
