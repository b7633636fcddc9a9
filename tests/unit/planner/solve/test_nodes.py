"""Nodes: replicas that fit into them, and traffic between them, against every placement."""

import itertools
import random

import numpy as np
import pytest
from scipy.optimize import linprog

from omnibus.errors import BadRequest
from omnibus_planner.solve import placement
from omnibus_planner.solve.constraints import SolverNode, Terms
from omnibus_planner.solve.flow_network import build_lattice
from omnibus_planner.solve.problem import Infeasible, PlanningProblem, RequestType, SolverOption
from omnibus_planner.solve.solver import Solver
from tests.lab import topology
from tests.lab.listed_paths import listed_paths
from tests.unit.planner.solve import worlds


def make_network(encode=0.9, think=0.3, joint_seconds=2.4):
    """Return a network for images with options E, L and EL."""
    options = {"E": SolverOption(("E",)), "L": SolverOption(("L",)), "EL": SolverOption(("E", "L"))}
    problem = PlanningProblem(("E", "L"), options, {"img": RequestType(("E", "L"), 1.0)}, (("E", "L"),))
    seconds = {("img", 0, "E"): encode, ("img", 0, "L"): think, ("img", 1, "EL"): joint_seconds}
    return listed_paths(problem, {"img": [("E", "L"), ("EL",)]}, seconds)


def make_links(nodes, size):
    return dict.fromkeys(itertools.permutations(nodes, 2), size)


def is_feasible(places, nodes, rate, times, size, moved_gb):
    """Return True if the placed replicas serve the rate. Flows go from each encoder's node to each thinker's."""
    count = len(nodes)
    pairs = list(itertools.product(range(count), repeat=2))
    rows, limits = [], []
    for at in range(count):
        rows.append([times[0] * (pair[0] == at) for pair in pairs] + [0.0] * count)
        limits.append(places["E", at])
        rows.append([times[1] * (pair[1] == at) for pair in pairs] + [0.0] * count)
        limits.append(places["L", at])
        rows.append([0.0] * len(pairs) + [times[2] * (other == at) for other in range(count)])
        limits.append(places["EL", at])
    for at, pair in enumerate(pairs):
        if pair[0] != pair[1]:
            rows.append([moved_gb * (other == at) for other in range(len(pairs) + count)])
            limits.append(size)
    solution = linprog(-np.ones(len(pairs) + count), A_ub=np.array(rows), b_ub=np.array(limits, float), method="highs")
    return -solution.fun >= rate * (1 - 1e-6)


def test_the_fewest_gpus_on_nodes_are_those_of_the_best_placement():
    nodes = {"h0": SolverNode(2), "h1": SolverNode(2)}
    feasible_count = 0
    for seed in range(12):
        dice = random.Random(seed)
        times, size, moved_gb = [dice.uniform(0.3, 1.2) for _ in range(2)], dice.choice((0.0, 0.01, 0.03, 0.2)), 0.02
        times, rate = [*times, dice.uniform(1, 2) * sum(times)], dice.uniform(0.8, 2.4)
        network = make_network(*times)
        traffic = topology.traffic_between_options(network, {("E", "L"): moved_gb})

        solution = topology.solve_topology(network, rate, nodes, make_links(nodes, size), traffic)

        best = None
        for counts in itertools.product(range(3), repeat=6):
            places = dict(zip(itertools.product(("E", "L", "EL"), range(2)), counts, strict=True))
            fits = all(sum(places[option, at] for option in ("E", "L", "EL")) <= 2 for at in range(2))
            if fits and (best is None or sum(counts) < best):
                best = sum(counts) if is_feasible(places, nodes, rate, times, size, moved_gb) else best
        assert (solution and solution.gpus) == best, seed
        feasible_count += best is not None
    assert feasible_count > 4


def test_bandwidth_binds_only_what_crosses_nodes():
    network, nodes = make_network(0.5, 0.5, 9.0), {"h0": SolverNode(2), "h1": SolverNode(2)}
    traffic = topology.traffic_between_options(network, {("E", "L"): 1.0})

    inside = topology.solve_topology(network, 4.0, nodes, make_links(nodes, 0.0), traffic)

    assert inside.gpus == 4
    assert inside.replicas == {"E": {"h0": 1, "h1": 1}, "L": {"h0": 1, "h1": 1}}


def test_traffic_goes_straight_from_a_component_to_those_that_use_it():
    options = {name: SolverOption((name,)) for name in "IAL"}
    problem = PlanningProblem(
        ("I", "A", "L"), options, {"t": RequestType(("I", "A", "L"), 1.0)}, (("I", "L"), ("A", "L"))
    )
    arc = listed_paths(problem, {"t": [("I", "A", "L")]}, {}).arcs[0]

    assert topology.traffic_between_components({("I", "L"): 0.07, ("A", "L"): 0.01, ("I", "A"): 0.0})(arc) == [
        (0, 2, 0.07),
        (1, 2, 0.01),
    ]


def test_without_traffic_nodes_are_bins():
    network = worlds.build_arcs(worlds.make_world(5))
    solver = Solver(network)
    rate = solver.solve_most(Terms(gpus={"": 4})).rate

    solution = topology.solve_topology(
        network, rate, {"h0": SolverNode(2), "h1": SolverNode(2), "h2": SolverNode(1)}, {}, None
    )

    assert solution.gpus == solver.solve_least(rate).gpus
    assert topology.solve_topology(network, rate, {"h0": SolverNode(1)}, {}, None) is None


def test_wrong_nodes_are_refused():
    network, nodes = make_network(), {"h0": SolverNode(2)}
    with pytest.raises(BadRequest, match="no nodes"):
        topology.solve_topology(network, 1.0, nodes, {("h0", "h9"): 1.0}, None)
    with pytest.raises(BadRequest, match="bandwidth from h0 to h0 is nan"):
        topology.solve_topology(network, 1.0, nodes, {("h0", "h0"): float("nan")}, None)
    with pytest.raises(BadRequest, match="GB per request from E to L is -1"):
        topology.traffic_between_options(network, {("E", "L"): -1})
    with pytest.raises(BadRequest, match="are too many"):
        topology.solve_topology(network, 1.0, {f"h{at}": SolverNode(1) for at in range(400)}, {}, None)


# Placement without bandwidth


OPTIONS = {
    "one": SolverOption(("a",), 1),
    "two": SolverOption(("a",), 2),
    "three": SolverOption(("a",), 3),
    "other": SolverOption(("a",), 1, "b"),
}


def check_placement(places, replicas, nodes):
    assert {name: sum(there.values()) for name, there in places.items()} == {n: c for n, c in replicas.items() if c}
    for node, room in nodes.items():
        inside = [(name, there[node]) for name, there in places.items() if node in there]
        assert sum(OPTIONS[name].gpus * count for name, count in inside) <= room.gpus
        assert all(OPTIONS[name].gpu == room.gpu for name, _ in inside)


def test_replicas_are_placed_whole():
    nodes, replicas = (
        {"h0": SolverNode(4), "h1": SolverNode(4), "h2": SolverNode(2, "b")},
        {"two": 3, "one": 2, "other": 2},
    )

    check_placement(placement.place_replicas(replicas, OPTIONS, nodes), replicas, nodes)
    assert placement.place_replicas({"three": 2, "two": 1}, OPTIONS, nodes) is None
    assert placement.place_replicas({"other": 3}, OPTIONS, nodes) is None
    assert placement.place_replicas({}, OPTIONS, nodes) == {}


def test_where_first_fit_fails_the_program_finds_a_way():
    # Largest first: 3+2+1 and 3 leave no room for the second 2; 3+3 and 2+2+1 do.
    nodes, replicas = {"h0": SolverNode(6), "h1": SolverNode(5)}, {"three": 2, "two": 2, "one": 1}

    check_placement(placement.place_replicas(replicas, OPTIONS, nodes), replicas, nodes)

    nodes, replicas = {"h0": SolverNode(4), "h1": SolverNode(6)}, {"three": 2, "two": 2}
    check_placement(placement.place_replicas(replicas, OPTIONS, nodes), replicas, nodes)


def test_running_replicas_stay_where_they_are():
    nodes = {"h0": SolverNode(4), "h1": SolverNode(4)}

    places = placement.place_replicas(
        {"two": 2, "one": 3}, OPTIONS, nodes, {"one": {"h1": 2, "gone": 1}, "two": {"h1": 1}}
    )

    assert places["one"]["h1"] == 2
    assert places["two"]["h1"] == 1


def test_a_running_replica_moves_only_when_it_must():
    nodes = {"h0": SolverNode(4), "h1": SolverNode(4)}

    places = placement.place_replicas({"three": 2, "one": 2}, OPTIONS, nodes, {"one": {"h0": 1, "h1": 1}})
    assert places == {"one": {"h0": 1, "h1": 1}, "three": {"h0": 1, "h1": 1}}

    places = placement.place_replicas({"three": 1, "one": 4}, OPTIONS, nodes, {"one": {"h0": 2, "h1": 2}})
    check_placement(places, {"three": 1, "one": 4}, nodes)
    assert min(2, places["one"].get("h0", 0)) + min(2, places["one"].get("h1", 0)) == 3


def make_big_solver():
    """Return a network with one option of 3 GPUs; two nodes of 4 hold two replicas, not the three of 9 GPUs."""
    options = {"E": SolverOption(("E",)), "L3": SolverOption(("L",), 3)}
    problem = PlanningProblem(("E", "L"), options, {"img": RequestType(("E", "L"), 1.0)}, (("E", "L"),))
    return Solver(build_lattice(problem, lambda kind, name, role: {"E": 0.1, "L3": 1.0}[name]))


def test_a_deployment_that_does_not_fit_into_the_nodes_is_found_anew():
    terms = Terms(nodes={"h0": SolverNode(5), "h1": SolverNode(5)})
    solver = make_big_solver()

    solution, places = placement.most_within_nodes(solver, terms)

    assert solver.solve_most(terms).replicas == {"E": 1, "L3": 3}
    assert solution.replicas == {"E": 1, "L3": 2}
    assert solution.rate == pytest.approx(2.0)
    assert sorted(places["L3"]) == ["h0", "h1"]


def test_a_rate_that_only_loose_gpus_could_serve_is_refused():
    terms = Terms(nodes={"h0": SolverNode(5), "h1": SolverNode(5)})

    assert placement.least_within_nodes(make_big_solver(), 2.0, terms)[0].gpus == 7
    with pytest.raises(Infeasible, match="10 GPUs cannot serve 3 req/s"):
        placement.least_within_nodes(make_big_solver(), 3.0, terms)


def test_an_option_larger_than_every_node_is_not_used():
    options = {"L8": SolverOption(("L",), 8), "L2": SolverOption(("L",), 2)}
    problem = PlanningProblem(("L",), options, {"txt": RequestType(("L",), 1.0)})
    solver = Solver(build_lattice(problem, lambda kind, name, role: {"L8": 0.1, "L2": 1.0}[name]))

    solution, places = placement.most_within_nodes(solver, Terms(nodes={"h0": SolverNode(4), "h1": SolverNode(4)}))

    assert solution.replicas == {"L2": 4}
    assert places == {"L2": {"h0": 2, "h1": 2}}
    with pytest.raises(BadRequest, match="name the nodes"):
        placement.most_within_nodes(solver, Terms(gpus={"": 8}))
