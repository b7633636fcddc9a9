"""Tensors that grow by rows in one block while others read them."""

import asyncio

import numpy as np
import pytest

from omnibus.bus.messages import Chunk, NodeFailed
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import Place, make_call, make_invocation


async def grow_rows(job: Job) -> None:
    rows = await job.open_rows("rows", 6, 2, "float32")
    for n in range(3):
        rows.write(np.full((2, 2), n, np.float32), {"n": n})
        await asyncio.sleep(0)
    job.close("rows", {"count": 6})


async def collect_rows(job: Job) -> None:
    items = []
    async for item in job.stream("rows"):
        shape = None if item.array is None else list(item.array.shape)
        total = None if item.array is None else float(item.array.sum())
        items.append([item.data, shape, total])
    await job.put("y", {"found": items})


GROWN = [[{"n": 0}, [2, 2], 0.0], [{"n": 1}, [2, 2], 4.0], [{"n": 2}, [2, 2], 8.0], [{"count": 6}, None, None]]


@pytest.mark.parametrize(("route", "blocks"), [(["a", "b"], 1), (["a", "a"], 0)], ids=["apart", "together"])
async def test_readers_get_each_row_range_of_one_block(here: Place, route: list[str], blocks: int):
    for id in dict.fromkeys(route):
        await here.executor(id, {"grow": grow_rows, "collect": collect_rows})
    request = here.office.send(
        make_invocation([make_call("grow"), make_call("collect", rows=make_ref(0, "rows"))], route, [(1, "y")])
    )

    [chunk] = await here.office.done(request)

    assert chunk.data == {"found": GROWN}
    assert here.granted == blocks
    await here.emptied()


async def test_several_readers_share_the_block(here: Place):
    for id in ("a", "b", "c"):
        await here.executor(id, {"grow": grow_rows, "collect": collect_rows})
    calls = [make_call("grow"), *(make_call("collect", rows=make_ref(0, "rows")) for _ in range(3))]
    request = here.office.send(make_invocation(calls, ["a", "a", "b", "c"], [(1, "y"), (2, "y"), (3, "y")]))

    chunks = await here.office.done(request)

    assert [chunk.data["found"] for chunk in chunks] == [GROWN] * 3
    assert here.granted == 1
    await here.emptied()


async def test_every_chunk_names_the_same_block_and_its_own_rows(here: Place):
    await here.executor("a", {"grow": grow_rows})
    request = here.office.send(make_invocation([make_call("grow")], ["a"], [(0, "rows")]))

    chunks = [chunk for chunk in await here.office.done(request) if chunk.handle is not None]

    assert [chunk.rows for chunk in chunks] == [(0, 2), (2, 4), (4, 6)]
    assert len({chunk.handle for chunk in chunks}) == 1
    assert here.office.read(chunks[0]) == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    await here.emptied()


@pytest.mark.parametrize(
    "rows", [np.ones((4, 2)), np.ones((1, 3)), np.ones(2), np.ones((1, 2, 1))], ids=["full", "wide", "flat", "deep"]
)
async def test_rows_that_do_not_fit_are_refused(here: Place, rows: np.ndarray):
    refusal = asyncio.Event()

    async def write_misfit(job: Job) -> None:
        writer = await job.open_rows("rows", 4, 2, "float32")
        writer.write(np.ones((1, 2), np.float32))
        with pytest.raises(ValueError, match=r"do not fit a block of \(4, 2\)"):
            writer.write(rows)
        refusal.set()

    await here.executor("a", {"write": write_misfit})
    request = here.office.send(make_invocation([make_call("write")], ["a"], [(0, "rows")]))

    chunks = await here.office.done(request)

    assert refusal.is_set()
    assert [chunk.rows for chunk in chunks] == [(0, 1), None]
    here.office.tensors.end_invocation(request.id)
    await here.emptied()


async def test_a_block_that_was_not_finished_is_given_back(here: Place):
    async def break_off(job: Job) -> None:
        writer = await job.open_rows("rows", 4, 2, "float32")
        writer.write(np.ones((1, 2), np.float32))
        raise RuntimeError

    await here.executor("a", {"break_off": break_off})
    request = here.office.send(make_invocation([make_call("break_off")], ["a"], [(0, "rows")]))

    await here.office.until(NodeFailed, request)

    assert here.office.of(Chunk, request)[0].rows == (0, 1)
    await here.emptied()


async def test_a_block_without_rows_is_given_back(here: Place):
    async def grow_nothing(job: Job) -> None:
        await job.open_rows("rows", 6, 2, "float32")
        job.close("rows", {"count": 0})

    for id in ("a", "b"):
        await here.executor(id, {"grow": grow_nothing, "collect": collect_rows})
    request = here.office.send(
        make_invocation([make_call("grow"), make_call("collect", rows=make_ref(0, "rows"))], ["a", "b"], [(1, "y")])
    )

    [chunk] = await here.office.done(request)

    assert chunk.data == {"found": [[{"count": 0}, None, None]]}
    assert here.granted == 1
    await here.emptied()
