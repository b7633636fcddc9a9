"""Replicas onto nodes: bins that the GPUs of one replica must not span, filled first-fit, then exactly."""

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from omnibus.errors import DeadlineExceeded
from services.planner.solve import highs
from services.planner.solve.constraints import SolverNode, Terms
from services.planner.solve.highs import Deadline, Program
from services.planner.solve.problem import SolverOption, require
from services.planner.solve.solution import Solution
from services.planner.solve.solver import Solver

#: Replicas by option and node.
Places = dict[str, dict[str, int]]


def most_within_nodes(solver: Solver, terms: Terms) -> tuple[Solution, Places]:
    """``Solver.most`` within ``terms.nodes``, and where each replica goes.

    Only GPUs are counted at first, which is usually enough; when the replicas do not fit into the nodes
    they are found again, each on a node of its own choice.
    """
    require(bool(terms.nodes), "name the nodes that replicas go to")
    found = solver.solve_most(terms)
    places = place_replicas(found.replicas, solver.frame.network.options, terms.nodes)
    if places is None:
        found = solver.solve_most(terms, packed=True)
        places = place_replicas(found.replicas, solver.frame.network.options, terms.nodes)
    return found, _require_places(places)


def least_within_nodes(solver: Solver, rate: float, terms: Terms) -> tuple[Solution, Places]:
    """``Solver.least`` within ``terms.nodes``, and where each replica goes."""
    require(bool(terms.nodes), "name the nodes that replicas go to")
    found = solver.solve_least(rate, terms)
    places = place_replicas(found.replicas, solver.frame.network.options, terms.nodes)
    if places is None:
        found = solver.solve_least(rate, terms, packed=True)
        places = place_replicas(found.replicas, solver.frame.network.options, terms.nodes)
    return found, _require_places(places)


def _require_places(places: Places | None) -> Places:
    if places is None:
        raise DeadlineExceeded("the replicas were not fitted into the nodes in time: allow more seconds")
    return places


def place_replicas(
    replicas: Mapping[str, int],
    options: Mapping[str, SolverOption],
    nodes: Mapping[str, SolverNode],
    running: Mapping[str, Mapping[str, int]] | None = None,
    within: float = 5.0,
) -> Places | None:
    """A node for each replica; None when they do not fit. Replicas that are ``running`` stay where they can.

    Largest first, each onto the first node with room: exact when sizes divide each other. Where that
    fails, or moves a running replica, a program decides.
    """
    kept = _keep_running(replicas, nodes, running or {})
    places = _first_fit(replicas, options, nodes, kept)
    return places or _place_exactly(replicas, options, nodes, running or {}, within)


def _keep_running(
    replicas: Mapping[str, int], nodes: Mapping[str, SolverNode], running: Mapping[str, Mapping[str, int]]
) -> Places:
    """Return as many running replicas as are still wanted, on the nodes where they run."""
    found: Places = {}
    for option, count in replicas.items():
        for node, there in running.get(option, {}).items():
            stay = min(there, count - sum(found.get(option, {}).values())) if node in nodes else 0
            if stay > 0:
                found.setdefault(option, {})[node] = stay
    return found


def _first_fit(
    replicas: Mapping[str, int], options: Mapping[str, SolverOption], nodes: Mapping[str, SolverNode], kept: Places
) -> Places | None:
    left = {name: node.gpus for name, node in nodes.items()}
    for option, there in kept.items():
        for node, count in there.items():
            left[node] -= count * options[option].gpus
    if min(left.values(), default=0) < 0:
        return None
    places = {option: dict(there) for option, there in kept.items()}
    for option in sorted(replicas, key=lambda name: (-options[name].gpus, name)):
        wanted = options[option]
        for _ in range(replicas[option] - sum(kept.get(option, {}).values())):
            node = next((n for n in nodes if nodes[n].gpu == wanted.gpu and left[n] >= wanted.gpus), "")
            if not node:
                return None
            left[node] -= wanted.gpus
            there = places.setdefault(option, {})
            there[node] = there.get(node, 0) + 1
    return places


def _place_exactly(
    replicas: Mapping[str, int],
    options: Mapping[str, SolverOption],
    nodes: Mapping[str, SolverNode],
    running: Mapping[str, Mapping[str, int]],
    within: float,
) -> Places | None:
    """Columns: replicas of each option on each node, and those of them that stay."""
    names, wanted = list(nodes), [option for option, count in replicas.items() if count]
    pairs = [(option, node) for option in wanted for node in names]
    count = len(pairs)
    if not count:
        return {}
    upper = [nodes[n].gpus // options[o].gpus if nodes[n].gpu == options[o].gpu else 0 for o, n in pairs]
    here = [running.get(option, {}).get(node, 0) for option, node in pairs]
    every = np.zeros((len(wanted), 2 * count))
    room = np.zeros((len(names), 2 * count))
    for at, (option, node) in enumerate(pairs):
        every[wanted.index(option), at] = 1.0
        room[names.index(node), at] = options[option].gpus
    total = np.array([float(replicas[option]) for option in wanted])
    stay = sparse.hstack([-sparse.eye_array(count), sparse.eye_array(count)])
    program = Program(
        sparse.vstack([every, room, stay], format="csc"),
        np.concatenate([total, np.full(len(names) + count, -np.inf)]),
        np.concatenate([total, [float(nodes[name].gpus) for name in names], np.zeros(count)]),
        np.zeros(2 * count),
        np.array([*upper, *here], float),
        np.concatenate([np.ones(count), np.zeros(count)]),
    )
    cost = np.concatenate([np.zeros(count), -np.ones(count)])
    found = highs.solve_milp(program, cost, Deadline(within))
    if found is None:
        return None
    places: Places = {}
    for (option, node), value in zip(pairs, np.round(found.x[:count]), strict=True):
        if value:
            places.setdefault(option, {})[node] = int(value)
    return places
