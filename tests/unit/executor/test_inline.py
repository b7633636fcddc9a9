"""Small tensors travel within their chunks, but only to other nodes."""

import asyncio

import numpy as np
import pytest

from omnibus.errors import ProtocolError
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from omnibus.tensors.handle import InlineTensor, pack_tensor, unpack_tensor
from tests.unit.executor.arithmetic import INLINE, Place, Work, make_call, make_invocation, put_number, put_sum
from tests.unit.executor.test_rows import GROWN, collect_rows, grow_rows
from tests.unit.sidecar.node import NODE

FAR = "another-node"
NUMBERS = INLINE // 4  # of float32, that just fit


def make_sized(count: int) -> Work:
    async def put_array(job: Job) -> None:
        await job.put("y", {}, np.arange(count, dtype=np.float32))

    return put_array


async def test_a_small_tensor_for_another_node_takes_no_memory_of_the_arena(here: Place):
    for id in ("a", "b"):
        await here.executor(id, {"number": put_number, "add": put_sum})
    request = here.office.send(
        make_invocation(
            [make_call("number", x=2), make_call("add", items=[make_ref(0, "y")])],
            ["a", "b"], [(1, "y")], places=(FAR, FAR), home=FAR,
        )
    )  # fmt: skip

    [chunk] = await here.office.done(request)

    assert chunk.handle is None
    assert unpack_tensor(chunk.inline).tolist() == [2.0] * 4
    assert here.granted == 0
    await here.emptied()


@pytest.mark.parametrize(("count", "inline"), [(NUMBERS, True), (NUMBERS + 1, False)])
async def test_only_tensors_up_to_the_limit_travel_within_their_chunks(here: Place, count: int, inline: bool):
    await here.executor("a", {"make": make_sized(count)})
    request = here.office.send(make_invocation([make_call("make")], ["a"], [(0, "y")], places=(NODE,), home=FAR))

    [chunk] = await here.office.done(request)

    assert (chunk.inline is not None, chunk.handle is not None) == (inline, not inline)
    assert here.granted == (not inline)


@pytest.mark.parametrize("places", [(), (NODE, NODE)], ids=["unknown", "here"])
async def test_readers_on_the_same_node_use_the_arena(here: Place, places: tuple[str, ...]):
    for id in ("a", "b"):
        await here.executor(id, {"number": put_number, "add": put_sum})
    request = here.office.send(
        make_invocation(
            [make_call("number", x=2), make_call("add", items=[make_ref(0, "y")])],
            ["a", "b"], [(1, "y")], places=places, home=NODE if places else "",
        )
    )  # fmt: skip

    [chunk] = await here.office.done(request)

    assert here.office.read(chunk) == [2.0] * 4
    assert here.granted == 2
    await here.emptied()


async def test_near_and_far_readers_of_one_output_each_get_it_their_own_way(here: Place):
    for id in ("a", "b", "c"):
        await here.executor(id, {"number": put_number, "add": put_sum})
    request = here.office.send(
        make_invocation(
            [make_call("number", x=2), *(make_call("add", items=[make_ref(0, "y")], more=more) for more in (1, 2))],
            ["a", "b", "c"], [(1, "y"), (2, "y")], places=(NODE, NODE, FAR), home=NODE,
        )
    )  # fmt: skip

    chunks = await here.office.done(request)

    assert sorted(chunk.data["n"] for chunk in chunks) == [3.0, 4.0]
    for chunk in chunks:
        here.office.read(chunk)
    assert here.granted == 3  # one for the near reader, and the two results
    await here.emptied()


async def test_rows_of_a_growing_tensor_travel_one_by_one(here: Place):
    for id in ("a", "b"):
        await here.executor(id, {"grow": grow_rows, "collect": collect_rows})
    request = here.office.send(
        make_invocation(
            [make_call("grow"), make_call("collect", rows=make_ref(0, "rows"))],
            ["a", "b"], [(1, "y"), (0, "rows")], places=(NODE, FAR), home=FAR,
        )
    )  # fmt: skip

    chunks = await here.office.done(request)

    assert [chunk.data for chunk in chunks if chunk.node == 1] == [{"found": GROWN}]
    rows = [chunk for chunk in chunks if chunk.node == 0 and not chunk.last]
    assert [unpack_tensor(chunk.inline).tolist() for chunk in rows] == [[[n, n]] * 2 for n in range(3)]
    assert [(chunk.handle, chunk.rows) for chunk in rows] == [(None, None)] * 3
    here.office.tensors.end_invocation(request.id)
    await here.emptied()


async def test_rows_have_the_dtype_of_their_block(here: Place):
    async def write_rows(job: Job) -> None:
        writer = await job.open_rows("rows", 2, 2, "float16")
        writer.write(np.full((2, 2), 0.1, np.float32))
        await asyncio.sleep(0)

    await here.executor("a", {"write": write_rows})
    request = here.office.send(make_invocation([make_call("write")], ["a"], [(0, "rows")], places=(NODE,), home=FAR))

    first = (await here.office.done(request))[0]

    assert first.inline is not None
    assert first.inline.dtype == "float16"


@pytest.mark.parametrize(
    "tensor",
    [
        InlineTensor("float32", (2,), b"1234"),
        InlineTensor("float32", (-1,), b""),
        InlineTensor("object", (1,), b"12345678"),
    ],
    ids=["short", "negative", "unknown dtype"],
)
async def test_what_does_not_fit_is_refused(tensor: InlineTensor):
    with pytest.raises(ProtocolError, match="inline tensor"):
        unpack_tensor(tensor)


def test_a_tensor_comes_back_as_it_was():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)

    assert np.array_equal(unpack_tensor(pack_tensor(array)), array)
    assert unpack_tensor(pack_tensor(array.T)).tolist() == array.T.tolist()
