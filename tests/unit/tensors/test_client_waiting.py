"""Waiting for memory: in order, bounded, and returned when the caller is gone."""

import asyncio

import pytest

from omnibus.errors import ArenaFull, DeadlineExceeded
from tests.unit.sidecar.node import connect_client, make_deadline, run_sidecar, wait_until
from tests.unit.tensors.pairs import HALF


async def test_a_full_arena_lets_wait_and_then_says_so(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=make_deadline())

    with pytest.raises(ArenaFull, match="bytes are free"):
        await pair.consumer.allocate(HALF, invocation="j", deadline=make_deadline(), wait=0.05)
    with pytest.raises(ArenaFull):
        await pair.consumer.allocate(HALF, invocation="j", deadline=make_deadline(), wait=0)

    assert (await pair.wait_settled())["refused_total"] == 2


async def test_those_who_wait_are_served_in_order_and_nobody_overtakes(pair):
    first = await pair.producer.allocate(HALF, invocation="i", deadline=make_deadline())
    order: list[str] = []

    async def wait_for_block(name: str, nbytes: int) -> None:
        block = await pair.consumer.allocate(nbytes, invocation=name, deadline=make_deadline(), wait=30)
        order.append(name)
        await asyncio.sleep(0)
        block.discard()

    waiting = [
        asyncio.create_task(wait_for_block(*each)) for each in [("large", HALF), ("small", 10), ("larger", HALF + 1)]
    ]
    await wait_until(lambda: pair.sidecar.snapshot()["waiting"] == 3)
    assert order == []
    first.discard()
    await asyncio.gather(*waiting)

    assert order == ["large", "small", "larger"]
    assert (await pair.wait_settled())["blocks"] == 0


async def test_memory_of_a_client_that_leaves_goes_to_those_who_wait(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=make_deadline())
    waiting = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=make_deadline(), wait=15))
    await wait_until(lambda: pair.sidecar.snapshot()["waiting"] == 1)

    await pair.producer.close()

    assert (await waiting).array.nbytes == HALF


async def test_a_waiter_that_gives_up_lets_the_next_one_pass(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=make_deadline())

    waiter = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=make_deadline(), wait=0.05))
    small = asyncio.create_task(pair.consumer.allocate(10, invocation="j", deadline=make_deadline(), wait=30))

    assert (await small).array.nbytes == 10
    with pytest.raises(ArenaFull):
        await waiter


async def test_a_cancelled_waiter_leaves_the_queue(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=make_deadline())
    waiting = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=make_deadline(), wait=30))
    await wait_until(lambda: pair.sidecar.snapshot()["waiting"] == 1)

    waiting.cancel()

    await wait_until(lambda: pair.sidecar.snapshot()["waiting"] == 0)
    pair.producer.end_invocation("i")
    assert (await pair.wait_settled())["blocks"] == 0


@pytest.mark.parametrize("turns", range(6))
async def test_memory_granted_to_a_cancelled_caller_is_given_back(pair, turns):
    asking = asyncio.create_task(pair.consumer.allocate(100, invocation="i", deadline=make_deadline()))
    for _ in range(turns):
        await asyncio.sleep(0)

    is_granted = asking.done()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    await wait_until(lambda: pair.sidecar.snapshot()["blocks"] == is_granted)
    assert (await pair.wait_settled())["blocks"] == is_granted


async def test_the_end_of_an_invocation_ends_its_waiting(pair):
    await pair.producer.allocate(HALF, invocation="i", deadline=make_deadline())
    waiting = asyncio.create_task(pair.consumer.allocate(HALF, invocation="j", deadline=make_deadline(), wait=30))
    await wait_until(lambda: pair.sidecar.snapshot()["waiting"] == 1)

    pair.producer.end_invocation("j")

    with pytest.raises(DeadlineExceeded, match="ended"):
        await waiting


async def test_the_queue_is_bounded(tmp_path):
    async with run_sidecar(tmp_path, max_waiting=1) as sidecar, await connect_client(tmp_path) as client:
        await client.allocate(HALF, invocation="i", deadline=make_deadline())
        waiting = asyncio.create_task(client.allocate(HALF, invocation="i", deadline=make_deadline(), wait=30))
        await wait_until(lambda: sidecar.snapshot()["waiting"] == 1)

        with pytest.raises(ArenaFull):
            await client.allocate(10, invocation="i", deadline=make_deadline(), wait=30)
        waiting.cancel()
