"""Retained tensors of another node, for restarted stages."""

import numpy as np

from tests.unit.sidecar.node import make_deadline, wait_until
from tests.unit.sidecar.peers.pair import two_nodes


def read_retained(node) -> int:
    return int(node.counters["retained_bytes"])


async def test_a_retained_tensor_can_be_read_again_after_its_last_reader(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        array = np.arange(1000, dtype=np.float32)
        handle = await producer.put(array, invocation="i", deadline=make_deadline(), readers=2)
        keeper.retain(handle)
        async with await b.client("first") as first:
            await first.open_tensor(handle, invocation="i", deadline=make_deadline())
            first.release(handle)
        await wait_until(lambda: read_retained(a) == array.nbytes)  # retained without a reader

        async with await b.client("second") as second:
            got = await second.open_tensor(handle, invocation="i", deadline=make_deadline())
            assert np.array_equal(got, array)
            second.release(handle)

        producer.end_invocation("i")
        await wait_until(lambda: a.blocks == 0)


async def test_a_dropped_tensor_is_freed_with_its_last_reader(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline(), readers=1)
        keeper.retain(handle)
        await wait_until(lambda: read_retained(a) == 1000)

        keeper.drop(handle)

        await wait_until(lambda: a.blocks == 0)


async def test_memory_that_is_only_retained_for_another_node_makes_room(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        size = int(a.counters["arena_bytes"]) * 2 // 3
        old = await producer.put(np.ones(size, np.uint8), invocation="i", deadline=make_deadline())
        keeper.retain(old)
        await wait_until(lambda: read_retained(a) == size)

        await producer.put(np.zeros(size, np.uint8), invocation="j", deadline=make_deadline())

        assert a.counters["freed_total"]["reclaimed"] == 1
        assert a.blocks == 1


async def test_without_its_key_nothing_is_retained_or_dropped(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline(), readers=1)
        forged_handle = type(handle)(
            **{field: getattr(handle, field) for field in handle.__struct_fields__} | {"key": 1}
        )
        keeper.retain(forged_handle)
        keeper.drop(forged_handle)
        await keeper.open_tensor(handle, invocation="i", deadline=make_deadline())  # after them on the same connection

        await wait_until(lambda: a.blocks == 0)
        assert read_retained(a) == 0
        keeper.release(handle)
