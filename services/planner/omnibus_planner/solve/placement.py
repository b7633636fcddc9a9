"""Replicas onto nodes as bins: a replica's GPUs must not span two. First-fit, then patterns of nodes, then exact.

Among placements that move equally few running replicas, it chooses one with little traffic between nodes. On few nodes
it is the least.
"""

from collections.abc import Callable, Mapping

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve.constraints import Places, SolverNode, Terms
from omnibus_planner.solve.exact_placement import place_exactly
from omnibus_planner.solve.highs import Deadline
from omnibus_planner.solve.node_patterns import NodePatterns
from omnibus_planner.solve.problem import SolverOption, require
from omnibus_planner.solve.solution import Solution
from omnibus_planner.solve.solver import Solver
from omnibus_planner.solve.traffic import OptionTraffic, least_crossing_share

#: GB/s between the options of a solution.
TrafficOf = Callable[[Solution], OptionTraffic]
#: Most branches of the search for a placement with less traffic than a known one.
_MAX_BRANCHES = 500
#: Most nodes of that search: each is a column of every option and every pair of options.
_MAX_EXACT_NODES = 8
#: GB/s that count as none.
_NO_TRAFFIC = 1e-9


def most_within_nodes(solver: Solver, terms: Terms, traffic_of: TrafficOf | None = None) -> tuple[Solution, Places]:
    """Run ``Solver.solve_most`` within ``terms.nodes``, and place each replica.

    At first the solver only counts GPUs, which is usually enough. If the replicas do not fit into the nodes, it solves
    again with a node for each replica.
    """
    require(bool(terms.nodes), "name the nodes that replicas go to")
    solution = solver.solve_most(terms)
    places = _place_solution(solver, solution, terms, traffic_of)
    if places is None:
        solution = solver.solve_most(terms, packed=True)
        places = _place_solution(solver, solution, terms, traffic_of)
    return solution, _require_places(places)


def least_within_nodes(
    solver: Solver, rate: float, terms: Terms, traffic_of: TrafficOf | None = None
) -> tuple[Solution, Places]:
    """Run ``Solver.solve_least`` within ``terms.nodes``, and place each replica."""
    require(bool(terms.nodes), "name the nodes that replicas go to")
    solution = solver.solve_least(rate, terms)
    places = _place_solution(solver, solution, terms, traffic_of)
    if places is None:
        solution = solver.solve_least(rate, terms, packed=True)
        places = _place_solution(solver, solution, terms, traffic_of)
    return solution, _require_places(places)


def _place_solution(solver: Solver, solution: Solution, terms: Terms, traffic_of: TrafficOf | None) -> Places | None:
    traffic = traffic_of(solution) if traffic_of is not None and len(terms.nodes) > 1 else {}
    return place_replicas(solution.replicas, solver.frame.network.options, terms.nodes, traffic=traffic)


def _require_places(places: Places | None) -> Places:
    if places is None:
        raise DeadlineExceeded("the replicas were not fitted into the nodes in time: allow more seconds")
    return places


def place_replicas(
    replicas: Mapping[str, int],
    options: Mapping[str, SolverOption],
    nodes: Mapping[str, SolverNode],
    running: Mapping[str, Mapping[str, int]] | None = None,
    within: float = 60.0,
    traffic: OptionTraffic | None = None,
) -> Places | None:
    """Return a node for each replica; None if they do not fit. Replicas that are ``running`` stay if they can.

    The first attempt is first-fit, largest first, which is exact if sizes divide each other. It may fail, move a
    running replica, or let ``traffic`` (GB/s between options) cross nodes. Then each node is filled with the same share
    of every option, and patterns of nodes improve that. At last a program decides, if there are few nodes or nothing
    fitted.
    """
    running = running or {}
    sent = {ends: rate for ends, rate in (traffic or {}).items() if rate > 0 and all(map(replicas.get, ends))}
    kept = _keep_running(replicas, nodes, running)
    known = _first_fit(replicas, options, nodes, kept)
    if known and not _total_crossing(known, sent):
        return known
    deadline = Deadline(within)
    if sent:
        known = _reduce_crossing(known, replicas, options, nodes, kept, sent, deadline)
    if not known:
        return place_exactly(replicas, options, nodes, running, sent, deadline)
    if len(nodes) > _MAX_EXACT_NODES or not _total_crossing(known, sent):
        return known
    return _improve_places(known, replicas, options, nodes, running, sent, within)


def _reduce_crossing(
    first: Places | None,
    replicas: Mapping[str, int],
    options: Mapping[str, SolverOption],
    nodes: Mapping[str, SolverNode],
    stay: Places,
    traffic: OptionTraffic,
    deadline: Deadline,
) -> Places | None:
    """Return a placement with less traffic than ``first``, if there is one."""
    even = _balanced_fit(replicas, options, nodes, stay)
    best = _less_crossing(first, even, traffic)
    if not best or not _total_crossing(best, traffic):
        return best
    patterns = NodePatterns(replicas, options, nodes, stay, traffic)
    return _less_crossing(best, patterns.find_places([each for each in (first, even) if each], deadline), traffic)


def _total_crossing(places: Places, traffic: OptionTraffic) -> float:
    """Return the GB/s between nodes; 0 for rounding errors."""
    total = sum(
        rate * least_crossing_share(places.get(source, {}), places.get(target, {}))
        for (source, target), rate in traffic.items()
    )
    return total if total > _NO_TRAFFIC else 0.0


def _less_crossing(one: Places | None, other: Places | None, traffic: OptionTraffic) -> Places | None:
    """Return the placement with less traffic between nodes; ``one`` if equal."""
    if one is None or other is None:
        return one if other is None else other
    return other if _total_crossing(other, traffic) < _total_crossing(one, traffic) - _NO_TRAFFIC else one


def _improve_places(
    known: Places,
    replicas: Mapping[str, int],
    options: Mapping[str, SolverOption],
    nodes: Mapping[str, SolverNode],
    running: Mapping[str, Mapping[str, int]],
    traffic: OptionTraffic,
    within: float,
) -> Places:
    """Return the program's placement if it has less traffic than ``known``.

    All running replicas must stay in it.
    """
    deadline = Deadline(within, _MAX_BRANCHES)
    try:
        found = place_exactly(replicas, options, nodes, running, traffic, deadline)
    except DeadlineExceeded:
        deadline.remaining_seconds()  # raises unless the branches ended first
        return known
    if found is None or _staying(found, running) < _staying(known, running):
        return known
    return _less_crossing(known, found, traffic) or known


def _staying(places: Places, running: Mapping[str, Mapping[str, int]]) -> int:
    """Return the number of running replicas that stay on their node."""
    return sum(
        min(count, running.get(option, {}).get(node, 0))
        for option, there in places.items()
        for node, count in there.items()
    )


def _keep_running(
    replicas: Mapping[str, int], nodes: Mapping[str, SolverNode], running: Mapping[str, Mapping[str, int]]
) -> Places:
    """Return the running replicas that are still needed, on their nodes."""
    places: Places = {}
    for option, count in replicas.items():
        for node, there in running.get(option, {}).items():
            stay = min(there, count - sum(places.get(option, {}).values())) if node in nodes else 0
            if stay > 0:
                places.setdefault(option, {})[node] = stay
    return places


def _first_fit(
    replicas: Mapping[str, int], options: Mapping[str, SolverOption], nodes: Mapping[str, SolverNode], kept: Places
) -> Places | None:
    left = _free_gpus(options, nodes, kept)
    if min(left.values(), default=0) < 0:
        return None
    places = {option: dict(there) for option, there in kept.items()}
    for option in sorted(replicas, key=lambda name: (-options[name].gpus, name)):
        wanted = options[option]
        fitting = (node for node in nodes if nodes[node].gpu == wanted.gpu and left[node] >= wanted.gpus)
        missing = replicas[option] - sum(kept.get(option, {}).values())
        while missing > 0:
            node = next(fitting, "")
            if not node:
                return None
            count = min(missing, left[node] // wanted.gpus)
            left[node] -= count * wanted.gpus
            there = places.setdefault(option, {})
            there[node] = there.get(node, 0) + count
            missing -= count
    return places


def _balanced_fit(
    replicas: Mapping[str, int], options: Mapping[str, SolverOption], nodes: Mapping[str, SolverNode], kept: Places
) -> Places | None:
    """Fill nodes in turn, always from the option with least placed."""
    left = _free_gpus(options, nodes, kept)
    if min(left.values(), default=0) < 0:
        return None
    places = {option: dict(there) for option, there in kept.items()}
    done = {option: sum(kept.get(option, {}).values()) for option in replicas}
    for node, has in nodes.items():
        while fitting := [
            option
            for option, count in replicas.items()
            if done[option] < count and options[option].gpu == has.gpu and options[option].gpus <= left[node]
        ]:
            option = min(fitting, key=lambda name: (done[name] / replicas[name], -options[name].gpus, name))
            there = places.setdefault(option, {})
            there[node] = there.get(node, 0) + 1
            done[option] += 1
            left[node] -= options[option].gpus
    return places if all(done[option] == count for option, count in replicas.items()) else None


def _free_gpus(options: Mapping[str, SolverOption], nodes: Mapping[str, SolverNode], kept: Places) -> dict[str, int]:
    """Return each node's GPUs that the staying replicas do not use."""
    left = {name: node.gpus for name, node in nodes.items()}
    for option, there in kept.items():
        for node, count in there.items():
            left[node] -= count * options[option].gpus
    return left
