"""Goodput of simulated executors on eight GPUs: first come first served, scheduled by stages, and planned in shape.

    python -m tests.bench.goodput
    python -m tests.bench.goodput table     # the planned shape beside all that TriInfer's search lists, by goals

TriInfer's ablation (section 5.3, figure 10) in shape, in virtual time (``tests.bench.staged_cluster``); per GPU. The
three systems differ in one thing each:

    naive     every GPU runs everything; whoever came first goes first, and whole prompts stop those who decode
    staged    every GPU runs everything, and the schedule of the real engines says what goes into a step
    planned   what the planner's exact solver chooses among E, P, D, EP, ED, PD and EPD, from seconds at saturation, and
              what a replay of requests makes better of it; executors of it step by the same schedule
"""

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

import numpy as np

from omnibus.executor import sim
from omnibus.executor.sim import ComponentLoad, TypeDemand
from services.planner.solve import baselines
from services.planner.solve.constraints import Terms
from services.planner.solve.flow_network import build_lattice
from services.planner.solve.goodput import improve_goodput
from services.planner.solve.problem import PlanningProblem, RequestType, SolverOption
from services.planner.solve.solution import decompose_flow
from services.planner.solve.solver import Solver
from tests.bench.cases import SHAPED, SLOTS, STAGED
from tests.bench.staged_cluster import (
    ALL,
    GPUS,
    IMAGE,
    NAIVE,
    OPTIONS,
    STAGES,
    TABLE_5,
    TEXTCAPS,
    VISION,
    WORDS,
    D,
    P,
    Setting,
    Shape,
    Stage,
    build_profile,
    goodput,
    monolith,
)

#: The options of TriInfer's stages.
BY_STAGE = {name: name for name in ("E", "P", "D", "EP", "ED")}


@cache
def solver_of(setting: Setting) -> Solver:
    """The planner's solver for the seconds of saturated replicas."""
    options = {name: SolverOption(parts) for name, parts in OPTIONS.items()}
    problem = PlanningProblem(STAGES, options, {"caption": RequestType(STAGES, 1.0)}, tuple(pairwise(STAGES)))
    return Solver(build_lattice(problem, lambda _, option, role: seconds(setting, option, role)))


def seconds(setting: Setting, option: str, parts: tuple[str, ...]) -> float:
    """Of a saturated replica, per request."""
    loads = {VISION: ComponentLoad(tokens=IMAGE), **dict.fromkeys((P, D), ComponentLoad(tokens=IMAGE + WORDS))}
    demand = {"caption": TypeDemand(1.0, {part: loads[part] for part in parts})}
    inflight = 2 * setting.decode_slots
    return (
        1 / sim.predict_performance(build_profile(setting), option, demand, inflight=inflight, requests=500).throughput
    )


def route(setting: Setting, replicas: Mapping[str, int]) -> Shape | None:
    """``replicas`` with the ways that serve most; None when they do not run every stage."""
    frame = solver_of(setting).frame
    served = frame.solve_flow(
        np.array([float(replicas.get(name, 0)) for name in frame.network.option_names]), frame.network.type_shares()
    )
    if served.rate <= 0:
        return None
    flows = decompose_flow(frame.network, served.flow, [served.rate])
    ways = tuple((tuple(map(Stage, flow.options, flow.components)), flow.rate / served.rate) for flow in flows)
    used = {option for flow in flows for option in flow.options}
    return Shape({name: count for name, count in replicas.items() if name in used}, ways)


def judge(
    setting: Setting, replicas: Mapping[str, int], beyond: float = 0.0, lasts: float = 60.0, precision: float = 0.1
) -> float:
    """Goodput of ``replicas`` per GPU; ``beyond`` when it is not more than that."""
    shape = route(setting, replicas)
    return 0.0 if shape is None else goodput(shape, setting, lasts, precision, beyond)


def proposals(setting: Setting) -> Iterator[Mapping[str, int]]:
    """The solver's best of all options and of those of each of TriInfer's methods, and what Algorithm 2 compares."""
    solver, methods = solver_of(setting), (OPTIONS, ("EP", "D"), ("ED", "P"), ("E", "P", "D"))
    for options in methods:
        without = tuple(name for name in OPTIONS if name not in options)
        yield solver.solve_most(Terms(gpus={"": GPUS}, without=without)).replicas
    yield from baselines.triinfer_methods(solver.frame, BY_STAGE, GPUS).values()
    yield {ALL: GPUS}


def planned(setting: Setting = TEXTCAPS, lasts: float = 60.0, precision: float = 0.1) -> tuple[Shape, float]:
    """The planned shape and its goodput per GPU."""
    replicas, rate = improve_goodput(
        proposals(setting),
        dict.fromkeys(OPTIONS, 1),
        lambda replicas, beyond: judge(setting, replicas, beyond, lasts, precision),
    )
    shape = route(setting, replicas)
    assert shape is not None
    return shape, rate


def best_listed(
    setting: Setting, lasts: float = 60.0, precision: float = 0.1, beyond: float = 0.0
) -> tuple[dict[str, int], float]:
    """The best of all shapes that TriInfer's exhaustive search lists and its goodput, if it is more than ``beyond``."""
    best: dict[str, int] = {}
    for replicas in baselines.triinfer_shapes(GPUS):
        found = judge(setting, replicas, beyond, lasts, precision)
        if found > beyond:
            best, beyond = replicas, found
    return best, beyond


def chosen_method(setting: Setting, lasts: float = 60.0, precision: float = 0.1) -> tuple[str, dict[str, int], float]:
    """What TriInfer's Algorithm 2 chooses by replaying the same requests under each method, and its goodput per GPU."""
    return baselines.plan_triinfer(
        solver_of(setting).frame,
        BY_STAGE,
        GPUS,
        lambda replicas: judge(setting, replicas, lasts=lasts, precision=precision),
    )


def measure() -> dict[str, float]:
    """What the schedule is worth, what the planned shape is worth beside it, and what slots cost."""
    naive = goodput(monolith(NAIVE))
    by_slots = {slots: goodput(monolith(ALL), TEXTCAPS._replace(slots=slots)) for slots in (32, 128, 256)}
    print({f"goodput.staged.slots{slots}": round(rate, 4) for slots, rate in by_slots.items()}, file=sys.stderr)
    staged, (_, best) = by_slots[32], planned()
    return {
        STAGED: round(staged / naive, 4),
        SHAPED: round(best / staged, 4),
        SLOTS: round(by_slots[256] / staged, 4),
    }


def print_table() -> None:
    """Print each setting's planned shape, the best that TriInfer's search lists, and what its Algorithm 2 chooses."""
    for setting in TABLE_5:
        shape, rate = planned(setting)
        listed, most = best_listed(setting)
        name, replicas, heuristic = chosen_method(setting)
        print(
            f"TTFT {setting.ttft:g} s, TBT {setting.tbt:g} s: planned {shape.replicas} {rate:.2f}, "
            f"best listed {listed} {most:.2f}, Algorithm 2 {name} {replicas} {heuristic:.2f} req/s per GPU",
            flush=True,
        )


if __name__ == "__main__":
    if "table" in sys.argv[1:]:
        print_table()
    else:
        print(json.dumps(measure()))
