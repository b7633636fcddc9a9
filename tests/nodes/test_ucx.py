"""Losses during a pull over UCX, which itself detects few of them.

The memory is reusable afterwards.
"""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager

import pytest

from tests.nodes.cluster import MIB, NodeMachine, has_pulled, start_nodes, wait_until
from tests.nodes.namespaces import DATA
from tests.nodes.test_failures import come_back, count_descriptors, lose
from tests.nodes.test_pulls import end_invocation, nothing_is_left, put_tensor, wait_moving

pytestmark = [pytest.mark.netns, pytest.mark.ucx]

_SLOW = "25mbit"
_LARGE = 32 * MIB


def ucx_nodes(**env: str) -> AbstractAsyncContextManager[list[NodeMachine]]:
    settings = {"OMNIBUS_SIDECAR_TRANSPORT": "ucx", "UCX_TLS": "tcp", "UCX_NET_DEVICES": DATA}
    return start_nodes("a", "b", **settings, **env)


async def over_ucx(machine: NodeMachine) -> int:
    return int((await machine.agent.stats())["ucx_bytes_by_node"].get("a", 0))


@pytest.mark.parametrize("how", ["killed", "frozen", "cut"])
async def test_a_source_that_is_lost_in_the_middle_is_reported_and_works_again_when_it_is_back(how):
    async with ucx_nodes() as (a, b):
        assert await has_pulled(b, a, MIB)
        assert await over_ucx(b) == MIB
        handle = await put_tensor(a, _LARGE)
        b.node.limit_rate(_SLOW)
        opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
        await wait_moving(b)

        await lose(a, how)
        answer = await opening

        assert answer["error"] == "node_unreachable", answer
        await end_invocation(b)
        await nothing_is_left(b)
        b.node.lift_rate()
        await come_back(a, how)
        await end_invocation(a)
        await wait_until(lambda: has_pulled(b, a, MIB))
        await nothing_is_left(a, b)


async def test_a_reader_that_is_lost_in_the_middle_holds_nothing():
    async with ucx_nodes() as (a, b):
        b.node.limit_rate(_SLOW)
        handle = await put_tensor(a, _LARGE)
        opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
        await wait_moving(b)

        await lose(b, "frozen")
        await end_invocation(a)

        await nothing_is_left(a)
        await come_back(b, "frozen")
        assert "error" in await opening
        await end_invocation(b)
        await nothing_is_left(b)


async def test_a_source_that_wakes_up_writes_nothing_to_memory_that_others_have_now():
    async with ucx_nodes(OMNIBUS_SIDECAR_ARENA_MIB="40", OMNIBUS_SIDECAR_INCOMING="1.0") as (a, b):
        b.node.limit_rate(_SLOW)
        handle = await put_tensor(a, _LARGE)
        opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
        await wait_moving(b)
        a.signal_sidecar(signal.SIGSTOP)
        assert (await opening)["error"] == "node_unreachable"
        await end_invocation(b)
        await nothing_is_left(b)
        other = await put_tensor(b, _LARGE, value=9, invocation="j")  # there is no room for it elsewhere

        b.node.lift_rate()
        a.signal_sidecar(signal.SIGCONT)
        await wait_until(lambda: has_pulled(b, a, MIB))

        assert await b.agent.send_command("view", handle=other) == {"counts": {"9": _LARGE}}
        await end_invocation(a, b)
        await end_invocation(b, invocation="j")
        await nothing_is_left(a, b)


async def test_pulls_that_end_in_the_middle_leave_no_open_files():
    async with ucx_nodes() as (a, b):
        counts = []
        for _ in range(4):
            handle = await put_tensor(a, _LARGE)
            b.node.limit_rate(_SLOW)
            opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
            await wait_moving(b)
            await end_invocation(a, b)
            assert "error" in await opening
            await nothing_is_left(a, b)
            b.node.lift_rate()
            assert await has_pulled(b, a, MIB)  # over a new lane
            counts.append((count_descriptors(a), count_descriptors(b)))

        await wait_until(lambda: (count_descriptors(a), count_descriptors(b)) == counts[0])
        assert await over_ucx(b) == 4 * MIB
