"""Nodes of one invocation in one or several executors: values, streams, handles, memory."""

import asyncio

import numpy as np
import pytest

from omnibus.bus.messages import Accepted, Chunk, Hop, NodeFailed
from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import (
    Place,
    make_call,
    make_invocation,
    put_number,
    put_sum,
    send_numbers,
    wait_forever,
)
from tests.unit.sidecar.node import wait_until


def make_chain(route: list[str]) -> dict:
    """Return calls that add 2 and 3 and stream the sum."""
    calls = [
        make_call("number", x=2), make_call("number", x=3), make_call("add", items=[make_ref(0, "y"), make_ref(1, "y")], more=1),
        make_call("tell", item=make_ref(2, "y")),
    ]  # fmt: skip
    return {"calls": calls, "route": route, "outputs": [(3, "said")]}


ALL = {"number": put_number, "add": put_sum, "tell": send_numbers}


async def test_a_value_goes_from_one_executor_to_another_by_handle(here: Place):
    await here.executor("a", {"number": put_number})
    await here.executor("b", {"tell": send_numbers})
    request = here.office.send(
        make_invocation([make_call("number", x=5), make_call("tell", item=make_ref(0, "y"))], ["a", "b"], [(1, "said")])
    )

    chunks = await here.office.done(request)

    assert [chunk.data for chunk in chunks] == [{"n": 5.0}] * 4 + [{"end": True}]
    assert [chunk.seq for chunk in chunks] == [0, 1, 2, 3, 4]
    assert [chunk.last for chunk in chunks] == [False] * 4 + [True]
    assert here.granted == 1
    await here.emptied()


async def test_jobs_know_whether_their_results_are_read_in_the_same_executor(here: Place):
    clocks: dict[tuple[str, float], tuple[bool, float]] = {}

    async def note_clock(job: Job) -> None:
        clock = current_clock()
        clocks[job.node.component, job.inputs.get("x", 0)] = clock.continues, clock.came
        await (put_number(job) if job.node.component == "number" else send_numbers(job))

    await here.executor("a", {"number": note_clock, "tell": note_clock})
    await here.executor("b", {"tell": note_clock})
    for number, reader in enumerate("ab"):
        calls = [make_call("number", x=number), make_call("tell", item=make_ref(0, "y"))]
        await here.office.done(here.office.send(make_invocation(calls, ["a", reader], [(1, "said")])))

    assert [clocks["number", number][0] for number in range(2)] == [True, False]
    assert clocks["number", 0][1] < clocks["number", 1][1]
    await here.emptied()


async def test_in_one_executor_no_memory_is_asked_for(here: Place):
    await here.executor("a", ALL)
    request = here.office.send(make_invocation(**make_chain(["a"] * 4)))

    chunks = await here.office.done(request)

    assert chunks[0].data == {"n": 6.0}
    assert here.granted == 0
    await here.emptied()


@pytest.mark.parametrize(
    "route", [["a", "b", "c", "d"], ["a", "a", "b", "b"], ["a", "b", "b", "a"], ["b", "a", "b", "c"]]
)
async def test_values_fan_out_and_in_over_any_route(here: Place, route: list[str]):
    for id in sorted(set(route)):
        await here.executor(id, ALL)

    request = here.office.send(make_invocation(**make_chain(route)))

    assert [chunk.data for chunk in await here.office.done(request)] == [{"n": 6.0}] * 4 + [{"end": True}]
    assert {hop.node: hop.executor for hop in here.office.of(Hop, request)} == dict(enumerate(route))
    await here.emptied()


async def test_one_value_has_many_readers(here: Place):
    for id in ("a", "b", "c"):
        await here.executor(id, ALL)
    calls = [make_call("number", x=4), *(make_call("tell", item=make_ref(0, "y")) for _ in range(4))]
    outputs = [(0, "y"), *((node, "said") for node in range(1, 5))]
    request = here.office.send(make_invocation(calls, ["a", "a", "b", "b", "c"], outputs))

    chunks = await here.office.done(request)

    assert all(sum(chunk.node == node for chunk in chunks) == 5 for node in range(1, 5))
    [value_chunk] = [chunk for chunk in chunks if chunk.node == 0]
    assert here.office.read(value_chunk) == [4.0] * 4
    assert here.granted == 1
    await here.emptied()


async def test_a_node_may_read_one_value_through_several_inputs(here: Place):
    async def add_inputs(job: Job) -> None:
        left, right = await job.value("left"), await job.value("items")
        await job.put("y", {"n": float((left.array + right[0].array + right[1].array)[0])})

    await here.executor("a", {"number": put_number})
    await here.executor("b", {"twice": add_inputs})
    inputs = {"left": make_ref(0, "y"), "items": [make_ref(0, "y"), make_ref(0, "y")]}
    request = here.office.send(
        make_invocation([make_call("number", x=2), make_call("twice", **inputs)], ["a", "b"], [(1, "y")])
    )

    assert [chunk.data for chunk in await here.office.done(request)] == [{"n": 6.0}]
    await here.emptied()


async def test_edges_may_come_before_their_invocation(here: Place):
    await here.executor("a", {"number": put_number})
    await here.executor("b", {"tell": send_numbers})
    request = make_invocation(
        [make_call("number", x=5), make_call("tell", item=make_ref(0, "y"))], ["a", "b"], [(1, "said")]
    )

    here.office.send(request, "a")
    await wait_until(lambda: here.status("a").steps > 0 and here.status("a").inflight == 0)
    assert here.status("b").inflight == 0
    here.office.send(request, "b")

    assert len(await here.office.done(request)) == 5
    await here.emptied()


async def test_a_stream_is_read_while_it_is_written(here: Place):
    word_event = asyncio.Event()

    async def send_words(job: Job) -> None:
        await job.send("words", {"n": 1}, np.ones(3, np.float32))
        await asyncio.wait_for(word_event.wait(), 10)  # continues only when its consumer has the first word
        await job.send("words", {"n": 2}, np.ones(5, np.float32))

    async def echo_words(job: Job) -> None:
        async for item in job.stream("words"):
            word_event.set()
            assert item.array is not None
            await job.send("said", {"n": item.data["n"], "length": len(item.array)})

    await here.executor("a", {"speak": send_words})
    await here.executor("b", {"hear": echo_words})
    request = here.office.send(
        make_invocation([make_call("speak"), make_call("hear", words=make_ref(0, "words"))], ["a", "b"], [(1, "said")])
    )

    chunks = await here.office.done(request)

    assert [chunk.data for chunk in chunks if not chunk.empty] == [{"n": 1, "length": 3}, {"n": 2, "length": 5}]
    assert [chunk.last for chunk in chunks] == [False, False, True]
    await here.emptied()


@pytest.mark.parametrize("route", [["a", "a"], ["a", "b"]])
async def test_a_stream_may_be_empty(here: Place, route: list[str]):
    async def close_words(job: Job) -> None:
        job.close("words")
        job.close("words")

    async def count_words(job: Job) -> None:
        await job.put("y", {"count": len([item async for item in job.stream("words")])})

    for id in set(route):
        await here.executor(id, {"silent": close_words, "hear": count_words})
    request = here.office.send(
        make_invocation([make_call("silent"), make_call("hear", words=make_ref(0, "words"))], route, [(1, "y")])
    )

    assert [chunk.data for chunk in await here.office.done(request)] == [{"count": 0}]


async def test_a_runner_that_closes_nothing_has_its_streams_closed(here: Place):
    async def send_unclosed(job: Job) -> None:
        await job.send("words", {"n": 1})

    await here.executor("a", {"careless": send_unclosed})
    request = here.office.send(make_invocation([make_call("careless")], ["a"], [(0, "words"), (0, "never")]))

    chunks = await here.office.done(request)

    assert {chunk.output for chunk in chunks if chunk.last} == {"words", "never"}
    assert [chunk.empty for chunk in chunks if chunk.output == "never"] == [True]


async def test_outputs_that_nobody_wants_cost_nothing(here: Place):
    consumer_flags: list[bool] = []

    async def put_outputs(job: Job) -> None:
        consumer_flags.extend([job.has_consumer("y"), job.has_consumer("z")])
        await job.put("z", {}, np.ones(1000, np.float32))
        await job.put("y", {"n": 1})

    await here.executor("a", {"generous": put_outputs})
    request = here.office.send(make_invocation([make_call("generous")], ["a"], [(0, "y")]))

    assert [chunk.output for chunk in await here.office.done(request)] == ["y"]
    assert consumer_flags == [True, False]
    assert here.granted == 0


async def test_a_runner_sees_its_literals_and_who_it_works_for(here: Place):
    job_details: dict = {}

    async def record_job(job: Job) -> None:
        job_details.update(inputs=dict(job.inputs), seed=job.seed, deadline=job.deadline, id=job.invocation)
        await job.put("y", {})

    await here.executor("a", {"number": put_number, "look": record_job})
    calls = [
        make_call("number", x=1),
        make_call("look", x={"deep": [1]}, item=make_ref(0, "y"), mixed=[make_ref(0, "y"), 2]),
    ]
    request = here.office.send(make_invocation(calls, ["a", "a"], [(1, "y")]))
    await here.office.done(request)

    assert job_details == {"inputs": {"x": {"deep": [1]}}, "seed": 7, "deadline": request.deadline, "id": request.id}


async def test_times_of_all_nodes_reach_the_office_in_order(here: Place):
    for id in "abcd":
        await here.executor(id, ALL)
    request = here.office.send(make_invocation(**make_chain(list("abcd"))))
    await here.office.done(request)

    hops = here.office.of(Hop, request)

    assert sorted(hop.node for hop in hops) == [0, 1, 2, 3]
    for hop in hops:
        assert request.created <= hop.taken <= hop.ready <= hop.first <= hop.end


async def test_long_work_is_confirmed_before_it_is_done(here: Place):
    release = asyncio.Event()

    async def put_late(job: Job) -> None:
        await release.wait()
        await job.put("y", {})

    await here.executor("a", {"slow": put_late})
    request = here.office.send(make_invocation([make_call("slow")], ["a"], [(0, "y")]))

    [acceptance] = await here.office.until(Accepted, request)
    assert acceptance == Accepted(request.id, "a", 0)
    assert here.office.of(Hop, request) == []

    release.set()
    await here.office.done(request)
    assert here.office.of(Accepted, request) == [acceptance]


async def test_work_that_is_done_at_once_is_not_confirmed_besides(here: Place):
    await here.executor("a", {**ALL, "forever": wait_forever})
    waiting = here.office.send(make_invocation([make_call("forever")], ["a"], [(0, "y")]))
    quick = here.office.send(make_invocation([make_call("number", x=1)], ["a"], [(0, "y")]))
    await here.office.done(quick)

    await here.office.until(Accepted, waiting)  # all confirmations of an executor leave together

    assert here.office.of(Accepted, quick) == []


async def test_many_invocations_at_once_do_not_mix(here: Place):
    await here.executor("a", ALL, credits=100)
    await here.executor("b", ALL, credits=100)
    requests = [
        here.office.send(
            make_invocation(
                [make_call("number", x=n), make_call("add", items=[make_ref(0, "y")], more=n)], ["a", "b"], [(1, "y")]
            )
        )
        for n in range(50)
    ]

    for n, request in enumerate(requests):
        [chunk] = await here.office.done(request)
        assert chunk.data == {"n": 2.0 * n}
        assert here.office.read(chunk) == [2.0 * n] * 4

    assert here.office.replies == [reply for reply in here.office.replies if isinstance(reply, Chunk | Hop | Accepted)]
    assert not [reply for reply in here.office.replies if isinstance(reply, NodeFailed)]
    await here.emptied()
