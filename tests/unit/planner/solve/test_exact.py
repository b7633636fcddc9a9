"""Programs against every replica vector and fractions, on many random worlds."""

from fractions import Fraction

import pytest

from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.solver import Solver
from tests.unit.planner.solve import worlds

#: Seeds of each batch; together 240 worlds.
BATCHES = [range(start, start + 40) for start in range(0, 240, 40)]


def is_close(left: float, right: float) -> bool:
    return abs(left - right) <= 1e-6 * max(1e-3, abs(right))


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"from {seeds[0]}")
def test_the_best_deployments_are_those_of_all_replica_vectors(seeds):
    for seed in seeds:
        world, gpus = worlds.make_world(seed), 2 + seed % 3
        rates = world.roughly(gpus)
        best = max(rates, key=lambda vector: rates[vector])
        exact = float(world.rate(best))
        solver = Solver(worlds.build_arcs(world))

        most = solver.solve_most(Terms(gpus={"": gpus}))

        assert is_close(most.rate, exact), seed
        assert most.gap == 0
        assert is_close(most.rate, float(world.rate(list_replicas(world, most)))), seed
        assert most.gpus == find_cheapest(world, rates, most.rate), seed

        target_rate = exact * (1.0, 0.999, 0.7)[seed // 3 % 3]
        if exact > 0:
            least = solver.solve_least(target_rate)

            assert least.gpus == find_cheapest(world, rates, target_rate), seed
            assert least.capacity >= target_rate * (1 - 1e-6), seed
            assert is_close(least.capacity, float(world.rate(list_replicas(world, least)))), seed
            assert is_close(sum(flow.rate for flow in least.flows), target_rate), seed


def list_replicas(world, solution):
    return tuple(solution.replicas.get(name, 0) for name in world.options)


def find_cheapest(world, rates, target_rate):
    return min(world.cost(vector) for vector in rates if rates[vector] >= target_rate * (1 - 1e-7))


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"from {seeds[0]}")
def test_listed_paths_and_arcs_are_the_same_program(seeds):
    for seed in seeds[::4]:
        world, terms = worlds.make_world(seed), Terms(gpus={"": 3 + seed // 4 % 4})

        listed_solution, arcs = (
            Solver(worlds.list_paths(world)).solve_most(terms),
            Solver(worlds.build_arcs(world)).solve_most(terms),
        )

        assert is_close(listed_solution.rate, arcs.rate), seed
        assert (listed_solution.gpus, listed_solution.executor_count) == (arcs.gpus, arcs.executor_count), seed


def test_the_check_itself_solves_a_program_whose_answer_is_known():
    world = worlds.SolverWorld(
        ("E", "L"),
        (("E", "L"),),
        {"E": (("E",), 1), "L": (("L",), 1)},
        {"img": (("E", "L"), "0.5"), "txt": (("L",), "0.5")},
        {"E": "2", "L": "1"},
        {"E": "1", "L": "1"},
    )

    assert world.rate((1, 1)) == 1
    assert world.rate((1, 2)) == 1
    assert world.rate((3, 2)) == Fraction(2)
    assert world.rate((0, 5)) == 0
