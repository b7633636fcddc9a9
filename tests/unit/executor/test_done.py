"""Jobs that free memory early, and see whether outputs leave the process."""

import asyncio

import pytest

from omnibus.bus.messages import Chunk
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import Place, make_call, make_invocation, put_number, put_sum


def make_reader(gate: asyncio.Event, *, twice: bool = False):
    """Return work that reads ``item``, frees it, and waits until ``gate`` opens."""

    async def read_item(job: Job) -> None:
        item = await job.value("item")
        total = float(item.array.sum())
        job.release_input("item")
        if twice:
            job.release_input("item")
        await gate.wait()
        await job.put("y", {"n": total})

    return read_item


@pytest.mark.parametrize("twice", [False, True])
async def test_memory_that_was_read_is_free_before_the_job_ends(here: Place, twice: bool):
    gate = asyncio.Event()
    await here.executor("a", {"number": put_number})
    await here.executor("b", {"read": make_reader(gate, twice=twice)})
    request = here.office.send(
        make_invocation([make_call("number", x=2), make_call("read", item=make_ref(0, "y"))], ["a", "b"], [(1, "y")])
    )

    while not here.granted or await here.blocks():
        await asyncio.sleep(0)
    before = here.office.of(Chunk, request)
    gate.set()
    [chunk] = await here.office.done(request)

    assert before == []
    assert chunk.data == {"n": 8.0}


async def test_memory_that_another_job_still_reads_stays(here: Place):
    gate, given_back = asyncio.Event(), asyncio.Event()
    blocks = []

    async def read_first(job: Job) -> None:
        await job.value("item")
        job.release_input("item")
        given_back.set()
        await job.put("y", {})

    async def read_second(job: Job) -> None:
        item = await job.value("item")
        await given_back.wait()
        blocks.append(await here.blocks())
        await gate.wait()
        await job.put("y", {"n": float(item.array.sum())})

    await here.executor("a", {"number": put_number})
    await here.executor("b", {"first": read_first, "second": read_second})
    calls = [
        make_call("number", x=2),
        make_call("first", item=make_ref(0, "y")),
        make_call("second", item=make_ref(0, "y")),
    ]
    request = here.office.send(make_invocation(calls, ["a", "b", "b"], [(1, "y"), (2, "y")]))
    gate.set()

    chunks = await here.office.done(request)

    assert blocks == [1]
    assert {"n": 8.0} in [chunk.data for chunk in chunks]
    await here.emptied()


@pytest.mark.parametrize(
    ("route", "outputs", "expected"),
    [(["a", "a"], [(1, "y")], True), (["a", "b"], [(1, "y")], False), (["a", "a"], [(0, "y"), (1, "y")], False)],
    ids=["here", "elsewhere", "the client's too"],
)
async def test_a_job_knows_whether_an_output_leaves_the_process(
    here: Place, route: list[str], outputs: list[tuple[int, str]], expected: bool
):
    locality = []

    async def put_local(job: Job) -> None:
        locality.append((job.is_local("y"), job.is_local("nothing")))
        await put_number(job)

    for id in dict.fromkeys(route):
        await here.executor(id, {"make": put_local, "add": put_sum})
    request = here.office.send(
        make_invocation([make_call("make", x=2), make_call("add", items=[make_ref(0, "y")])], route, outputs)
    )

    await here.office.done(request)

    assert locality == [(expected, False)]
