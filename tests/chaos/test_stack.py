"""The fault injector distinguishes the processes of a system by role."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.stack import Stack
from tests.e2e.system import System, start_system


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    with start_system(tmp_path, {}, "--gateways", "2") as system:
        yield system


async def test_faults_meet_what_plays_a_role_and_not_what_stands_for_it(system: System):
    stack = Stack(system)
    roles = ("gateway", "planner", "sidecar", "fork-server", "nats", "valkey")
    victims = {role: await stack.find_victims(role) for role in roles}
    commands = {name: process.cmdline() for role in roles for name, process in victims[role].items()}

    assert {role: len(names) for role, names in victims.items()} == {
        "gateway": 2, "planner": 1, "sidecar": 1, "fork-server": 1, "nats": 1, "valkey": 1
    }  # fmt: skip
    for role in ("gateway", "planner", "sidecar"):
        assert all(f"omnibus_{role}" in process.cmdline() for process in victims[role].values())
    assert "omnibus.up.fork_server" in commands["services"]
    [bearer] = victims["fork-server"].values()
    assert {one.parent() for role in ("gateway", "planner", "sidecar") for one in victims[role].values()} == {bearer}
    assert psutil.Process(system.state.pids["gateway"]) == victims["gateway"]["gateway-0"]
