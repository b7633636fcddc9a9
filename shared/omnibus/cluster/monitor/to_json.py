"""Observations of the system, as plain values for programs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from omnibus.cluster.monitor.snapshot import OptionState, SystemState, Totals, planned_rates
from omnibus.cluster.nodes import NodeState
from omnibus.cluster.presence import ExecutorKind
from omnibus.plan import Plan


def state_values(system: SystemState, away: Sequence[str]) -> dict[str, Any]:
    """Return the whole state as JSON values. ``away`` contains the problems with unreachable services."""
    types, plan_rates = system.type_totals(), planned_rates(system.plan)
    models: dict[str, dict[str, Any]] = {name: {} for name in model_names(system.plan, types)}
    for model, kind in dict.fromkeys([*plan_rates, *types]):
        models[model][kind] = {
            **(types[model, kind]._asdict() if (model, kind) in types else {}),
            "planned": plan_rates.get((model, kind)),
        }
    plan = system.plan
    return {
        "at": time.time(),
        "seconds": system.span,
        "epoch": plan.epoch if plan is not None else 0,
        "reason": plan.reason if plan is not None else "",
        "staged": system.staged.epoch if system.staged is not None else 0,
        "pin": system.stand.pin,
        "problems": {source: problem.message for source, problem in system.problems.items()},
        "away": list(away),
        "gateways": system.gateways,
        "inflight": system.inflight,
        "models": models,
        "executors": [{**each.kind._asdict(), **_option_values(each)} for each in system.option_states()],
        "nodes": node_values(system),
        "links": [link._asdict() for link in system.nodes.links()],
    }


def node_values(system: SystemState) -> list[dict[str, Any]]:
    """Return the nodes with their executors and gateways. Empty if sidecars do not pull from each other.

    A node with an expired sidecar is gone and has no address, as long as another process on it reports.
    """
    executors, gateways = system.node_executors(), system.node_gateways()
    known_nodes: dict[str, dict[str, Any]] = {node.node: node._asdict() for node in system.nodes.nodes()}
    if not known_nodes:
        return []
    for name in sorted({*executors, *gateways} - {*known_nodes, ""}):
        known_nodes[name] = NodeState(name, "", "gone", "", 0.0, 0, 0)._asdict()
    return [
        {
            **node,
            "executors": [each._asdict() for each in executors.get(name, [])],
            "gateways": gateways.get(name, []),
        }
        for name, node in known_nodes.items()
    ]


def model_names(plan: Plan | None, types: Mapping[tuple[str, str], Totals]) -> list[str]:
    """Return the names of all models: those of the plan, and others that were requested."""
    return list(dict.fromkeys([*(plan.models if plan is not None else ()), *(model for model, _ in types)]))


def _option_values(option: OptionState) -> dict[str, Any]:
    return {name: value for name, value in option._asdict().items() if not isinstance(value, ExecutorKind)}
