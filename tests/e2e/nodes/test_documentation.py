"""The commands of docs/debugging.md that show nodes."""

import json
from pathlib import Path

import pytest

from tests.e2e.debugging.test_documentation import BLOCKS, Shell, tool_directory
from tests.e2e.debugging.test_documentation import NODES as HEADING
from tests.e2e.nodes.conftest import NODES
from tests.e2e.nodes.test_views import ask_apart
from tests.e2e.system import System

__all__ = ["tool_directory"]  # a fixture

pytestmark = pytest.mark.e2e

STATUS, ONE, ENDS = BLOCKS[HEADING]


@pytest.fixture
def shell(nodes: System, tool_directory: str, tmp_path: Path) -> Shell:
    return Shell(nodes, tool_directory, tmp_path)


async def test_the_status_of_each_node_is_seen(nodes: System, shell: Shell):
    statuses = [json.loads(line) for line in (await shell.run(STATUS)).splitlines() if line.startswith("{")]

    assert len(statuses) == 3
    names = {nodes.node_name(node) for node in range(NODES)}
    for status in statuses:
        assert status["node"] in names
        assert {"boot", "pulled", "seconds", "unreachable", "used", "size"} <= status.keys()


async def test_one_node_is_watched_by_its_name(nodes: System, shell: Shell):
    async def send_request() -> None:
        await ask_apart(nodes)

    name = nodes.node_name(1)

    output = await shell.watch(ONE, f'"{name}"', send_request, NODE=name)

    assert {json.loads(line)["node"] for line in output.splitlines() if line.endswith("}")} == {name}


async def test_ends_that_gateways_send_to_other_nodes_are_seen(nodes: System, shell: Shell):
    async def send_request() -> None:
        await ask_apart(nodes)

    # Encoder and language model run on two nodes, so that one of them is not the gateway's.
    name = nodes.node_name(1)
    assert '"status":"done"' in await shell.watch(ENDS, '"t":"end"', send_request, NODE=name)
