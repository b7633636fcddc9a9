"""Only machines with the right file join."""

import json
from pathlib import Path

import pytest

from tests.e2e.agents.cluster import AgentCluster

pytestmark = pytest.mark.e2e


def run_forged(cluster: AgentCluster, file: Path, **changes: str) -> tuple[int, str]:
    """Run a node with a changed file; return its exit code and output."""
    file.write_text(json.dumps({**json.loads(cluster.join.read_text()), **changes}))
    file.chmod(0o600)
    command = cluster.run("node", "join", str(file), "--name", "forged")
    return command.returncode, command.stdout


async def test_a_forged_file_is_refused_by_the_bus(cluster: AgentCluster, tmp_path: Path) -> None:
    code, output = run_forged(cluster, tmp_path / "forged.json", secret="0" * 64)

    assert code == 78
    assert "refuses" in output
    assert "omnibus node token" in output
    assert "forged" not in await cluster.wait_for_agents(bool)


def test_a_file_that_others_can_read_is_refused(cluster: AgentCluster, tmp_path: Path) -> None:
    file = tmp_path / "open.json"
    file.write_text(cluster.join.read_text())
    file.chmod(0o644)

    command = cluster.run("node", "join", str(file))

    assert command.returncode == 78
    assert "chmod 600" in command.stdout


def test_a_name_that_is_in_use_is_refused(cluster: AgentCluster) -> None:
    command = cluster.run("node", "join", str(cluster.join), "--name", cluster.name(1))

    assert command.returncode == 78
    assert "choose another name" in command.stdout


def test_the_file_is_private(cluster: AgentCluster) -> None:
    assert cluster.join.stat().st_mode & 0o777 == 0o600
