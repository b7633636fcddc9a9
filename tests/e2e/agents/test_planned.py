"""A planned model: the plan is for the machines that are up, and names them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from omnibus import profile as profiles
from omnibus.plan import Plan
from tests.e2e.agents.cluster import BACK_SECONDS, START_SECONDS, AgentCluster, count_states, start_cluster
from tests.e2e.planned.cell import FAMILY, MODEL, SIMULATED, make_profile
from tests.e2e.planned.conftest import SETTINGS

pytestmark = pytest.mark.e2e

SLOTS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[AgentCluster]:
    simulation_file, profile_file = tmp_path / "simulated.json", tmp_path / "profile.json"
    simulation_file.write_bytes(msgspec.json.encode(SIMULATED))
    profile_file.write_bytes(profiles.encode_profile(make_profile()))
    model = {"family": FAMILY, "checkpoint": str(simulation_file), "planned": {"profile": str(profile_file)}}
    quarantine = {"OMNIBUS_GATEWAY_QUARANTINE": "0"}  # executors are killed from outside here
    settings = {**SETTINGS, **quarantine, "OMNIBUS_SIDECAR_PORT": "0", "OMNIBUS_SIDECAR_ARENA_MIB": "64"}
    with start_cluster(tmp_path, {MODEL: model}, settings) as cluster:
        yield cluster


async def current_plan(cluster: AgentCluster) -> Plan:
    async with cluster.system.store() as store:
        plan = await store.plan()
    assert plan is not None
    return plan


def planned_nodes(plan: Plan) -> set[str]:
    return {node for places in (plan.placement or {}).values() for node in places}


async def test_a_plan_uses_the_machines_that_are_up(cluster: AgentCluster) -> None:
    two = {cluster.name(2), cluster.name(3)}
    for name in two:
        cluster.start_agent(name)
    live = await cluster.wait_for_agents(lambda live: count_states(live) == {"ready": 2 * SLOTS}, START_SECONDS)
    plan = await current_plan(cluster)
    assert planned_nodes(plan) == two
    for option, places in (plan.placement or {}).items():
        for node, count in places.items():
            assert sum("/".join(each.kind[:2]) == option for each in live[node].executors) == count

    lost = two.pop()
    cluster.kill_agent(lost)

    async with asyncio.timeout(BACK_SECONDS):
        while planned_nodes(await current_plan(cluster)) != two:
            await asyncio.sleep(0.1)
    await cluster.wait_for_agents(lambda live: lost not in live and count_states(live) == {"ready": SLOTS})
    await cluster.system.becomes_ready()
    async with cluster.system.http() as http:
        answer = await http.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
        )
    assert answer.status_code == 200, answer.text
