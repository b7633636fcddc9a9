"""Executors on the nodes of one machine: round robin, and together within a cell."""

from pathlib import Path

import pytest

from omnibus.cells import join_cells
from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus.plan import Path as PlanPath
from omnibus.up.executors import process_specs
from omnibus.up.nodes import Nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    local_nodes = Nodes(2)
    local_nodes.prepare(tmp_path)
    return local_nodes


def map_places(nodes: Nodes, model: ModelPlan) -> dict[str, str]:
    """Return the node of each executor of ``model``."""
    specs = process_specs(Plan(1, 0, 0.0, {"m": model}), env={})
    return {name: nodes.place_executor(spec).env["OMNIBUS_SIDECAR_NODE"] for name, spec in specs.items()}


def make_deployment() -> ModelPlan:
    options = {
        "E": DeploymentOption(("vision",), "encoder", 2),
        "L": DeploymentOption(("thinker",), "llm"),
    }
    path = PlanPath("E>L", {"vision": "E", "thinker": "L"}, 1.0)
    return ModelPlan("qwen2_5_vl", "/m", ("vision", "thinker"), {}, options, {"vision+thinker": (path,)})


def test_executors_take_turns(nodes: Nodes):
    node_names = map_places(nodes, make_deployment())

    assert node_names["m/E"] == node_names["m/L"] != node_names["m/E/1"]


def test_executors_of_a_cell_are_on_one_node(nodes: Nodes):
    node_names = map_places(nodes, join_cells([make_deployment(), make_deployment(), make_deployment()]))

    by_cell = {cell: {node for name, node in node_names.items() if f"@{cell}" in name} for cell in ("c1", "c2", "c3")}
    assert [len(each) for each in by_cell.values()] == [1, 1, 1]
    assert by_cell["c1"] == by_cell["c3"] != by_cell["c2"]
