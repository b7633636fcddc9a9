"""Machines of agents as nodes to plan for."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from omnibus.cluster.agents import READY, AgentStatus
from omnibus.plan import CPU
from omnibus_planner.declared.declarations_file import Declarations
from omnibus_planner.declared.planned_spec import DeclaredNode

#: Node that stands for all, while no machine is up.
NO_MACHINE = "none"


class MachineSize(NamedTuple):
    """GPUs of a machine and their type; without GPUs, its slots."""

    gpus: int
    gpu: str


def machine_sizes(agents: Mapping[str, AgentStatus]) -> dict[str, MachineSize]:
    """Return the machines that may run executors, by name. Draining ones may not."""
    return {
        node: MachineSize(agent.gpus, agent.gpu) if agent.gpus else MachineSize(agent.slots, CPU)
        for node, agent in agents.items()
        if agent.state == READY and (agent.gpus or agent.slots)
    }


def with_machines(declarations: Declarations, machines: Mapping[str, MachineSize]) -> Declarations:
    """Return ``declarations`` with the nodes that are up.

    Declared nodes keep their declared size and links. Declared ``gpus`` are the most that are used of each type.
    Without both, the machines' own sizes apply.
    """
    there = Counter[str]()
    for size in machines.values():
        there[size.gpu] += size.gpus
    gpus = {
        name: msgspec.structs.replace(kind, count=min(kind.count, there[name]))
        for name, kind in declarations.gpus.items()
    }
    if declarations.nodes:
        nodes = {name: node for name, node in declarations.nodes.items() if name in machines}
    elif declarations.gpus:
        return msgspec.structs.replace(declarations, gpus=gpus)
    else:
        nodes = {name: DeclaredNode(size.gpus, size.gpu) for name, size in machines.items()}
    no_node = {NO_MACHINE: DeclaredNode(0, next(iter(gpus), CPU))}
    return msgspec.structs.replace(declarations, gpus=gpus, nodes=nodes or no_node)


def describe_change(before: Mapping[str, MachineSize], after: Mapping[str, MachineSize]) -> str:
    """Describe changed machines as the reason of a plan."""
    changes = ((after.keys() - before.keys(), "joined"), (before.keys() - after.keys(), "left"))
    return "; ".join(f"{', '.join(sorted(names))} {verb}" for names, verb in changes if names) or "machines changed"
