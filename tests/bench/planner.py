"""The planner's solver: seconds to the best deployment, and its gain over cells.

    python -m tests.bench.planner

Profiles are random: a component takes between 0.05 and 2 seconds per request, alone. Each further component in the same
executor slows the others by up to 30 % (63 options) or 60 % (12 options). Batches and memory for keys and values
shrink. Each value is a median over several draws. Every deployment is proven best. Times are process times on one core.

    options63      six components, all 63 options, all paths: most requests within 8 to 64 GPUs
    options63.goals_mib  memory at the peak of a solve within 64 GPUs, over that of the imports; each option may be busy
                   for a part of its time that depends on its replicas, as with goals for latencies
    components9    nine components, all 511 options, within 64 GPUs
    replan         a new rate for 63 options, next to the running deployment
    mixture10k     cells of 1 to 64 GPUs that serve most within 10,000
    global_over_cells8   12 options, one or several degrees: the best deployment on 64 GPUs over the best mixture
                   of cells of 1, 2, 4 and 8
    cells8_*.gpus  GPUs that cells need for the rate of the best deployment on 64, by the exact mixture and by the
                   printed greedy algorithm, if that one ends
"""

import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations

from omnibus_planner.solve import cells, mixture, utilisation
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_network import Network, build_lattice
from omnibus_planner.solve.mixture import Cell
from omnibus_planner.solve.problem import PlanningProblem, RequestType, SolverOption
from omnibus_planner.solve.replan import replan_deployment
from omnibus_planner.solve.solver import Solver

SIX = ("I", "V", "A", "T", "K", "G")
SIX_ORDER = ("IT", "VT", "AT", "TK", "KG")
NINE = ("I", "V", "A", "P", "D", "K", "G", "X", "Y")
NINE_ORDER = ("IP", "VP", "AP", "PD", "DK", "KG", "DX", "XY")
SIZES = (8, 16, 32, 64)
_DRAWS, _REPLANS = 5, 40
#: The argument of the process whose memory is measured, and its time limit in seconds.
_MEMORY, _MEMORY_SECONDS = "memory", 600.0


def _make_types(always: str, answers: dict[str, float]) -> dict[str, RequestType]:
    """Request types: always an image, half with a video, half with audio, answers by share."""
    return {
        f"I{extra}{always}{answer}": RequestType(tuple(f"I{extra}{always}{answer}"), 0.25 * share)
        for extra in ("", "V", "A", "VA")
        for answer, share in answers.items()
    }


def make_network(
    seed: int,
    problem: Callable[[dict[str, SolverOption]], PlanningProblem],
    options: dict[str, SolverOption],
    lost: float,
) -> Network:
    """Random network of options.

    ``loss`` is the largest loss for each further component of an option. A degree of n makes it n ** 0.9 times as fast.
    """
    dice = random.Random(seed)
    slower = {
        name: (1 + lost * dice.random() * (len(option.components) - 1)) / option.gpus**0.9
        for name, option in options.items()
    }
    plan_problem = problem(options)
    tau = {part: 0.05 * 40 ** dice.random() for part in plan_problem.components}
    return build_lattice(plan_problem, lambda kind, option, role: slower[option] * sum(tau[part] for part in role))


def list_options(components: tuple[str, ...]) -> dict[str, SolverOption]:
    sets = [parts for size in range(1, len(components) + 1) for parts in combinations(components, size)]
    return {"".join(parts): SolverOption(parts) for parts in sets}


def make_six(options: dict[str, SolverOption]) -> PlanningProblem:
    order = tuple((pair[0], pair[1]) for pair in SIX_ORDER)
    return PlanningProblem(SIX, options, _make_types("T", {"": 0.8, "KG": 0.2}), order)


def _make_nine(options: dict[str, SolverOption]) -> PlanningProblem:
    order = tuple((pair[0], pair[1]) for pair in NINE_ORDER)
    return PlanningProblem(NINE, options, _make_types("PD", {"": 0.6, "KG": 0.2, "XY": 0.2}), order)


def draw_twelve(seed: int, degrees: tuple[int, ...]) -> Network:
    """Each component alone, all together, and five other sets; all together on the most GPUs."""
    dice = random.Random(seed)
    some = dice.sample([parts for size in range(2, 6) for parts in combinations(SIX, size)], 5)
    options = {
        "".join(parts): SolverOption(parts, dice.choice(degrees)) for parts in [*((part,) for part in SIX), *some]
    }
    return make_network(seed, make_six, {**options, "".join(SIX): SolverOption(SIX, max(degrees))}, 0.6)


def _measure_seconds(work: Callable[..., object], *arguments: object) -> float:
    before = time.process_time()
    work(*arguments)
    return time.process_time() - before


def _solve_most(solver: Solver, gpus: int) -> float:
    solution = solver.solve_most(Terms(gpus={"": gpus}, within=60.0))
    if not solution.proven:
        raise SystemExit(f"no proof within 60 s on {gpus} GPUs")
    return solution.rate


def _measure_options() -> dict[str, float]:
    solvers = [Solver(make_network(seed, make_six, list_options(SIX), 0.3)) for seed in range(_DRAWS)]
    return {
        f"planner.options63.gpus{gpus}_s": statistics.median(
            _measure_seconds(_solve_most, solver, gpus) for solver in solvers
        )
        for gpus in SIZES
    }


def _measure_memory() -> float:
    """MiB of a separate process, whose peak nothing else raises."""
    command = [sys.executable, "-m", "tests.bench.planner", _MEMORY]
    return float(subprocess.run(command, check=True, capture_output=True, timeout=_MEMORY_SECONDS).stdout)


def _solve_with_goals() -> float:
    """Return the MiB that a solve with limited utilisations adds to this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    solver, gpus = Solver(make_network(0, make_six, list_options(SIX), 0.3)), SIZES[-1]
    work = utilisation.admissible_work("shortest-queue", gpus)
    admissible = dict.fromkeys(solver.frame.network.option_names, work)
    solver.solve_most(Terms(gpus={"": gpus}, within=_MEMORY_SECONDS, admissible=admissible))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def _measure_components() -> float:
    """From options and seconds to the deployment, the network included."""

    def solve_seed(seed: int) -> float:
        return _solve_most(Solver(make_network(seed, _make_nine, list_options(NINE), 0.3)), 64)

    return statistics.median(_measure_seconds(solve_seed, seed) for seed in range(3))


def _replan_ms() -> float:
    dice, times = random.Random(1), []
    for seed in range(4):
        solver = Solver(make_network(seed, make_six, list_options(SIX), 0.3))
        each = _solve_most(solver, 64) / 64
        running: dict[str, int] = {}
        for _ in range(_REPLANS // 4):
            rate, before = each * dice.uniform(6, 64), time.process_time()
            running = replan_deployment(solver, rate, running).replicas
            times.append(time.process_time() - before)
    return 1000 * statistics.median(times)


def _mixture_ms() -> float:
    times = []
    for seed in range(9):
        dice = random.Random(seed)
        all_cells = [Cell(size, size * dice.uniform(0.7, 1.3)) for size in range(1, 65)]
        times.append(_measure_seconds(mixture.most_requests, all_cells, 10_000))
    return 1000 * statistics.median(times)


def _over_cells() -> dict[str, float]:
    ratios, exact, greedy = [], [], []
    for seed in range(8):
        solver = Solver(draw_twelve(seed, (1,) if seed % 2 else (1, 2, 4)))
        whole = _solve_most(solver, 64)
        best_cells = cells.to_cells(cells.solve_sizes(solver, cells.powers_of_two(3), Terms(within=60.0)))
        ratios.append(whole / mixture.most_requests(best_cells, 64).rate)
        if greedy_result := mixture.printed_mixture(best_cells, whole):
            greedy.append(greedy_result.gpus)
            exact.append(mixture.fewest_gpus(best_cells, whole).gpus)
    return {
        "planner.global_over_cells8.gpus64": statistics.median(ratios),
        "planner.cells8_exact.gpus": statistics.median(exact),
        "planner.cells8_greedy.gpus": statistics.median(greedy),
    }


def measure_planner() -> dict[str, float]:
    """All values by name: seconds, milliseconds, ratios and GPUs, by their suffix."""
    values = _measure_options()
    values["planner.options63.goals_mib"] = _measure_memory()
    values["planner.components9_s"] = _measure_components()
    values["planner.replan_ms"] = _replan_ms()
    values["planner.mixture10k_ms"] = _mixture_ms()
    return {name: round(value, 4) for name, value in (values | _over_cells()).items()}


if __name__ == "__main__":
    print(_solve_with_goals() if _MEMORY in sys.argv else json.dumps(measure_planner()))
