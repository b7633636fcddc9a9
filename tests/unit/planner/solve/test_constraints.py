"""Solver terms against every replica vector: running replicas, scenarios, tails, GPU types and prices."""

import itertools
import random

import msgspec
import numpy as np
import pytest

from omnibus.errors import BadRequest
from omnibus_planner.solve import utilisation
from omnibus_planner.solve.constraints import Terms, mix_shares, work_supply
from omnibus_planner.solve.flow_network import build_lattice
from omnibus_planner.solve.problem import Infeasible, SolverOption
from omnibus_planner.solve.replan import replan_deployment
from omnibus_planner.solve.solver import Solver
from tests.unit.planner.solve.worlds import limit_gpus, make_model_problem, make_solver


def try_all(solver, terms, most, is_allowed=lambda vector: True):
    """Return the rates of all allowed replica vectors. Each option has at most ``most`` replicas."""
    frame = solver.frame
    rates = {}
    for vector in filter(is_allowed, itertools.product(range(most + 1), repeat=frame.count)):
        supply = work_supply(terms, frame, np.array(vector, float))
        rates[vector] = min(frame.solve_flow(supply, mix).rate for mix in mix_shares(terms, frame))
    return rates


def test_fewer_replicas_are_started_among_plans_of_as_many_gpus():
    solver = make_solver(alpha=1.02)
    rates = try_all(solver, Terms(), 5)
    for seed in range(12):
        dice = random.Random(seed)
        running = {name: dice.randint(0, 3) for name in ("E", "L", "EL")}
        rate = dice.uniform(2, 6)

        solution = solver.solve_least(rate, Terms(running=running))

        enough = [vector for vector, served_rate in rates.items() if served_rate >= rate * (1 - 1e-7)]
        cheapest = min(sum(vector) for vector in enough)
        fewest = min(
            sum(max(0, n - running[name]) for n, name in zip(vector, ("E", "L", "EL"), strict=True))
            for vector in enough
            if sum(vector) == cheapest
        )
        assert (solution.gpus, solution.spawned) == (cheapest, fewest), seed


def test_the_same_replicas_serve_all_scenarios():
    solver = make_solver(alpha=1.3)
    mixes = ({"img": 0.9, "txt": 0.1}, {"img": 0.1, "txt": 0.9})
    rates = try_all(solver, Terms(scenarios=mixes), 4)
    for rate in (1.7, 3.1, 3.9):
        solution = solver.solve_least(rate, Terms(scenarios=mixes))

        assert solution.gpus == min(
            sum(vector) for vector, served_rate in rates.items() if served_rate >= rate * (1 - 1e-7)
        )
        assert len(solution.scenarios) == 1
        for flows in (solution.flows, *solution.scenarios):
            assert sum(flow.rate for flow in flows) == pytest.approx(rate)


def test_the_most_under_scenarios_is_the_most_under_the_worst():
    solver, mixes = make_solver(alpha=1.3), ({"img": 1.0}, {"txt": 1.0})

    solution = solver.solve_most(limit_gpus(4, scenarios=mixes))

    rates = try_all(solver, Terms(scenarios=mixes), 4)
    assert solution.rate == pytest.approx(max(served_rate for vector, served_rate in rates.items() if sum(vector) <= 4))


@pytest.mark.parametrize("way", utilisation.UTILISATION)
def test_admissible_work_bounds_what_replicas_are_given(way):
    solver = make_solver(alpha=1.3)
    admissible = {name: utilisation.admissible_work(way, 8) for name in ("E", "L", "EL")}
    rates = try_all(solver, Terms(admissible=admissible), 4)
    for rate in (1.1, 2.4):
        solution = solver.solve_least(rate, Terms(admissible=admissible))

        assert solution.gpus == min(
            sum(vector) for vector, served_rate in rates.items() if served_rate >= rate * (1 - 1e-7)
        )
        assert solution.gpus > solver.solve_least(rate).gpus

    best = max(rate for vector, rate in rates.items() if sum(vector) <= 4)
    assert solver.solve_most(limit_gpus(4, admissible=admissible)).rate == pytest.approx(best)


def test_each_gpu_type_has_its_budget():
    options = {
        "E@a": SolverOption(("E",), 1, "a"), "L@a": SolverOption(("L",), 1, "a"), "E@b": SolverOption(("E",), 1, "b"),
        "L@b": SolverOption(("L",), 1, "b"), "EL@b": SolverOption(("E", "L"), 1, "b"),
    }  # fmt: skip
    seconds = {"E@a": 0.5, "L@a": 0.4, "E@b": 0.2, "L@b": 0.3, "EL@b": 0.6}
    problem = make_model_problem(options, {"img": ("EL", 0.7), "txt": ("L", 0.3)})
    solver = Solver(
        build_lattice(problem, lambda kind, name, role: seconds[name] * len(role) / len(options[name].components))
    )

    solution = solver.solve_most(Terms(gpus={"a": 3, "b": 2}))

    rates = try_all(solver, Terms(), 3, lambda each: sum(each[:2]) <= 3 and sum(each[2:]) <= 2)
    assert solution.rate == pytest.approx(max(rates.values()))
    assert sum(n for name, n in solution.replicas.items() if name.endswith("@a")) <= 3
    assert solver.solve_most(Terms(gpus={"a": 9})).replicas.keys() <= {"E@a", "L@a"}


def test_a_price_goes_before_the_number_of_gpus():
    options = {"fast": SolverOption(("L",), 1, "h", price=4.0), "slow": SolverOption(("L",), 1, "l", price=1.0)}
    problem = make_model_problem(options, {"txt": ("L", 1.0)}, ())
    solver = Solver(build_lattice(problem, lambda kind, name, role: {"fast": 0.3, "slow": 1.0}[name]))

    assert solver.solve_least(3.0).replicas == {"slow": 3}
    assert solver.solve_least(3.0, Terms(gpus={"h": 1, "l": 2})).replicas == {"fast": 1}
    assert solver.solve_least(3.0).cost == 3.0


def test_an_option_may_be_forbidden():
    solver = make_solver()

    assert "EL" not in solver.solve_most(limit_gpus(6, without=("EL",))).replicas
    with pytest.raises(Infeasible, match="no path serves requests of type img"):
        solver.solve_most(limit_gpus(6, without=("E", "EL")))


def test_each_group_is_covered_at_the_least_cost():
    for seed in range(6):
        dice = random.Random(seed)
        solver = make_solver(tau={"E": dice.uniform(0.1, 1), "L": dice.uniform(0.1, 1)}, alpha=dice.uniform(0.9, 1.5))
        text = Terms(gpus={"": 6}, scenarios=({"txt": 1.0},), covers=(("E", "EL"),))
        rate = dice.uniform(1, 3)
        rates = try_all(solver, text, 4, lambda vector: vector[0] + vector[2] >= 1)

        fewest = min(sum(vector) for vector, served_rate in rates.items() if served_rate >= rate * (1 - 1e-7))
        most = max(vector_rate for vector, vector_rate in rates.items() if sum(vector) <= 4)

        for solution in (
            solver.solve_least(rate, text),
            solver.solve_most(msgspec.structs.replace(text, gpus={"": 4})),
        ):
            assert solution.replicas.get("E", 0) + solution.replicas.get("EL", 0) >= 1
        assert solver.solve_least(rate, text).gpus == fewest
        assert solver.solve_most(msgspec.structs.replace(text, gpus={"": 4})).rate == pytest.approx(most, rel=1e-6)


def test_a_group_that_nothing_may_cover_is_infeasible():
    text = Terms(gpus={"": 4}, scenarios=({"txt": 1.0},), covers=(("E", "EL"),), without=("E", "EL"))

    with pytest.raises(Infeasible, match="one of E, EL must run, and none may"):
        make_solver().solve_most(text)
    with pytest.raises(BadRequest, match="the terms name X, which are no options"):
        make_solver().solve_most(limit_gpus(4, covers=(("X",),)))


def test_a_group_does_without_gpus_of_its_own_when_it_serves_as_well():
    solution = replan_deployment(
        make_solver(), 2.0, {"E": 1, "L": 1}, Terms(scenarios=({"txt": 1.0},), covers=(("E", "EL"),))
    )

    assert solution.gpus == 1
    assert solution.replicas == {"EL": 1}


def test_replicas_that_may_all_do_a_part_of_their_time_are_slower_ones():
    part, seconds = 0.4, {"E": 0.25, "L": 0.35}
    levels = {name: tuple(part * count for count in range(1, 10)) for name in ("E", "L", "EL")}

    limited = make_solver(seconds).solve_most(limit_gpus(9, admissible=levels))
    slower = make_solver({name: each / part for name, each in seconds.items()}).solve_most(limit_gpus(9))

    assert limited.rate == pytest.approx(slower.rate, rel=1e-6)
    assert limited.replicas == slower.replicas
