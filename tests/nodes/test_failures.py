"""Losing a node causes typed errors in time, and releases leases."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.nodes.cluster import MIB, NodeMachine, has_pulled, knows_others, start_machine, start_nodes, wait_until
from tests.nodes.namespaces import BUS, DATA
from tests.nodes.test_pulls import end_invocation, nothing_is_left, put_tensor, wait_moving

pytestmark = pytest.mark.netns

LOSSES = ("killed", "frozen", "cut", "powered off")
#: Ten seconds for a pull during a loss.
_SLOW = "25mbit"
_LARGE = 32 * MIB


async def lose(machine: NodeMachine, how: str) -> None:
    """Make a node fail; only for a killed process does its kernel notify others."""
    if how == "killed":
        machine.signal_sidecar(signal.SIGKILL)
    elif how == "frozen":
        machine.signal_sidecar(signal.SIGSTOP)
    elif how == "cut":
        machine.node.cut_cable(DATA)
    else:
        machine.node.power_off()


async def come_back(machine: NodeMachine, how: str) -> None:
    """Undo ``lose``; a machine without power restarts empty."""
    if how == "killed":
        await machine.start_sidecar()
        await machine.agent.send_command("wait_ready")
    elif how == "frozen":
        machine.signal_sidecar(signal.SIGCONT)
    elif how == "cut":
        machine.node.heal_cable(DATA)
    else:
        machine.restart_node()
        await start_machine(machine)


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("state", ["moving", "idle"])
async def test_a_lost_source_is_reported_by_name_and_works_again_when_it_is_back(how, state):
    async with start_nodes("a", "b") as (a, b):
        handle = await put_tensor(a, _LARGE)
        if state == "moving":
            b.node.limit_rate(_SLOW)
            opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
            await wait_moving(b)
            await lose(a, how)
        else:
            await lose(a, how)
            opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))

        answer = await opening

        assert answer["error"] == "node_unreachable", answer
        assert "'a'" in answer["message"]
        await end_invocation(b)
        await nothing_is_left(b)
        assert (await b.agent.stats())["unreachable_nodes"] == {"a": 1}
        if state == "moving":
            b.node.lift_rate()
        await come_back(a, how)
        await end_invocation(a)
        await wait_until(lambda: has_pulled(b, a))
        await nothing_is_left(a, b)
        assert (await b.agent.stats())["unreachable_nodes"] == {}


@pytest.mark.parametrize("how", LOSSES)
async def test_a_lost_reader_holds_nothing_and_its_read_is_expected_again(how):
    async with start_nodes("a", "b") as (a, b):
        b.node.limit_rate(_SLOW)
        handle = await put_tensor(a, _LARGE)
        opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
        await wait_moving(b)
        assert (await read_holds(a)) == (1, 1)

        await lose(b, how)

        await wait_until(lambda: has_holds(a, (0, 1)))
        await end_invocation(a)
        await nothing_is_left(a)
        if how != "powered off":  # which comes back with another cable
            b.node.lift_rate()
        await come_back(b, how)
        await knows_others(b, [a, b])
        opening.cancel()
        await end_invocation(b)
        await nothing_is_left(a, b)


@pytest.mark.parametrize(("deaf", "speaker"), [("a", "b"), ("b", "a")])
async def test_a_cable_that_carries_one_direction_only_is_as_good_as_cut(deaf, speaker):
    async with start_nodes("a", "b") as pair:
        a, b = pair
        machines = {machine.name: machine for machine in pair}
        b.node.limit_rate(_SLOW)
        handle = await put_tensor(a, _LARGE)
        opening = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
        await wait_moving(b)

        machines[deaf].node.deafen(machines[speaker].node)

        assert (await opening)["error"] == "node_unreachable"
        await wait_until(lambda: has_holds(a, (0, 1)))
        await end_invocation(a, b)
        await nothing_is_left(a, b)
        machines[deaf].node.hear_again(machines[speaker].node)
        b.node.lift_rate()
        await wait_until(lambda: has_pulled(b, a))


async def test_two_nodes_that_lose_each_other_are_both_there_for_a_third():
    async with start_nodes("a", "b", "c") as (a, b, c):
        a.node.deafen(b.node)
        b.node.deafen(a.node)
        handle = await put_tensor(a, MIB, readers=2)

        assert (await b.agent.send_command("open", handle=handle, invocation="i"))["error"] == "node_unreachable"

        assert await c.agent.send_command("open", handle=handle, invocation="i") == {"counts": {"7": MIB}}
        assert await has_pulled(c, b)
        a.node.hear_again(b.node)
        b.node.hear_again(a.node)
        await wait_until(lambda: has_pulled(b, a))
        assert await b.agent.send_command("open", handle=handle, invocation="i") == {"counts": {"7": MIB}}
        await end_invocation(a, b, c)
        await nothing_is_left(a, b, c)


async def test_nodes_that_the_bus_does_not_reach_go_on_pulling_from_each_other():
    async with start_nodes("a", "b") as (a, b):
        for machine in (a, b):
            machine.node.cut_cable(BUS)

        assert await has_pulled(b, a, 8 * MIB)

        for machine in (a, b):
            machine.node.heal_cable(BUS)
        await nothing_is_left(a, b)


async def test_connections_bear_being_idle_for_longer_than_any_silence():
    async with start_nodes("a", "b", OMNIBUS_SIDECAR_STALL="0.5") as (a, b):
        before = count_descriptors(b)

        await asyncio.sleep(4.0)  # four times as long as a node may be silent

        assert count_descriptors(b) == before
        assert await has_pulled(b, a)
        assert (await b.agent.stats())["pull_failures_total"] == {}


async def test_a_restarted_sidecar_at_the_same_address_never_gives_bytes_of_before():
    async with start_nodes("a", "b") as (a, b):
        handle = await put_tensor(a, MIB)

        await a.restart_sidecar()
        other = await put_tensor(a, MIB, value=9)
        await wait_until(lambda: has_pulled(b, a))

        assert (await b.agent.send_command("open", handle=handle, invocation="i"))["error"] == "stale_handle"
        assert await b.agent.send_command("open", handle=other, invocation="i") == {"counts": {"9": MIB}}
        await end_invocation(a, b)
        await nothing_is_left(a, b)


@pytest.mark.parametrize("restarts", [5, pytest.param(100, marks=pytest.mark.nightly)])
async def test_restarts_of_a_node_leave_nothing_open_in_the_others(restarts):
    async with start_nodes("a", "b") as (a, b):
        counts = []

        for _ in range(restarts + 1):
            await a.restart_sidecar()
            await wait_until(lambda: has_pulled(b, a, MIB))
            counts.append((count_descriptors(b), count_threads(b)))

        # From the second on: before, A had connections to B, too.
        before = counts[1]
        await wait_until(lambda: (count_descriptors(b), count_threads(b)) == before)
        await nothing_is_left(a, b)


def count_descriptors(machine: NodeMachine) -> int:
    return len(os.listdir(f"/proc/{machine.sidecar_pid}/fd"))


def count_threads(machine: NodeMachine) -> int:
    return len(list(Path(f"/proc/{machine.sidecar_pid}/task").iterdir()))


async def read_holds(machine: NodeMachine) -> tuple[int, int]:
    """Holders and expected reads of the only block."""
    (row,) = await machine.agent.get("ledger", "ledger")
    return int(row["held"]), int(row["readers"])


async def has_holds(machine: NodeMachine, target: tuple[int, int]) -> bool:
    return await read_holds(machine) == target
