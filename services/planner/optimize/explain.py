"""Explanation of a deployment and its expected performance, as JSON for ``Plan.explain``. For human readers only."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from omnibus.errors import OmnibusError
from services.planner.declared.planned_spec import GPUS, GpuType
from services.planner.optimize import latency_goals
from services.planner.optimize.joint import PlanningOutcome
from services.planner.solve import sensitivity as solved
from services.planner.solve.sensitivity import Explanation
from services.planner.solve.solution import Flow

#: Seconds that all of an explanation may take the solver, and the alternatives that are looked for in it.
EXPLAIN_TIMEOUT_SECONDS, MAX_ALTERNATIVES = 0.9, 3
#: The part of its time from which an option has no waiting time that can be told.
_SATURATED_FRACTION = 0.995


def waiting_seconds(seconds: float, replicas: int, busy: float) -> float:
    """Seconds that a request waits for one of ``replicas`` that are ``busy`` for this part of their time.

    Sakasegawa's approximation for one queue, Poisson arrivals and service times with a coefficient of
    variation of 1; infinite when they are busy all of the time.
    """
    if busy >= _SATURATED_FRACTION or replicas < 1:
        return math.inf
    return float(seconds * busy ** (math.sqrt(2 * (replicas + 1)) - 1) / (replicas * (1 - busy)))


def explain_outcome(
    outcome: PlanningOutcome, have: Mapping[str, GpuType], *, alternatives: int = MAX_ALTERNATIVES
) -> dict[str, Any]:
    """The models of ``outcome`` by name, and below ``deployment`` what they have in common."""
    loads = _OptionLoads(outcome)
    why = _solver_explanation(outcome, 0 if outcome.cells else alternatives)
    models = {name: _explain_model(outcome, name, loads, why) for name in outcome.ready}
    return {"models": models, "deployment": _explain_deployment(outcome, have, why)}


class _OptionLoads:
    """Utilisation of each option at the expected rates, and the latency of requests."""

    def __init__(self, outcome: PlanningOutcome) -> None:
        self._outcome = outcome
        self._rates = {name: _expected_rate(outcome, name) for name in outcome.ready}
        work: dict[str, float] = {}
        passing: dict[str, float] = {}
        for flow in outcome.solution.flows:
            rate = self.flow_rate(flow)
            for option, seconds in zip(flow.options, flow.seconds, strict=True):
                work[option] = work.get(option, 0.0) + rate * seconds
                passing[option] = passing.get(option, 0.0) + rate
        replicas = outcome.solution.replicas
        self.busy = {option: work.get(option, 0.0) / count for option, count in replicas.items()}
        self.waits = {
            option: waiting_seconds(work.get(option, 0.0) / (passing.get(option) or 1.0), count, self.busy[option])
            for option, count in replicas.items()
        }

    def flow_rate(self, flow: Flow) -> float:
        """Req/s of a flow at the expected rate of its model."""
        name = flow.type.rpartition("/")[0]
        planned = self._outcome.solution.rate * self._outcome.weights[name]
        return flow.rate * self._rates[name] / planned if planned > 0 else 0.0

    def flow_wait_seconds(self, flow: Flow) -> float:
        """Seconds that a request waits on this path."""
        return sum(self.waits.get(option, 0.0) for option in flow.options)

    def unloaded_seconds(self, flow: Flow) -> float:
        """Seconds of a request on this path when nothing else runs: its stops one after the other."""
        name, _, kind = flow.type.rpartition("/")
        ready, demand = self._outcome.ready[name], self._outcome.demands[name]
        total = 0.0
        for option, role, seconds in zip(flow.options, flow.components, flow.seconds, strict=True):
            own = option if option in ready.lent else option.removeprefix(f"{name}/")
            total += ready.costs.unloaded_latency(kind, own, role, demand.quantities) or seconds
        return total


def _expected_rate(outcome: PlanningOutcome, name: str) -> float:
    """Req/s that come, as far as they can be served; all that can be served when nobody says how many come."""
    most = outcome.solution.capacity * outcome.weights[name]
    return min(outcome.demands[name].rate or most, most)


def _solver_explanation(outcome: PlanningOutcome, count: int) -> Explanation | None:
    """The solver's own explanation; None when it takes too long."""
    terms = msgspec.structs.replace(outcome.terms, within=EXPLAIN_TIMEOUT_SECONDS / MAX_ALTERNATIVES)
    try:
        return solved.explain_solution(outcome.solver, outcome.solution, terms, alternatives=count)
    except OmnibusError:
        return None


def _explain_model(outcome: PlanningOutcome, name: str, loads: _OptionLoads, why: Explanation | None) -> dict[str, Any]:
    ready, demand, solution = outcome.ready[name], outcome.demands[name], outcome.solution
    names = {(each if each in ready.lent else f"{name}/{each}"): each for each in ready.options}
    binding = [names[each] for each in (why.bottlenecks if why else ()) if each in names]
    goals = latency_goals.describe_goals(ready.asked.goals)
    told: dict[str, Any] = {
        "reason": _describe_reason(outcome, name, binding),
        "goal": outcome.goal,
        "rate": _expected_rate(outcome, name),
        "capacity": solution.capacity * outcome.weights[name],
        "measured": demand.measured,
        "bottlenecks": binding,
        "options": {
            names[option]: {
                "replicas": count,
                "gpus": count * outcome.solver.frame.network.options[option].gpus,
                "gpu": outcome.solver.frame.network.options[option].gpu,
                "utilisation": loads.busy[option],
                "wait": _finite_or_none(loads.waits[option]),
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


def _explain_types(outcome: PlanningOutcome, name: str, loads: _OptionLoads) -> dict[str, Any]:
    found: dict[str, list[Flow]] = {}
    for flow in outcome.solution.flows:
        model, _, kind = flow.type.rpartition("/")
        if model == name:
            found.setdefault(kind, []).append(flow)
    return {kind: _explain_type(flows, loads) for kind, flows in found.items()}


def _explain_type(flows: Iterable[Flow], loads: _OptionLoads) -> dict[str, Any]:
    rows = [(loads.flow_rate(flow), loads.unloaded_seconds(flow), loads.flow_wait_seconds(flow)) for flow in flows]
    rate = sum(row[0] for row in rows)
    alone, wait = (sum(row[0] * row[column] for row in rows) / rate if rate > 0 else math.inf for column in (1, 2))
    return {"rate": rate, "alone": _finite_or_none(alone), "latency": _finite_or_none(alone + wait)}


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
    scarce = binding[:1] if outcome.goal != GPUS else []
    return f"{said}{beside}{''.join(f'; more of {name} would serve more' for name in scarce)}"


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
        "nodes": {
            f"{option}@{node}": count for option, there in outcome.places.items() for node, count in there.items()
        },
    }
    return {key: value for key, value in told.items() if value not in ({}, [], None)}


def _finite_or_none(value: float) -> float | None:
    """None for what grows without end."""
    return value if math.isfinite(value) else None
