"""Retained tensors of another node, for restarted stages."""

import numpy as np

from tests.unit.sidecar.node import soon, until
from tests.unit.sidecar.peers.pair import two_nodes


def retained(node) -> int:
    return int(node.counters["retained_bytes"])


async def test_a_retained_tensor_can_be_read_again_after_its_last_reader(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        sent = np.arange(1000, dtype=np.float32)
        handle = await producer.put(sent, invocation="i", deadline=soon(), readers=2)
        keeper.retain(handle)
        async with await b.client("first") as first:
            await first.open_tensor(handle, invocation="i", deadline=soon())
            first.release(handle)
        await until(lambda: retained(a) == sent.nbytes)  # retained without a reader

        async with await b.client("second") as second:
            got = await second.open_tensor(handle, invocation="i", deadline=soon())
            assert np.array_equal(got, sent)
            second.release(handle)

        producer.end_invocation("i")
        await until(lambda: a.blocks == 0)


async def test_a_dropped_tensor_is_freed_with_its_last_reader(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=soon(), readers=1)
        keeper.retain(handle)
        await until(lambda: retained(a) == 1000)

        keeper.drop(handle)

        await until(lambda: a.blocks == 0)


async def test_memory_that_is_only_retained_for_another_node_makes_room(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        size = int(a.counters["arena_bytes"]) * 2 // 3
        old = await producer.put(np.ones(size, np.uint8), invocation="i", deadline=soon())
        keeper.retain(old)
        await until(lambda: retained(a) == size)

        await producer.put(np.zeros(size, np.uint8), invocation="j", deadline=soon())

        assert a.counters["freed_total"]["reclaimed"] == 1
        assert a.blocks == 1


async def test_without_its_key_nothing_is_retained_or_dropped(tmp_path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as keeper:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=soon(), readers=1)
        forged = type(handle)(**{field: getattr(handle, field) for field in handle.__struct_fields__} | {"key": 1})
        keeper.retain(forged)
        keeper.drop(forged)
        await keeper.open_tensor(handle, invocation="i", deadline=soon())  # after them on the same connection

        await until(lambda: a.blocks == 0)
        assert retained(a) == 0
        keeper.release(handle)
