"""Cells and their mixtures for every number of GPUs. The printed algorithm's errors are among the cases."""

import random

import pytest

from omnibus.errors import BadRequest
from omnibus_planner.solve import cells, mixture
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.mixture import Cell
from omnibus_planner.solve.problem import Infeasible
from omnibus_planner.solve.solver import Solver
from tests.unit.planner.solve import worlds


def make_cells(seed, sizes=None):
    """Return random cells; one in four serves nothing."""
    dice = random.Random(seed)
    sizes = sizes or dice.sample(range(1, 10), dice.randint(1, 4))
    return [Cell(size, round(dice.choice((0, 1, 1, 1)) * size * dice.uniform(0.5, 1.5), 3)) for size in sizes]


def compute_rates(all_cells, gpus):
    """Return the best rate within each number of GPUs, in order."""
    totals = [0.0]
    for n in range(1, gpus + 1):
        totals.append(max([totals[-1], *(totals[n - cell.gpus] + cell.rate for cell in all_cells if cell.gpus <= n)]))
    return totals


def test_mixtures_are_the_best_of_all():
    for seed in range(400):
        all_cells, dice = make_cells(seed), random.Random(seed)
        best, gpus = compute_rates(all_cells, 200), dice.randint(0, 120)

        most = mixture.most_requests(all_cells, gpus)

        assert most.rate == pytest.approx(best[gpus]), seed
        assert most.gpus <= gpus
        if best[-1] > 0:
            target_rate = dice.uniform(0, best[-1])
            fewest = mixture.fewest_gpus(all_cells, target_rate)
            rates_by_size = {cell.gpus: cell.rate for cell in all_cells}
            assert fewest.gpus == next(n for n, rate in enumerate(best) if rate >= target_rate * (1 - 1e-9)), seed
            assert fewest.rate == pytest.approx(
                sum(count * rates_by_size[size] for size, count in fewest.cells.items())
            )
            assert fewest.gpus == sum(count * size for size, count in fewest.cells.items())


def test_powers_of_two_need_no_table():
    for seed in range(400):
        dice = random.Random(seed)
        all_cells = make_cells(seed, [1 << exponent for exponent in range(dice.randint(1, 5))])
        gpus, best = dice.randint(0, 90), compute_rates(all_cells, 90)

        assert mixture.binary_mixture(all_cells, gpus).rate == pytest.approx(best[gpus]), seed
        if best[-1] > 0:
            target_rate = dice.uniform(0, best[-1])
            fewest = mixture.fewest_gpus(all_cells, target_rate).gpus
            assert mixture.binary_mixture(all_cells, fewest).rate >= target_rate * (1 - 1e-9), seed
            assert fewest == 0 or mixture.binary_mixture(all_cells, fewest - 1).rate < target_rate, seed


def test_the_rule_for_powers_of_two_is_not_used_for_other_sizes():
    all_cells = [Cell(2, 2.0), Cell(3, 3.3)]

    assert mixture.binary_mixture(all_cells, 4).cells == {2: 2}


def test_a_rate_of_any_size_takes_no_longer():
    result = mixture.fewest_gpus([Cell(size, size**1.1) for size in range(1, 17)], 1e12)

    assert result.rate >= 1e12 * (1 - 2e-9)
    assert result.gpus == pytest.approx(1e12 / 16**0.1, rel=1e-6)


def test_the_printed_algorithm_takes_more_or_does_not_end():
    assert mixture.printed_mixture([Cell(1, 1.0), Cell(2, 2.5)], 2.4).gpus == 3
    assert mixture.printed_mixture([Cell(1, 0.5), Cell(16, 40.0)], 39.9).gpus == 80
    assert mixture.printed_mixture([Cell(1, 0.0), Cell(2, 1.1)], 2.0) is None
    assert mixture.printed_mixture([Cell(1, 1e-9), Cell(2, 1.1)], 1.0) is None
    assert mixture.fewest_gpus([Cell(1, 1e-9), Cell(2, 1.1)], 1.0).gpus == 2


def test_sizes_that_are_no_better_than_smaller_ones_are_dropped():
    all_cells = [Cell(1, 0.0), Cell(2, 1.0), Cell(4, 2.0), Cell(8, 4.1)]

    assert [cell.gpus for cell in mixture.efficient_cells(all_cells)] == [2, 8]
    assert [cell.gpus for cell in mixture.efficient_cells(all_cells, printed=True)] == [1, 2, 8]


def test_what_cannot_be_is_refused():
    with pytest.raises(Infeasible, match="no cell serves anything"):
        mixture.fewest_gpus([Cell(1, 0.0)], 1.0)
    with pytest.raises(BadRequest, match="the rate is nan"):
        mixture.fewest_gpus([Cell(1, 1.0)], float("nan"))
    with pytest.raises(BadRequest, match="a cell size is given twice"):
        mixture.fewest_gpus([Cell(1, 1.0), Cell(1, 2.0)], 1.0)
    with pytest.raises(BadRequest, match="a cell has 0 GPUs"):
        mixture.most_requests([Cell(0, 1.0)], 3)
    assert mixture.fewest_gpus([Cell(1, 0.0)], 0.0).gpus == 0
    assert mixture.most_requests([], 4).rate == 0


def best_mixture_rate(solver, sizes, gpus):
    """Return the rate of the mixture of cells that serves most within ``gpus``."""
    return mixture.most_requests(cells.to_cells(cells.solve_sizes(solver, sizes)), gpus).rate


def test_one_deployment_over_all_gpus_serves_no_less_than_cells():
    for seed in (3, 8, 21):
        solver = Solver(worlds.build_arcs(worlds.make_world(seed)))
        for gpus in (3, 7, 11):
            whole = solver.solve_most(Terms(gpus={"": gpus})).rate
            assert whole >= best_mixture_rate(solver, cells.powers_of_two(2), gpus) * (1 - 1e-6)
            assert whole == pytest.approx(best_mixture_rate(solver, range(1, gpus + 1), gpus))
