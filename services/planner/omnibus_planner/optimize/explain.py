"""Explanation of a deployment and its expected performance, as JSON for ``Plan.explain``. Only humans read it."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from omnibus.errors import OmnibusError
from omnibus_planner.declared.planned_spec import GPUS, GpuType
from omnibus_planner.optimize import latency_goals
from omnibus_planner.optimize.joint import PlanningOutcome
from omnibus_planner.optimize.latency import percentile_seconds
from omnibus_planner.optimize.option_loads import OptionLoads
from omnibus_planner.optimize.transfers import TransferLoads
from omnibus_planner.solve import sensitivity as solved
from omnibus_planner.solve.sensitivity import Explanation
from omnibus_planner.solve.solution import Flow

#: Most alternatives in an explanation, and branches of the search for each.
MAX_ALTERNATIVES, _MAX_BRANCHES = 3, 1000


def explain_outcome(
    outcome: PlanningOutcome,
    have: Mapping[str, GpuType],
    transfers: TransferLoads,
    *,
    alternatives: int = MAX_ALTERNATIVES,
) -> dict[str, Any]:
    """Explain the models of ``outcome`` by name, and their common ``deployment``."""
    loads = OptionLoads(outcome, transfers)
    why = _solver_explanation(outcome, 0 if outcome.cells else alternatives)
    models = {name: _explain_model(outcome, name, loads, why) for name in outcome.ready}
    return {"models": models, "deployment": _explain_deployment(outcome, have, why)}


def explain_links(transfers: TransferLoads) -> dict[str, Any]:
    """Return GB/s between nodes over all models, and warnings; empty if no traffic crosses nodes."""
    told = {"links": transfers.describe_links(), "warnings": transfers.find_overloads()}
    return {key: value for key, value in told.items() if value}


def _solver_explanation(outcome: PlanningOutcome, count: int) -> Explanation | None:
    """Return the solver's explanation; None if it takes too long."""
    terms = msgspec.structs.replace(outcome.terms, branches=_MAX_BRANCHES)
    try:
        return solved.explain_solution(outcome.solver, outcome.solution, terms, alternatives=count)
    except OmnibusError:
        return None


def _explain_model(outcome: PlanningOutcome, name: str, loads: OptionLoads, why: Explanation | None) -> dict[str, Any]:
    ready, demand, solution = outcome.ready[name], outcome.demands[name], outcome.solution
    names = {(each if each in ready.lent else f"{name}/{each}"): each for each in ready.options}
    binding = [names[each] for each in (why.bottlenecks if why else ()) if each in names]
    goals = latency_goals.describe_goals(ready.asked.goals)
    told: dict[str, Any] = {
        "reason": _describe_reason(outcome, name, binding),
        "goal": outcome.goal,
        "rate": outcome.expected_rate(name),
        "capacity": solution.capacity * outcome.weights[name],
        "measured": demand.measured,
        "bottlenecks": binding,
        "limiting_link": " to ".join(outcome.link),
        "learned": msgspec.to_builtins(ready.learned),
        "options": {
            names[option]: {
                "replicas": count,
                "gpus": count * outcome.solver.frame.network.options[option].gpus,
                "gpu": outcome.solver.frame.network.options[option].gpu,
                "utilisation": loads.busy[option],
                "wait": _finite_or_none(loads.wait_seconds(option)),
            }
            for option, count in solution.replicas.items()
            if option in names
        },
        "types": _explain_types(outcome, name, loads),
        "goals": goals,
        "cells": {str(size): count for size, count in sorted(outcome.cells.items())},
        "unserved": list(outcome.unserved.get(name, ())),
        "left": {**ready.left, **outcome.tails[name].never},
        "estimated": [each for each, option in ready.options.items() if not option.is_measured],
        "no_load_measured": list(outcome.tails[name].unmeasured),
    }
    return {key: value for key, value in told.items() if value not in ({}, [], "")}


def _explain_types(outcome: PlanningOutcome, name: str, loads: OptionLoads) -> dict[str, Any]:
    found: dict[str, list[Flow]] = {}
    for flow in outcome.solution.flows:
        model, _, kind = flow.type.rpartition("/")
        if model == name:
            found.setdefault(kind, []).append(flow)
    return {kind: _explain_type(outcome, flows, loads) for kind, flows in found.items()}


def _explain_type(outcome: PlanningOutcome, flows: Iterable[Flow], loads: OptionLoads) -> dict[str, Any]:
    flows = list(flows)
    rows = [
        (outcome.expected_flow_rate(flow), loads.unloaded_seconds(flow), loads.flow_wait_seconds(flow))
        for flow in flows
    ]
    rate = sum(row[0] for row in rows)
    alone, wait = (sum(row[0] * row[column] for row in rows) / rate if rate > 0 else math.inf for column in (1, 2))
    return {
        "rate": rate,
        "alone": _finite_or_none(alone),
        "latency": _finite_or_none(alone + wait),
        "p99": _finite_or_none(percentile_seconds([case for flow in flows for case in loads.flow_cases(flow)])),
    }


def _describe_reason(outcome: PlanningOutcome, name: str, binding: list[str]) -> str:
    ready, demand = outcome.ready[name], outcome.demands[name]
    together = [other for other in outcome.ready if other != name]
    beside = f", planned with {', '.join(together)}" if together else ""
    share = "in cells" if outcome.cells else "in one deployment"
    source = "measured" if demand.measured else "declared"
    if outcome.goal == GPUS:
        spare = f" and {ready.asked.headroom:.0%} spare" if ready.asked.headroom else ""
        said = f"fewest GPUs for the {source} {demand.rate:.4g} req/s{spare}, {share}"
    elif ready.asked.goal == GPUS:
        said = f"the GPUs do not serve the {source} {demand.rate:.4g} req/s: as many as they can, {share}"
    else:
        said = f"most requests within the GPUs, {share}"
    scarce = binding[:1] if outcome.goal != GPUS and not outcome.link else []
    limits = [f"; the link from {' to '.join(outcome.link)} limits it"] if outcome.link else []
    return f"{said}{beside}{''.join([*limits, *(f'; more of {name} would serve more' for name in scarce)])}"


def _explain_deployment(
    outcome: PlanningOutcome, have: Mapping[str, GpuType], why: Explanation | None
) -> dict[str, Any]:
    solution, options = outcome.solution, outcome.solver.frame.network.options
    used: dict[str, int] = {}
    for name, count in solution.replicas.items():
        used[options[name].gpu] = used.get(options[name].gpu, 0) + count * options[name].gpus
    told: dict[str, Any] = {
        "models": list(outcome.ready),
        "gpus": {kind or "any": {"used": used.get(kind, 0), "of": known.count} for kind, known in have.items()}
        or {kind or "any": {"used": count} for kind, count in used.items()},
        "price": solution.cost,
        "distance": why.distance if why else None,
        "gap": solution.gap,
        "alternatives": [
            {
                "without": each.without,
                "possible": each.possible,
                "rates": {name: each.rate * weight for name, weight in outcome.weights.items()},
                "gpus": each.gpus,
                "price": each.cost,
            }
            for each in (why.alternatives if why else ())
        ],
        "omitted": list(why.omitted) if why else [],
        "nodes": {
            f"{option}@{node}": count for option, there in outcome.places.items() for node, count in there.items()
        },
    }
    return {key: value for key, value in told.items() if value not in ({}, [], None)}


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
