"""Plans of many models on many GPUs: how far they may be from the best, and what placing them takes.

    python -m tests.bench.joint_plans

Profiles are those of ``tests/bench/planner.py``: 20 random models of 12 options each.

    scale.plan20_gap_10s      the largest proven gap of a plan for all models on 64 to 10,000 GPUs, after at most 10 s. In
                              half of the draws, options take 1, 2 or 4 GPUs
    scale.plan20_cpu_s        CPU seconds of such a plan, with all ties broken (median)
    scale.place1250_cpu_s     CPU seconds to place a model's replicas on 1,250 nodes of 8 GPUs (largest)
    scale.place1250_crossing  GB/s between these nodes, over those of nodes that are all filled alike (largest)
"""

import json
import statistics
import time

from omnibus_planner.solve import placement
from omnibus_planner.solve.constraints import Places, SolverNode, Terms
from omnibus_planner.solve.joint_solver import JointSolver
from omnibus_planner.solve.multi_model import JointModel, join_networks
from omnibus_planner.solve.solution import Solution
from omnibus_planner.solve.solver import Solver
from omnibus_planner.solve.traffic import OptionTraffic, least_crossing_share
from tests.bench.planner import SIX, draw_twelve, list_options, make_network, make_six

_MODELS, _GPUS, _SECONDS = 20, (64, 256, 1024, 10_000), 10.0
_NODES, _NODE_GPUS = 1250, 8
#: Number of the first model of each draw, and the GPUs that its options may take.
_DRAWS = ((0, (1,)), (100, (1, 2, 4)))
#: GB per request between two stops of a path, and draws of models to place.
_HOP_GB, _PLACED = 0.01, 3


def _solve_joint(first: int, degrees: tuple[int, ...], gpus: int) -> tuple[Solution, float]:
    """Return the plan of 20 models, and its CPU seconds."""
    models = {f"m{at}": JointModel(draw_twelve(first + at, degrees), 1.0) for at in range(_MODELS)}
    solver, before = JointSolver(join_networks(models)), time.process_time()
    solution = solver.solve_most(Terms(gpus={"": gpus}, within=_SECONDS))
    return solution, time.process_time() - before


def _measure_joint() -> dict[str, float]:
    results = [_solve_joint(first, degrees, gpus) for first, degrees in _DRAWS for gpus in _GPUS]
    return {
        "scale.plan20_gap_10s": max(solution.gap for solution, _ in results),
        "scale.plan20_cpu_s": statistics.median(seconds for _, seconds in results),
    }


def _hop_traffic(solution: Solution) -> OptionTraffic:
    traffic: dict[tuple[str, str], float] = {}
    for flow in solution.flows:
        for ends in zip(flow.options, flow.options[1:], strict=False):
            traffic[ends] = traffic.get(ends, 0.0) + _HOP_GB * flow.rate
    return traffic


def _crossing_share(places: Places, traffic: OptionTraffic) -> float:
    return sum(rate * least_crossing_share(places[one], places[other]) for (one, other), rate in traffic.items())


def _place(seed: int) -> tuple[float, float]:
    """Return CPU seconds, and traffic between nodes over that of nodes that are filled alike."""
    solver = Solver(make_network(seed, make_six, list_options(SIX), 0.3))
    nodes = {f"n{at}": SolverNode(_NODE_GPUS) for at in range(_NODES)}
    solution = solver.solve_most(Terms(nodes=nodes, within=60.0))
    options, traffic, before = solver.frame.network.options, _hop_traffic(solution), time.process_time()
    places = placement.place_replicas(solution.replicas, options, nodes, traffic=traffic)
    seconds = time.process_time() - before
    even = placement._balanced_fit(solution.replicas, options, nodes, {})
    if places is None or even is None:
        raise SystemExit(f"the replicas of seed {seed} do not fit into {_NODES} nodes")
    _check_places(places, solution, nodes)
    return seconds, _crossing_share(places, traffic) / _crossing_share(even, traffic)


def _check_places(places: Places, solution: Solution, nodes: dict[str, SolverNode]) -> None:
    """Exit unless each replica has its GPU: all options here take one."""
    used = dict.fromkeys(nodes, 0)
    for there in places.values():
        for node, count in there.items():
            used[node] += count
    counts = {name: sum(there.values()) for name, there in places.items()}
    if counts != solution.replicas or max(used.values()) > _NODE_GPUS:
        raise SystemExit("the placement is not valid")


def measure_joint_plans() -> dict[str, float]:
    """All values by name."""
    places = [_place(seed) for seed in range(_PLACED)]
    values = _measure_joint() | {
        "scale.place1250_cpu_s": max(seconds for seconds, _ in places),
        "scale.place1250_crossing": max(share for _, share in places),
    }
    return {name: round(value, 4) for name, value in values.items()}


if __name__ == "__main__":
    print(json.dumps(measure_joint_plans()))
