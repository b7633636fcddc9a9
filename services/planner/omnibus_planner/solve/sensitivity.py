"""Explanation of a deployment: bottlenecks, distance from the optimum, alternatives. Data."""

import msgspec
import numpy as np

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve import constraints as given
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.problem import Infeasible
from omnibus_planner.solve.solution import Solution
from omnibus_planner.solve.solver import Solver


class OptionUse(msgspec.Struct, frozen=True):
    """An option in use.

    ``rate`` is the req/s through it, and ``utilisation`` the fraction of time that its replicas are busy at the planned
    rate. ``worth`` is the req/s that one more second of work per second would add to the capacity.
    """

    replicas: int
    gpus: int
    rate: float
    utilisation: float
    worth: float


class Alternative(msgspec.Struct, frozen=True):
    """The best deployment without one option: its capacity in req/s and its cost.

    ``possible`` is false if there is none.
    """

    without: str
    possible: bool
    rate: float = 0.0
    gpus: int = 0
    cost: float = 0.0
    replicas: dict[str, int] = {}


class Explanation(msgspec.Struct, frozen=True):
    """Explanation of a deployment.

    More of the options in ``bottlenecks`` would serve more. ``distance`` is the relative gain of a deployment with
    fractional replicas. ``alternatives`` are sorted, best first. Those ``without`` the ``omitted`` options were not
    found in time.
    """

    rate: float
    capacity: float
    options: dict[str, OptionUse]
    bottlenecks: tuple[str, ...]
    bound: float
    distance: float
    gap: float
    alternatives: tuple[Alternative, ...] = ()
    omitted: tuple[str, ...] = ()


def explain_solution(solver: Solver, solution: Solution, terms: Terms, *, alternatives: int = 3) -> Explanation:
    """Explain an answer of ``solver`` to a question under ``terms``.

    The ``alternatives`` are the best deployments without one of the options that do most of the work. Each has
    ``terms.within`` seconds, and is omitted if they do not suffice.
    """
    frame = solver.frame
    replicas = given.replica_vector(frame, solution.replicas)
    mix = given.mix_shares(terms, frame)[0]
    served = frame.solve_flow(given.work_supply(terms, frame, replicas), mix)
    busy, passing = _option_loads(solution)
    worth = np.where(np.isfinite(served.prices), served.prices, 0.0)
    options = {
        name: OptionUse(
            replicas=count,
            gpus=count * frame.network.options[name].gpus,
            rate=passing.get(name, 0.0),
            utilisation=busy.get(name, 0.0) / count,
            worth=float(worth[frame.network.option_numbers[name]]),
        )
        for name, count in solution.replicas.items()
    }
    first = sorted(options, key=lambda name: -options[name].utilisation * options[name].gpus)[:alternatives]
    without = {name: _alternative_without(solver, solution, terms, name) for name in first}
    others = [found for found in without.values() if found is not None]
    return Explanation(
        rate=solution.rate,
        capacity=solution.capacity,
        options=options,
        bottlenecks=tuple(name for name, use in options.items() if use.worth > 1e-9 * max(1.0, solution.capacity)),
        bound=solution.bound,
        distance=_bound_distance(solution),
        gap=solution.gap,
        alternatives=tuple(sorted(others, key=lambda other: (not other.possible, other.cost, -other.rate))),
        omitted=tuple(name for name, found in without.items() if found is None),
    )


def _bound_distance(solution: Solution) -> float:
    if solution.goal == "rate":
        return max(0.0, solution.bound / solution.rate - 1) if solution.rate > 0 else 0.0
    return max(0.0, 1 - solution.bound / solution.cost) if solution.cost > 0 else 0.0


def _option_loads(solution: Solution) -> tuple[dict[str, float], dict[str, float]]:
    """Return each option's work and req/s, by the solution's flows.

    Work is in seconds per second.
    """
    busy: dict[str, float] = {}
    passing: dict[str, float] = {}
    for flow in solution.flows:
        for option, seconds in zip(flow.options, flow.seconds, strict=True):
            busy[option] = busy.get(option, 0.0) + flow.rate * seconds
            passing[option] = passing.get(option, 0.0) + flow.rate
    return busy, passing


def _alternative_without(solver: Solver, solution: Solution, terms: Terms, option: str) -> Alternative | None:
    """Return the best answer without ``option``; None if time was not enough to find it."""
    changed = msgspec.structs.replace(terms, without=(*terms.without, option))
    try:
        found = solver.solve_most(changed) if solution.goal == "rate" else solver.solve_least(solution.rate, changed)
    except Infeasible:
        return Alternative(option, possible=False)
    except DeadlineExceeded:
        return None
    if solution.goal == "rate" and found.rate == 0:
        return Alternative(option, possible=False)
    return Alternative(option, True, found.capacity, found.gpus, found.cost, found.replicas)
