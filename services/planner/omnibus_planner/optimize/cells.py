"""A model in cells: the best deployment of each size, and the number of cells of each size.

Each cell serves whole requests.
"""

from collections.abc import Mapping

import msgspec

from omnibus_planner.declared.planned_spec import GPUS, THROUGHPUT
from omnibus_planner.optimize.demand import ModelDemand
from omnibus_planner.optimize.joint import GpuBudget, PlanningGroup, PlanningOutcome
from omnibus_planner.solve import cells, mixture, placement
from omnibus_planner.solve.constraints import Places, Terms
from omnibus_planner.solve.mixture import Mixture
from omnibus_planner.solve.problem import Infeasible, SolverOption, require
from omnibus_planner.solve.solution import Flow, Solution
from omnibus_planner.solve.solver import Solver


def solve_cells(
    group: PlanningGroup, demands: Mapping[str, ModelDemand], room: GpuBudget, largest: int, printed: bool = False
) -> PlanningOutcome:
    """Solve the one model of ``group`` in cells of 1, 2, 4, ... and at most ``largest`` GPUs, within ``room``.

    With ``printed``, the algorithms of the planner paper choose the number of each size. Raises ``Infeasible`` if no
    cell serves requests, and ``BadRequest`` for GPUs of several types.
    """
    name, ready = next(iter(group.ready.items()))
    kinds = {option.gpu for option in ready.options.values()}
    require(len(kinds) == 1, f"model {name}: cells need options on GPUs of one type, the profile has {sorted(kinds)}")
    gpu = next(iter(kinds))
    asked = group.build_question(demands, {}, GpuBudget({gpu: largest}, {}))
    solver, terms = asked.solver, msgspec.structs.replace(asked.terms, running=None)
    sizes = cells.powers_of_two(largest.bit_length() - 1)
    best = _useful_cells(solver, sizes, terms, gpu)
    if not best:
        terms = msgspec.structs.replace(terms, covers=())
        best = _useful_cells(solver, sizes, terms, gpu)
    if not best:
        raise Infeasible(
            f"model {name}: no cell of up to {largest} GPUs holds an executor for each component: allow more"
        )
    choose = _choose_printed if printed else _choose_mixture
    goal, chosen = choose(best, group.goal, demands[name], room, gpu, asked.weights[name])
    solution = _merge_cells(solver, terms, best, chosen, goal)
    terms = msgspec.structs.replace(terms, admissible=_merge_levels(terms, best, chosen))
    unserved = group.missing_components(demands, solution)
    places = _place_cells({size: best[size] for size in chosen.cells}, chosen, room, gpu)
    return PlanningOutcome(
        group.ready,
        demands,
        goal,
        solver,
        solution,
        terms,
        asked.weights,
        places,
        unserved,
        asked.tails,
        chosen.cells,
        best,
    )


def _place_cells(best: Mapping[int, Solution], chosen: Mixture, room: GpuBudget, gpu: str) -> Places:
    """Place each cell on one node; empty if some cell fits on none."""
    if not room.nodes:
        return {}
    names = {f"{size}": size for size in best}
    whole = {name: SolverOption((), size, gpu) for name, size in names.items()}
    count = {name: chosen.cells[size] for name, size in names.items()}
    places: Places = {}
    for name, there in (placement.place_replicas(count, whole, room.nodes) or {}).items():
        for option, each in best[names[name]].replicas.items():
            for node, number in there.items():
                before = places.setdefault(option, {})
                before[node] = before.get(node, 0) + each * number
    return places


def _useful_cells(solver: Solver, sizes: list[int], terms: Terms, gpu: str) -> dict[int, Solution]:
    """Return the best cell of each size that serves requests."""
    return {size: each for size, each in cells.solve_sizes(solver, sizes, terms, gpu).items() if each.rate > 0}


def _choose_mixture(
    best: Mapping[int, Solution], goal: str, demand: ModelDemand, room: GpuBudget, gpu: str, weight: float
) -> tuple[str, Mixture]:
    known = cells.to_cells(dict(best))
    have = None if room.gpus is None else room.gpus.get(gpu, 0)
    if goal == GPUS:
        found = mixture.fewest_gpus(known, 1.0)
        if have is None or found.gpus <= have:
            return GPUS, found
        if not demand.measured:
            raise Infeasible(
                f"{have} GPUs{gpu and ' of type '}{gpu} cannot serve {weight:g} req/s in cells: it takes {found.gpus}"
            )
    found = mixture.most_requests(known, have or 0)
    if not found.cells:
        raise Infeasible(f"{have or 0} GPUs hold no cell: the smallest that serves requests has {min(best)}")
    return THROUGHPUT, found


def _choose_printed(
    best: Mapping[int, Solution], goal: str, demand: ModelDemand, room: GpuBudget, gpu: str, weight: float
) -> tuple[str, Mixture]:
    """Return the mixture as the planner paper prints it.

    For a rate it is Algorithm 2, for GPUs the largest efficient cell first.
    """
    known = cells.to_cells(dict(best))
    have = None if room.gpus is None else room.gpus.get(gpu, 0)
    if goal == GPUS:
        found = mixture.printed_mixture(known, 1.0)
        if found is None:
            raise Infeasible(f"the printed algorithm does not end for {weight:g} req/s in cells of {sorted(best)} GPUs")
        if have is None or found.gpus <= have:
            return GPUS, found
    found = mixture.binary_mixture(known, have or 0)
    if not found.cells:
        raise Infeasible(f"{have or 0} GPUs hold no cell: the smallest that serves requests has {min(best)}")
    return THROUGHPUT, found


def _merge_levels(terms: Terms, best: Mapping[int, Solution], chosen: Mixture) -> dict[str, tuple[float, ...]]:
    """Return the admissible work of all cells together, by option.

    Replicas share a queue only within their cell. So their work adds up over cells, and differs from that of one pool
    with as many replicas.
    """
    merged: dict[str, tuple[float, ...]] = {}
    for option, levels in terms.admissible.items():
        cells_of = [(best[size].replicas.get(option, 0), count) for size, count in chosen.cells.items()]
        total = sum(each * count for each, count in cells_of)
        work = sum(levels[each - 1] * count for each, count in cells_of if each)
        merged[option] = tuple(work * number / total for number in range(1, total + 1)) or levels
    return merged


def _merge_cells(solver: Solver, terms: Terms, best: Mapping[int, Solution], chosen: Mixture, goal: str) -> Solution:
    """Combine all cells into one deployment: replicas and rates add up."""
    replicas: dict[str, int] = {}
    flows: list[Flow] = []
    for size, count in chosen.cells.items():
        for option, each in best[size].replicas.items():
            replicas[option] = replicas.get(option, 0) + each * count
        flows += [msgspec.structs.replace(flow, rate=flow.rate * count) for flow in best[size].flows]
    cost = sum(best[size].cost * count for size, count in chosen.cells.items())
    least = max(bound.each for bound in solver.mix_bounds(solver.create_run(terms), solver.frame.gpus))
    return Solution(
        goal="cost" if goal == GPUS else "rate",
        rate=chosen.rate,
        capacity=chosen.rate,
        gpus=sum(best[size].gpus * count for size, count in chosen.cells.items()),
        cost=cost,
        replicas=replicas,
        flows=tuple(flows),
        bound=least if goal == GPUS else chosen.gpus / least,
        gap=max(best[size].gap for size in chosen.cells),
        proven=all(best[size].proven for size in chosen.cells),
    )
