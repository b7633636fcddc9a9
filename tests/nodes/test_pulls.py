"""Pulls between nodes that share only cables.

They deliver the same bytes once each and leave nothing, whether memory is full or cables are slow.
"""

import asyncio
import re
from typing import Any

import pytest

from tests.nodes.cluster import MIB, NodeMachine, knows_others, start_nodes, wait_until

pytestmark = pytest.mark.netns

#: What one tensor of so many bytes may take on the cable, packets' headers included.
_OVERHEAD = 1.1
#: Small tensors, one after the other, that go past a large one.
SMALL = 5


async def put_tensor(machine: NodeMachine, nbytes: int, value: int = 7, invocation: str = "i", **more: Any) -> Any:
    return await machine.agent.get("put", "handle", nbytes=nbytes, value=value, invocation=invocation, **more)


async def end_invocation(*machines: NodeMachine, invocation: str = "i") -> None:
    """End an invocation as its gateway does."""
    for machine in machines:
        await machine.agent.send_command("end", invocation=invocation)


async def nothing_is_left(*machines: NodeMachine) -> None:
    """All ledgers become empty, long before any deadline."""
    for machine in machines:
        await wait_until(machine.is_empty)


async def wait_moving(reader: NodeMachine) -> None:
    """Wait until ``reader`` receives bytes of a large tensor."""
    before = reader.node.received_bytes()
    await wait_until(lambda: reader.node.received_bytes() > before + MIB)


async def test_nodes_share_no_memory_and_no_process_ids():
    async with start_nodes("a", "b") as (a, b):
        listings = [await machine.agent.send_command("shared_files") for machine in (a, b)]
        handle = await put_tensor(a, 1000)

        assert [each["files"] for each in listings] == [["omnibus-a"], ["omnibus-b"]]
        assert all(each["pid"] < 100 for each in listings)
        assert (await b.agent.send_command("view", handle=handle))["error"] == "unavailable"
        await end_invocation(a)
        await nothing_is_left(a, b)


@pytest.mark.parametrize("readers", [2, 8])
async def test_readers_of_one_node_cause_one_pull_and_one_read_each(readers):
    async with start_nodes("a", "b") as (a, b):
        agents = [b.agent, *[await b.start_agent(f"reader-{number}") for number in range(1, readers)]]
        handle = await put_tensor(a, 8 * MIB, readers=readers)
        before = b.node.received_bytes()

        answers = await asyncio.gather(*(agent.send_command("open", handle=handle, invocation="i") for agent in agents))

        assert answers == [{"counts": {"7": 8 * MIB}}] * readers
        assert b.node.received_bytes() - before < _OVERHEAD * 8 * MIB
        for agent in agents:
            await agent.send_command("release", handle=handle)
        await wait_until(a.is_empty)  # without an end: each read completes alone
        await end_invocation(b)
        await nothing_is_left(b)


async def test_a_deadline_inside_a_pull_ends_it_on_both_nodes():
    async with start_nodes("a", "b") as (a, b):
        b.node.limit_rate("20mbit")
        handle = await put_tensor(a, 16 * MIB)

        answer = await b.agent.send_command("open", handle=handle, invocation="i", seconds=1.0)

        assert answer["error"] == "deadline_exceeded"
        assert (await a.agent.get("ledger", "ledger"))[0]["readers"] == 1
        await end_invocation(a, b)
        await nothing_is_left(a, b)


async def test_an_invocation_that_ends_inside_a_pull_frees_both_nodes():
    async with start_nodes("a", "b") as (a, b):
        b.node.limit_rate("20mbit")
        handle = await put_tensor(a, 16 * MIB)
        opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
        await wait_moving(b)

        await end_invocation(a, b)

        assert (await opening)["error"] == "deadline_exceeded"
        await nothing_is_left(a, b)
        b.node.lift_rate()
        await knows_others(b, [a, b])


async def test_small_tensors_and_control_go_on_beside_a_large_one_on_a_slow_cable():
    async with start_nodes("a", "b") as (a, b):
        b.node.limit_rate("10mbit")  # the large one takes half a minute, unless it is given more
        large = await put_tensor(a, 32 * MIB)
        opening = asyncio.create_task(b.agent.send_command("open", handle=large, invocation="i"))
        await wait_moving(b)

        for _ in range(SMALL):
            handle = await put_tensor(a, 4096, value=1)
            assert await b.agent.send_command("open", handle=handle, invocation="i") == {"counts": {"1": 4096}}
            for machine in (a, b):
                assert (await machine.agent.stats())["blocks"]

        assert not opening.done()
        b.node.lift_rate()
        assert await opening == {"counts": {"7": 32 * MIB}}
        await end_invocation(a, b)
        await nothing_is_left(a, b)


async def test_a_full_arena_of_the_reader_is_refused_by_name_and_keeps_the_tensor():
    async with start_nodes("a", "b", OMNIBUS_SIDECAR_ARENA_MIB="16") as (a, b):
        await put_tensor(b, 15 * MIB, invocation="local")
        handle = await put_tensor(a, 4 * MIB)

        assert (await b.agent.send_command("open", handle=handle, invocation="i"))["error"] == "arena_full"

        await end_invocation(b, invocation="local")
        assert await b.agent.send_command("open", handle=handle, invocation="i") == {"counts": {"7": 4 * MIB}}
        await end_invocation(a, b)
        await nothing_is_left(a, b)


async def test_a_full_arena_of_the_producer_has_room_again_once_its_tensor_was_pulled():
    async with start_nodes("a", "b", OMNIBUS_SIDECAR_ARENA_MIB="16") as (a, b):
        handle = await put_tensor(a, 12 * MIB)
        assert (await a.agent.send_command("put", nbytes=12 * MIB, value=8, invocation="i", wait=0.1))[
            "error"
        ] == "arena_full"
        waiting = asyncio.create_task(put_tensor(a, 12 * MIB, value=8, wait=20.0))
        await wait_until(lambda: has_waiters(a))

        assert await b.agent.send_command("open", handle=handle, invocation="i") == {"counts": {"7": 12 * MIB}}

        assert await waiting != handle
        await end_invocation(a, b)
        await nothing_is_left(a, b)


async def test_arenas_that_are_full_crosswise_do_not_wait_for_each_other():
    async with start_nodes("a", "b", OMNIBUS_SIDECAR_ARENA_MIB="16") as (a, b):
        handles = [await put_tensor(machine, 10 * MIB, value) for value, machine in ((1, a), (2, b))]

        answers = await asyncio.gather(
            b.agent.send_command("open", handle=handles[0], invocation="i"),
            a.agent.send_command("open", handle=handles[1], invocation="i"),
        )

        assert [answer["error"] for answer in answers] == ["arena_full"] * 2
        await end_invocation(a, b)
        await nothing_is_left(a, b)
        await knows_others(a, [a, b])


async def test_a_clock_that_is_three_seconds_ahead_shortens_deadlines_by_three_seconds_and_no_more():
    async with start_nodes("a", "b", ahead={"b": 3.0}) as (a, b):
        handle = await put_tensor(a, 8 * MIB, readers=2)

        assert await b.agent.send_command("open", handle=handle, invocation="i") == {"counts": {"7": 8 * MIB}}

        # A status that takes long to come makes the other clock seem to be late.
        assert -4.0 < seconds_off(b, "a") <= -2.9
        assert 2.0 < seconds_off(a, "b") <= 3.1
        back = await put_tensor(b, 8 * MIB, value=9)
        assert await a.agent.send_command("open", handle=back, invocation="i") == {"counts": {"9": 8 * MIB}}
        await end_invocation(a, b)
        await nothing_is_left(a, b)


def seconds_off(machine: NodeMachine, node: str) -> float:
    """First clock offset of ``node`` that the sidecar of ``machine`` reports."""
    match = re.search(rf"the clock of node {node} is off by (-?[0-9.]+) s", machine.log.read_text())
    assert match is not None
    return float(match[1])


async def has_waiters(machine: NodeMachine) -> bool:
    return bool((await machine.agent.stats())["waiting"])
