"""Observations of the system, as plain values for programs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from omnibus.cluster.desired import ExecutorKind
from omnibus.cluster.monitor.snapshot import OptionState, SystemState, Totals, planned_rates
from omnibus.cluster.nodes import NodeState
from omnibus.plan import Plan


def state_values(seen: SystemState, away: Sequence[str]) -> dict[str, Any]:
    """Return the whole state as JSON values. ``away`` contains the problems with unreachable services."""
    types, planned = seen.type_totals(), planned_rates(seen.plan)
    known: dict[str, dict[str, Any]] = {name: {} for name in model_names(seen.plan, types)}
    for model, kind in dict.fromkeys([*planned, *types]):
        known[model][kind] = {
            **(types[model, kind]._asdict() if (model, kind) in types else {}),
            "planned": planned.get((model, kind)),
        }
    plan = seen.plan
    return {
        "at": time.time(),
        "seconds": seen.span,
        "epoch": plan.epoch if plan is not None else 0,
        "reason": plan.reason if plan is not None else "",
        "staged": seen.staged.epoch if seen.staged is not None else 0,
        "pin": seen.stand.pin,
        "problems": {who: problem.message for who, problem in seen.problems.items()},
        "away": list(away),
        "gateways": seen.gateways,
        "inflight": seen.inflight,
        "models": known,
        "executors": [{**each.kind._asdict(), **_option_values(each)} for each in seen.option_states()],
        "nodes": node_values(seen),
        "links": [link._asdict() for link in seen.nodes.links()],
    }


def node_values(seen: SystemState) -> list[dict[str, Any]]:
    """Return the nodes with their executors and gateways. Empty if sidecars do not pull from each other.

    A node with an expired sidecar is gone and has no address, as long as another process on it reports.
    """
    executors, gateways = seen.node_executors(), seen.node_gateways()
    known: dict[str, dict[str, Any]] = {node.node: node._asdict() for node in seen.nodes.nodes()}
    if not known:
        return []
    for name in sorted({*executors, *gateways} - {*known, ""}):
        known[name] = NodeState(name, "", "gone", "", 0.0, 0, 0)._asdict()
    return [
        {
            **node,
            "executors": [each._asdict() for each in executors.get(name, [])],
            "gateways": gateways.get(name, []),
        }
        for name, node in known.items()
    ]


def model_names(plan: Plan | None, types: Mapping[tuple[str, str], Totals]) -> list[str]:
    """Return the names of all models: those of the plan, and others that were requested."""
    return list(dict.fromkeys([*(plan.models if plan is not None else ()), *(model for model, _ in types)]))


def _option_values(option: OptionState) -> dict[str, Any]:
    return {name: value for name, value in option._asdict().items() if not isinstance(value, ExecutorKind)}
