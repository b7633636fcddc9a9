"""Executors on machines that joined with a file: their answers, and what happens when parts end."""

import asyncio
import json
import os
import signal

import pytest

from omnibus.cluster.agents import AgentExecutor, AgentStatus
from tests.e2e.agents.cluster import BACK_SECONDS, AgentCluster, count_states, error_of, text_of
from tests.e2e.agents.conftest import EXECUTORS
from tests.e2e.system import VL

pytestmark = pytest.mark.e2e

#: Codes of errors that requests may end with when their executor or node is lost.
TYPED = {"stage_unavailable", "stage_failed", "node_unreachable", "deadline_exceeded", "stale_handle", "overloaded"}


def running(live: dict[str, AgentStatus]) -> dict[str, str]:
    """Executors by id, and their machines."""
    return {each.id: node for node, agent in live.items() for each in agent.executors}


def executors_of(live: dict[str, AgentStatus], node: str) -> tuple[AgentExecutor, ...]:
    return live[node].executors if node in live else ()


async def test_executors_on_agents_give_the_answer_of_the_whole_model(
    cluster: AgentCluster, reference_text: str
) -> None:
    live = await cluster.whole(EXECUTORS)

    async with cluster.system.http() as http:
        answer = await cluster.ask(http)

    assert text_of(answer) == reference_text
    assert set(running(live).values()) <= cluster.names
    assert len(running(live)) == EXECUTORS
    assert not live[cluster.name(1)].executors
    assert live[cluster.name(1)].slots == 0


async def test_a_killed_executor_is_restarted_by_its_agent_which_reports_the_cause(
    cluster: AgentCluster, reference_text: str
) -> None:
    live = await cluster.whole(EXECUTORS)
    victim, node = next((id, node) for id, node in running(live).items() if "-L-" in id)
    pids = await cluster.system.whole(only=[victim])

    async with cluster.load() as answers:
        os.kill(pids[victim], signal.SIGKILL)
        live = await cluster.wait_for_agents(
            lambda live: any(
                each.id == victim and each.ends and each.state == "ready" for each in executors_of(live, node)
            )
        )

    assert next(each.cause for each in live[node].executors if each.id == victim).startswith("signal 9")
    assert {error_of(answer) for answer in answers} - {None} <= TYPED
    assert {text_of(answer) for answer in answers if error_of(answer) is None} == {reference_text}
    assert set(running(await cluster.whole(EXECUTORS))) == set(running(live)), "nothing moves"


async def test_executors_of_a_lost_machine_start_on_the_others(cluster: AgentCluster, reference_text: str) -> None:
    live = await cluster.whole(EXECUTORS)
    lost = next(iter(running(live).values()))

    async with cluster.load() as answers:
        cluster.kill_agent(lost)
        await cluster.wait_for_agents(
            lambda live: lost not in live and count_states(live) == {"ready": EXECUTORS}, BACK_SECONDS
        )

    assert {error_of(answer) for answer in answers} - {None} <= TYPED
    assert {text_of(answer) for answer in answers if error_of(answer) is None} == {reference_text}
    async with cluster.system.http() as http:
        assert text_of(await cluster.ask(http)) == reference_text


async def test_a_machine_that_was_only_silent_gives_up_what_moved(cluster: AgentCluster) -> None:
    live = await cluster.whole(EXECUTORS)
    silent = next(iter(running(live).values()))
    agent = cluster.agent(silent)

    agent.suspend()
    try:
        await cluster.wait_for_agents(
            lambda live: silent not in live and count_states(live) == {"ready": EXECUTORS}, BACK_SECONDS
        )
    finally:
        agent.resume()

    await cluster.settle(cluster.names, EXECUTORS)


async def test_executors_go_on_without_planner_and_bus(cluster: AgentCluster, reference_text: str) -> None:
    before = running(await cluster.whole(EXECUTORS))
    pids = await cluster.system.whole(only=list(before))
    planner = next(one for one in cluster.system.processes() if "omnibus_planner" in " ".join(one.cmdline()))

    async with cluster.load() as answers:
        planner.kill()
        await asyncio.sleep(1)
    assert [error_of(answer) for answer in answers if error_of(answer)] == []

    cluster.system.server("nats-server").kill()
    await cluster.system.becomes_ready()
    assert await cluster.system.whole(only=list(before)) == pids
    async with cluster.system.http() as http:
        assert text_of(await cluster.ask(http)) == reference_text
    assert running(await cluster.whole(EXECUTORS)) == before


async def test_a_drain_moves_executors_and_fails_no_request(cluster: AgentCluster, reference_text: str) -> None:
    live = await cluster.whole(EXECUTORS)
    drained = next(iter(running(live).values()))

    async with cluster.load(clients=3) as answers:
        command = await asyncio.to_thread(cluster.run, "node", "drain", drained)
        assert command.returncode == 0, command.stdout
        count = len(answers)
        await asyncio.sleep(1)

    assert count > 0
    assert {error_of(answer) for answer in answers} == {None}
    assert {text_of(answer) for answer in answers} == {reference_text}
    live = await cluster.whole(EXECUTORS)
    assert (live[drained].state, live[drained].executors) == ("draining", ())
    cluster.stop_agent(drained)  # restarted, it serves again
    await cluster.settle(cluster.names, EXECUTORS)


async def test_machines_are_listed_with_their_executors(cluster: AgentCluster) -> None:
    listed = json.loads(cluster.run("nodes", "--json").stdout)
    names = cluster.run("nodes", "--quiet").stdout.split()
    table = cluster.run("nodes").stdout

    assert {node["node"] for node in listed["nodes"]} >= {cluster.name(1), *cluster.names}
    assert set(names) >= {cluster.name(1), *cluster.names}
    assert VL in table
    assert "127.0.0.1" in table


async def test_without_room_the_plan_says_so_until_a_machine_joins(cluster: AgentCluster) -> None:
    two = sorted(cluster.names)[:2]
    for name in two:
        cluster.stop_agent(name)  # three slots are left for four executors
    await cluster.wait_for_agents(lambda live: not live.keys() & set(two) and count_states(live) == {"ready": 3})

    async with asyncio.timeout(BACK_SECONDS):
        while "no room for 1 of" not in (text := (await asyncio.to_thread(cluster.run, "plan", "show")).stdout):
            await asyncio.sleep(0.2)
    assert "omnibus node" in text

    await cluster.settle(cluster.names, EXECUTORS)
    async with asyncio.timeout(BACK_SECONDS):
        while "no room" in (await asyncio.to_thread(cluster.run, "plan", "show")).stdout:
            await asyncio.sleep(0.2)
