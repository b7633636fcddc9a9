"""Machines of agents as nodes to plan for."""

from omnibus.cluster.agents import DRAINING, AgentStatus
from omnibus_planner.declared.declarations_file import Declarations
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType
from omnibus_planner.reconcile.machines import describe_change, machine_sizes, with_machines

AGENTS = {
    "n1": AgentStatus("n1", 1, slots=0),
    "n2": AgentStatus("n2", 1, slots=8),
    "n3": AgentStatus("n3", 1, gpus=2, gpu="H100", slots=8),
    "n4": AgentStatus("n4", 1, gpus=8, gpu="H100", state=DRAINING),
}
MACHINES = machine_sizes(AGENTS)


def test_machines_that_may_run_executors_have_a_size() -> None:
    assert MACHINES == {"n2": (8, "cpu"), "n3": (2, "H100")}


def test_machines_are_nodes_unless_nodes_are_declared() -> None:
    assert with_machines(Declarations({}), MACHINES).nodes == {
        "n2": DeclaredNode(8, "cpu"),
        "n3": DeclaredNode(2, "H100"),
    }
    declared = {"n3": DeclaredNode(1, "H100", 1.25), "n4": DeclaredNode(8, "H100")}
    assert with_machines(Declarations({}, nodes=declared), MACHINES).nodes == {"n3": DeclaredNode(1, "H100", 1.25)}


def test_declared_gpus_limit_those_that_are_up() -> None:
    declared = Declarations({}, gpus={"H100": GpuType(4, 80.0), "cpu": GpuType(2)})

    planned = with_machines(declared, MACHINES)

    assert planned.gpus == {"H100": GpuType(2, 80.0), "cpu": GpuType(2)}
    assert planned.nodes == {}


def test_without_a_machine_nothing_can_be_placed() -> None:
    assert sum(node.gpus for node in with_machines(Declarations({}), {}).nodes.values()) == 0


def test_the_reason_of_a_plan_names_the_machines() -> None:
    assert describe_change({"n2": MACHINES["n2"]}, {"n3": MACHINES["n3"]}) == "n3 joined; n2 left"
