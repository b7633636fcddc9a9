"""Goodput of simulated executors on eight GPUs: first come first served, staged, and planned.

The setting has the shape of TriInfer's ablation (section 5.3, figure 10), in virtual time (``staged_cluster.py``), per
GPU. The three systems differ in one aspect each:

    naive     every GPU runs all stages; requests run in order of arrival, and whole prompts stall decoding
    staged    every GPU runs all stages, and the schedule of the real engines chooses the work of each step
    planned   the planner's exact solver chooses among E, P, D, EP, ED, PD and EPD, from seconds at saturation;
              a replay of requests improves its choice, and executors step by the same schedule
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

import numpy as np

from omnibus.executor import sim
from omnibus.executor.sim import ComponentLoad, TypeDemand
from omnibus_planner.solve import baselines
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_network import build_lattice
from omnibus_planner.solve.goodput import improve_goodput
from omnibus_planner.solve.problem import Infeasible, PlanningProblem, RequestType, SolverOption
from omnibus_planner.solve.solution import decompose_flow
from omnibus_planner.solve.solver import Solver
from tests.lab.staged_cluster import (
    ALL,
    GPUS,
    IMAGE,
    OPTIONS,
    STAGES,
    TEXTCAPS,
    VISION,
    WORDS,
    D,
    P,
    Replay,
    StagedShape,
    StageGoals,
    StageStop,
    build_profile,
    goodput,
)

#: The options of TriInfer's stages.
BY_STAGE = {name: name for name in ("E", "P", "D", "EP", "ED")}


@cache
def solver_of(setting: StageGoals) -> Solver:
    """Return the planner's solver for the seconds of saturated replicas."""
    options = {name: SolverOption(parts) for name, parts in OPTIONS.items()}
    problem = PlanningProblem(STAGES, options, {"caption": RequestType(STAGES, 1.0)}, tuple(pairwise(STAGES)))
    return Solver(build_lattice(problem, lambda _, option, role: seconds(setting, option, role)))


def seconds(setting: StageGoals, option: str, parts: tuple[str, ...]) -> float:
    """Return a saturated replica's seconds per request."""
    loads = {VISION: ComponentLoad(tokens=IMAGE), **dict.fromkeys((P, D), ComponentLoad(tokens=IMAGE + WORDS))}
    demand = {"caption": TypeDemand(1.0, {part: loads[part] for part in parts})}
    inflight = 2 * setting.decode_slots
    return (
        1 / sim.predict_performance(build_profile(setting), option, demand, inflight=inflight, requests=500).throughput
    )


def route(setting: StageGoals, replicas: Mapping[str, int]) -> StagedShape | None:
    """Return ``replicas`` with the paths that serve most; None if they do not run every stage."""
    frame = solver_of(setting).frame
    served = frame.solve_flow(
        np.array([float(replicas.get(name, 0)) for name in frame.network.option_names]), frame.network.type_shares()
    )
    if served.rate <= 0:
        return None
    flows = decompose_flow(frame.network, served.flow, [served.rate])
    routes = tuple((tuple(map(StageStop, flow.options, flow.components)), flow.rate / served.rate) for flow in flows)
    used = {option for flow in flows for option in flow.options}
    return StagedShape({name: count for name, count in replicas.items() if name in used}, routes)


def judge(
    setting: StageGoals,
    replicas: Mapping[str, int],
    replay: Replay = Replay(),  # noqa: B008 a constant
    beyond: float = 0.0,
) -> float:
    """Return the goodput of ``replicas`` per GPU; ``beyond`` if it is not higher."""
    shape = route(setting, replicas)
    return 0.0 if shape is None else goodput(shape, setting, replay, beyond)


def proposals(setting: StageGoals) -> Iterator[Mapping[str, int]]:
    """Yield the solver's best over all options and over each TriInfer method's.

    The candidates of Algorithm 2 follow.
    """
    solver, methods = solver_of(setting), (OPTIONS, ("EP", "D"), ("ED", "P"), ("E", "P", "D"))
    for options in methods:
        without = tuple(name for name in OPTIONS if name not in options)
        yield solver.solve_most(Terms(gpus={"": GPUS}, without=without)).replicas
    yield from baselines.triinfer_methods(solver.frame, BY_STAGE, GPUS).values()
    yield {ALL: GPUS}


def planned(setting: StageGoals = TEXTCAPS, replay: Replay = Replay()) -> tuple[StagedShape, float]:  # noqa: B008
    """Return the planned shape and its goodput per GPU, by the requests that chose it."""
    replicas, rate = improve_goodput(
        proposals(setting),
        dict.fromkeys(OPTIONS, 1),
        GPUS,
        lambda replicas, beyond: judge(setting, replicas, replay, beyond),
    )
    shape = route(setting, replicas)
    if shape is None:
        raise Infeasible("no shape runs all stages")
    return shape, rate


def triinfer_shapes(instances: int) -> list[dict[str, int]]:
    """Return all candidates of TriInfer's exhaustive search (section 5.4): each method with each ratio.

    A candidate is the instances by stage.
    """
    found: list[dict[str, int]] = []
    for first in range(1, instances):
        found += [{"EP": first, "D": instances - first}, {"ED": first, "P": instances - first}]
        found += [{"E": first, "P": then, "D": instances - first - then} for then in range(1, instances - first)]
    return found


def best_listed(
    setting: StageGoals,
    replay: Replay = Replay(),  # noqa: B008 a constant
    beyond: float = 0.0,
) -> tuple[dict[str, int], float]:
    """Return the best shape of TriInfer's exhaustive search, and its goodput.

    It must exceed ``beyond``.
    """
    best: dict[str, int] = {}
    for replicas in triinfer_shapes(GPUS):
        found = judge(setting, replicas, replay, beyond)
        if found > beyond:
            best, beyond = replicas, found
    return best, beyond


def chosen_method(
    setting: StageGoals,
    replay: Replay = Replay(),  # noqa: B008 a constant
) -> tuple[str, dict[str, int], float]:
    """Run TriInfer's Algorithm 2, and return its choice and goodput per GPU.

    It replays the same requests under each method.
    """
    return baselines.plan_triinfer(
        solver_of(setting).frame,
        BY_STAGE,
        GPUS,
        lambda replicas: judge(setting, replicas, replay),
    )
