"""Answers to cases, by kind of question: what was asked, and what is found."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.families.plugins import listed
from services.planner.solve import cells, mixture, topology
from services.planner.solve.cases import Case
from services.planner.solve.constraints import Node, Terms
from services.planner.solve.cost_fit import fit
from services.planner.solve.flow_network import Network, listed_paths
from services.planner.solve.mixture import Cell, Mixture
from services.planner.solve.problem import Infeasible, amount, require
from services.planner.solve.solution import Solution, shares
from services.planner.solve.solver import Solver

Answer = dict[str, Any]


def answer(case: Case, within: float = 60.0) -> Answer:
    """The answer to one case, in at most about ``within`` seconds. Raises ``BadRequest``, ``DeadlineExceeded``.

    An answer that is not proven best says its ``gap``, relative.
    """
    kind = KINDS.get(case.kind)
    if kind is None:
        raise BadRequest(f"case {case.id} is of kind {case.kind!r}; there is {listed(KINDS)}")
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


class _Rates(msgspec.Struct):
    x: dict[str, float]


def _alg3(case: Case, within: float) -> Answer:
    instance = case.given()
    problem = instance.problem()
    fitted = fit(problem, case.asked(_Profile).profile_b)
    network, rows, counts = listed_paths(problem, instance.paths, {}), [], dict.fromkeys(problem.types, 0)
    for arc in network.arcs:
        kind = network.types[arc.kind]
        for use in arc.uses:
            option = network.names[use.option]
            seconds = fitted.seconds(kind, option, use.role)
            if seconds is not None:
                rows.append({"option": option, "type": kind, "path": counts[kind], "sec": seconds})
        counts[kind] += 1
    return {"tau": fitted.components(), "alpha": dict(fitted.alpha), "seconds": rows}


def _budget(case: Case, within: float) -> Answer:
    network = case.given().network()
    try:
        found = Solver(network).most(Terms(gpus={"": case.asked(_Gpus).gpus}, within=within))
    except Infeasible:
        return {"R": 0.0, "one_optimal_r": _replicas(network, None)}
    return {"R": found.rate, "one_optimal_r": _replicas(network, found), **_gap(found)}


def _least(case: Case, rate: float, terms: Terms) -> Answer:
    network = case.given().network()
    try:
        found = Solver(network).least(rate, terms)
    except Infeasible:
        return {"gpus": None, "one_optimal_r": None}
    return {"gpus": found.gpus, "one_optimal_r": _replicas(network, found), **_gap(found), "spawns": found.spawned}


def _mingpu(case: Case, within: float) -> Answer:
    return _only(_least(case, case.asked(_Rate).R, Terms(within=within)), "spawns")


def _churn(case: Case, within: float) -> Answer:
    task = case.asked(_Churn)
    return _least(case, task.R, Terms(running=task.r_old, within=within))


def _robust(case: Case, within: float) -> Answer:
    task = case.asked(_Robust)
    require(bool(task.scenarios), "there is no scenario")
    return _only(_least(case, task.R, Terms(scenarios=task.scenarios, within=within)), "spawns")


def _only(found: Answer, without: str) -> Answer:
    return {name: value for name, value in found.items() if name != without}


def _replicas(network: Network, found: Solution | None) -> dict[str, int]:
    return {name: found.replicas.get(name, 0) if found else 0 for name in network.names}


def _gap(found: Solution) -> Answer:
    return {} if found.proven else {"gap": found.gap}


def _cells(case: Case, within: float) -> Answer:
    sizes = cells.powers(case.asked(_Cells).cmax)
    try:
        found = cells.of(cells.planned(Solver(case.given().network()), sizes, Terms(within=within)))
    except Infeasible:
        found = [Cell(size, 0.0) for size in sizes]
    return {
        "R": [cell.rate for cell in found],
        "efficient_sizes_printed": [cell.gpus for cell in mixture.efficient(found, printed=True)],
        "efficient_sizes_zero_dropped": [cell.gpus for cell in mixture.efficient(found)],
    }


def _given(task: _Mixture) -> list[Cell]:
    return [Cell(cell.gpus, cell.R) for cell in task.cells]


def _mixed(case: Case, within: float) -> Answer:
    task = case.asked(_Mixture)
    greedy = mixture.printed(_given(task), task.R)
    said = None if greedy is None else {"gpus": greedy.gpus, "mixture": _sizes(greedy)}
    try:
        found = mixture.fewest(_given(task), task.R)
    except Infeasible:
        return {"gpus_optimal": None, "one_optimal_mixture": None, "algorithm2_printed": said}
    return {"gpus_optimal": found.gpus, "one_optimal_mixture": _sizes(found), "algorithm2_printed": said}


def _binary(case: Case, within: float) -> Answer:
    task = case.asked(_Mixture)
    found = mixture.binary(_given(task), task.gpus)
    return {"R": found.rate, "mixture": _sizes(found)}


def _sizes(found: Mixture) -> dict[str, int]:
    return {str(size): count for size, count in found.cells.items()}


def _topology(case: Case, within: float) -> Answer:
    task, network = case.asked(_Topology), case.given().network()
    nodes = {name: Node(count) for name, count in task.nodes.items()}
    bandwidth = {(start, end): size for start, end, size in task.bandwidth_GBps}
    traffic = topology.between_options(network, {(a, b): size for a, b, size in task.edge_GB_per_request})
    found = topology.least(network, task.R, nodes, bandwidth, traffic, within)
    printed = topology.least(network, task.R, nodes, {}, None, within)
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


def _probabilities(case: Case, within: float) -> Answer:
    rates = case.asked(_Rates).x
    for path, rate in rates.items():
        amount(rate, f"the rate of path {path}")
    require(sum(rates.values()) > 0, "no path has a rate")
    return {"p": shares(rates)}


KINDS: Mapping[str, Callable[[Case, float], Answer]] = {
    "alg3": _alg3,
    "budget": _budget,
    "mingpu": _mingpu,
    "cells": _cells,
    "mixture": _mixed,
    "binary": _binary,
    "topology": _topology,
    "probabilities": _probabilities,
    "churn": _churn,
    "robust": _robust,
}
