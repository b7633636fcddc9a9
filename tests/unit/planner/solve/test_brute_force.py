"""Answers under all terms against every replica vector, by a solver that shares no code with the product's."""

import pytest

from omnibus_planner.solve.problem import Infeasible
from tests.unit.planner.solve.brute_force import BruteForce, Question, draw_question


def is_close(left: float, right: float) -> bool:
    return abs(left - right) <= 1e-6 * max(1e-3, abs(right))


def check_question(question: Question, share: float) -> None:
    brute, solver = BruteForce(question), question.solver()

    try:
        most = solver.solve_most(question.terms, packed=question.packed)
    except Infeasible:
        assert brute.most() == 0
        return
    assert is_close(most.rate, brute.most())
    assert most.proven
    if brute.most() <= 1e-9:
        return
    if most.settled:  # else HiGHS found no other deployment within its tolerance: the rate is proven, ties are not
        assert most.cost == pytest.approx(brute.least_cost(most.rate), rel=1e-6)

    least = solver.solve_least(share * brute.most(), question.terms, packed=question.packed)
    assert least.cost == pytest.approx(brute.least_cost(share * brute.most()), rel=1e-6)
    with pytest.raises(Infeasible):
        solver.solve_least(1.01 * brute.most(), question.terms, packed=question.packed)


#: In three of these, paths come back to an option: it needs more replicas than its longest stop says.
SEEDS = (*range(20), 85, 899, 913)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_those_of_every_replica_vector(seed: int):
    check_question(draw_question(seed), (1.0, 0.9, 0.5)[seed % 3])


@pytest.mark.nightly
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_answers_are_those_of_every_replica_vector(hundred: int):
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        try:
            check_question(draw_question(seed), (1.0, 0.9, 0.5)[seed % 3])
        except AssertionError as error:
            raise AssertionError(f"question {seed}") from error


def test_the_questions_have_all_terms():
    every = [draw_question(seed) for seed in range(200)]

    for field in ("gpus", "nodes", "scenarios", "admissible", "covers", "without"):
        assert sum(bool(getattr(each.terms, field)) for each in every) > 20, field
    assert sum(any(option.price for option in each.problem.options.values()) for each in every) > 50
    assert sum(len({option.gpu for option in each.problem.options.values()}) > 1 for each in every) > 50
