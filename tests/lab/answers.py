"""Answers to cases, by kind of question."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.families.plugins import join_names
from omnibus_planner.solve import cells, mixture
from omnibus_planner.solve.constraints import SolverNode, Terms
from omnibus_planner.solve.cost_fit import fit_profile
from omnibus_planner.solve.flow_network import Network
from omnibus_planner.solve.mixture import Cell, Mixture
from omnibus_planner.solve.problem import Infeasible, check_amount, require
from omnibus_planner.solve.solution import Solution, normalize_rates
from omnibus_planner.solve.solver import Solver
from tests.lab import topology
from tests.lab.cases import Case
from tests.lab.listed_paths import listed_paths

Answer = dict[str, Any]


def answer_case(case: Case, within: float = 60.0) -> Answer:
    """Return the answer to one case, in at most about ``within`` seconds.

    An answer that is not proven best contains its relative ``gap``. Raises ``BadRequest`` and ``DeadlineExceeded``.
    """
    kind = KINDS.get(case.kind)
    if kind is None:
        raise BadRequest(f"case {case.id} is of kind {case.kind!r}; there is {join_names(KINDS)}")
    return kind(case, within)


class _Rate(msgspec.Struct):
    R: float


class _Gpus(msgspec.Struct):
    gpus: int


class _Churn(msgspec.Struct):
    R: float
    r_old: dict[str, int]


class _Robust(msgspec.Struct):
    R: float
    scenarios: tuple[dict[str, float], ...]


class _Profile(msgspec.Struct):
    profile_b: dict[str, float]


class _Cells(msgspec.Struct):
    cmax: int


class _Mixture(msgspec.Struct):
    cells: tuple["_Cell", ...]
    R: float = 0.0
    gpus: int = 0


class _Cell(msgspec.Struct):
    gpus: int
    R: float


class _Topology(msgspec.Struct):
    R: float
    nodes: dict[str, int]
    bandwidth_GBps: tuple[tuple[str, str, float], ...] = ()
    edge_GB_per_request: tuple[tuple[str, str, float], ...] = ()


class _PathRates(msgspec.Struct):
    x: dict[str, float]


def _answer_profile_fit(case: Case, within: float) -> Answer:
    instance = case.require_instance()
    problem = instance.build_problem()
    fitted = fit_profile(problem, case.task_as(_Profile).profile_b)
    network, rows, counts = listed_paths(problem, instance.paths, {}), [], dict.fromkeys(problem.types, 0)
    for arc in network.arcs:
        kind = network.types[arc.kind]
        for use in arc.uses:
            option = network.option_names[use.option]
            seconds = fitted.option_seconds(kind, option, use.role)
            if seconds is not None:
                rows.append({"option": option, "type": kind, "path": counts[kind], "sec": seconds})
        counts[kind] += 1
    return {"tau": fitted.component_seconds(), "alpha": dict(fitted.alpha), "seconds": rows}


def _answer_budget(case: Case, within: float) -> Answer:
    network = case.require_instance().build_network()
    try:
        found = Solver(network).solve_most(Terms(gpus={"": case.task_as(_Gpus).gpus}, within=within))
    except Infeasible:
        return {"R": 0.0, "one_optimal_r": _replica_counts(network, None)}
    return {"R": found.rate, "one_optimal_r": _replica_counts(network, found), **_gap_entry(found)}


def _least_gpus(case: Case, rate: float, terms: Terms) -> Answer:
    network = case.require_instance().build_network()
    try:
        found = Solver(network).solve_least(rate, terms)
    except Infeasible:
        return {"gpus": None, "one_optimal_r": None}
    return {
        "gpus": found.gpus,
        "one_optimal_r": _replica_counts(network, found),
        **_gap_entry(found),
        "spawns": found.spawned,
    }


def _answer_least_gpus(case: Case, within: float) -> Answer:
    return _without_key(_least_gpus(case, case.task_as(_Rate).R, Terms(within=within)), "spawns")


def _answer_churn(case: Case, within: float) -> Answer:
    task = case.task_as(_Churn)
    return _least_gpus(case, task.R, Terms(running=task.r_old, within=within))


def _answer_robust(case: Case, within: float) -> Answer:
    task = case.task_as(_Robust)
    require(bool(task.scenarios), "there is no scenario")
    return _without_key(_least_gpus(case, task.R, Terms(scenarios=task.scenarios, within=within)), "spawns")


def _without_key(found: Answer, without: str) -> Answer:
    return {name: value for name, value in found.items() if name != without}


def _replica_counts(network: Network, found: Solution | None) -> dict[str, int]:
    return {name: found.replicas.get(name, 0) if found else 0 for name in network.option_names}


def _gap_entry(found: Solution) -> Answer:
    return {} if found.proven else {"gap": found.gap}


def _answer_cells(case: Case, within: float) -> Answer:
    sizes = cells.powers_of_two(case.task_as(_Cells).cmax)
    try:
        found = cells.to_cells(
            cells.solve_sizes(Solver(case.require_instance().build_network()), sizes, Terms(within=within))
        )
    except Infeasible:
        found = [Cell(size, 0.0) for size in sizes]
    return {
        "R": [cell.rate for cell in found],
        "efficient_sizes_printed": [cell.gpus for cell in mixture.efficient_cells(found, printed=True)],
        "efficient_sizes_zero_dropped": [cell.gpus for cell in mixture.efficient_cells(found)],
    }


def _task_cells(task: _Mixture) -> list[Cell]:
    return [Cell(cell.gpus, cell.R) for cell in task.cells]


def _answer_mixture(case: Case, within: float) -> Answer:
    task = case.task_as(_Mixture)
    greedy = mixture.printed_mixture(_task_cells(task), task.R)
    said = None if greedy is None else {"gpus": greedy.gpus, "mixture": _cell_counts(greedy)}
    try:
        found = mixture.fewest_gpus(_task_cells(task), task.R)
    except Infeasible:
        return {"gpus_optimal": None, "one_optimal_mixture": None, "algorithm2_printed": said}
    return {"gpus_optimal": found.gpus, "one_optimal_mixture": _cell_counts(found), "algorithm2_printed": said}


def _answer_binary(case: Case, within: float) -> Answer:
    task = case.task_as(_Mixture)
    found = mixture.binary_mixture(_task_cells(task), task.gpus)
    return {"R": found.rate, "mixture": _cell_counts(found)}


def _cell_counts(found: Mixture) -> dict[str, int]:
    return {str(size): count for size, count in found.cells.items()}


def _answer_topology(case: Case, within: float) -> Answer:
    task, network = case.task_as(_Topology), case.require_instance().build_network()
    nodes = {name: SolverNode(count) for name, count in task.nodes.items()}
    bandwidth = {(start, end): size for start, end, size in task.bandwidth_GBps}
    traffic = topology.traffic_between_options(network, {(a, b): size for a, b, size in task.edge_GB_per_request})
    found = topology.solve_topology(network, task.R, nodes, bandwidth, traffic, within)
    printed = topology.solve_topology(network, task.R, nodes, {}, None, within)
    places = (
        {f"{option}@{node}": n for option, on in found.replicas.items() for node, n in on.items()} if found else None
    )
    gap = {"gap": found.gap} if found and found.gap > 0 else {}
    return {
        "gpus": found.gpus if found else None,
        "one_optimal_placement": places,
        "printed_model_gpus": printed.gpus if printed else None,
        **gap,
    }


def _answer_probabilities(case: Case, within: float) -> Answer:
    rates = case.task_as(_PathRates).x
    for path, rate in rates.items():
        check_amount(rate, f"the rate of path {path}")
    require(sum(rates.values()) > 0, "no path has a rate")
    return {"p": normalize_rates(rates)}


KINDS: Mapping[str, Callable[[Case, float], Answer]] = {
    "alg3": _answer_profile_fit,
    "budget": _answer_budget,
    "mingpu": _answer_least_gpus,
    "cells": _answer_cells,
    "mixture": _answer_mixture,
    "binary": _answer_binary,
    "topology": _answer_topology,
    "probabilities": _answer_probabilities,
    "churn": _answer_churn,
    "robust": _answer_robust,
}
