"""Solver requests: terms, ties, deadlines, and infeasible ones."""

from contextlib import suppress

import msgspec
import pytest

from omnibus.errors import BadRequest, DeadlineExceeded
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_network import build_lattice
from omnibus_planner.solve.problem import Infeasible, RequestType, SolverOption
from omnibus_planner.solve.replan import replan_deployment
from omnibus_planner.solve.solver import Solver
from tests.lab.listed_paths import listed_paths
from tests.unit.planner.solve import worlds
from tests.unit.planner.solve.worlds import limit_gpus, make_model_problem, make_solver, omni_network

# Properties of every deployment


def test_without_any_loss_of_running_together_a_monolith_is_best():
    solution = make_solver(alpha=1.0).solve_most(limit_gpus(7))

    assert solution.rate == pytest.approx(7 / (0.7 * 0.8 + 0.3 * 0.3))
    assert solution.rate == pytest.approx(solution.bound)


def test_paths_add_up_to_the_demand_of_each_type_and_no_replica_does_too_much():
    solver = Solver(omni_network(3))

    solution = solver.solve_most(limit_gpus(12))

    work = dict.fromkeys(solution.replicas, 0.0)
    for flow in solution.flows:
        for option, seconds in zip(flow.options, flow.seconds, strict=True):
            work[option] += flow.rate * seconds
    assert all(work[name] <= count * (1 + 1e-6) for name, count in solution.replicas.items())
    for kind, share in zip(solver.frame.network.types, solver.frame.network.shares, strict=True):
        rates = [flow.rate for flow in solution.flows if flow.type == kind]
        assert sum(rates) == pytest.approx(share * solution.rate)
    assert all(sum(paths.values()) == pytest.approx(1) for paths in solution.path_probabilities().values())


def test_each_path_runs_each_component_of_its_type_once():
    network = omni_network(4)

    solution = Solver(network).solve_most(limit_gpus(9))

    for kind, paths in solution.plan_paths().items():
        for path in paths:
            assert sorted(path.options) == sorted(kind)
            assert set(path.options.values()) <= set(solution.replicas)


def test_the_same_question_has_the_same_answer():
    first, second = (
        Solver(omni_network(5)).solve_most(limit_gpus(10)),
        Solver(omni_network(5)).solve_most(limit_gpus(10)),
    )

    assert first == second


def test_most_and_least_are_each_others_inverse():
    for seed in range(20):
        solver = Solver(worlds.build_arcs(worlds.make_world(seed)))
        rates = {count: solver.solve_most(limit_gpus(count)).rate for count in (7, 8)}

        assert solver.solve_least(rates[8]).gpus <= 8
        assert solver.solve_least(rates[7]).gpus <= 7
        if rates[8] > rates[7] * (1 + 1e-5):
            assert solver.solve_least((rates[7] + rates[8]) / 2).gpus == 8


def test_what_many_options_serve_they_need_again():
    solver = Solver(omni_network(1))
    most = solver.solve_most(limit_gpus(9))

    assert solver.solve_least(most.rate).gpus == most.gpus == 9


def test_among_equals_fewer_executors_are_better():
    problem = make_model_problem(
        {"L1": SolverOption(("L",), 1), "L2": SolverOption(("L",), 2)}, {"txt": ("L", 1.0)}, ()
    )
    solver = Solver(build_lattice(problem, lambda kind, name, role: {"L1": 1.0, "L2": 0.5}[name]))

    assert solver.solve_least(4.0).replicas == {"L2": 2}
    assert solver.solve_most(limit_gpus(4)).replicas == {"L2": 2}


def test_gpus_that_would_be_idle_are_not_used():
    solution = make_solver({"E": 1.0, "L": 1.0}, alpha=9).solve_most(limit_gpus(2))

    assert solution.gpus == 2
    assert make_solver(EL=SolverOption(("E", "L"), 3)).solve_most(limit_gpus(5)).gpus <= 5


# Replanning


def test_a_new_rate_costs_what_a_plan_from_nothing_costs():
    solver = Solver(omni_network(6, (1, 2)))
    running = solver.solve_least(10 / solver.frame.unit / 5000).replicas
    for rate in (solver.frame.unit * 100 * count for count in (3.3, 9.9, 10.4, 17.2, 30.0)):
        again = replan_deployment(solver, rate, running)

        assert again.gpus == solver.solve_least(rate).gpus
        assert again.capacity >= rate * (1 - 1e-6)
        assert again.spawned <= sum(again.replicas.values())
        running = again.replicas


def test_a_plan_that_still_does_starts_nothing():
    solver = Solver(omni_network(7))
    plan = solver.solve_least(solver.frame.unit * 100 * 11.5)

    again = replan_deployment(solver, plan.rate * 0.99999, plan.replicas)

    assert again.spawned == 0
    assert again.replicas == plan.replicas


def test_a_new_mix_is_a_matter_of_its_shares_alone():
    solver, mix = make_solver(alpha=1.4), {"img": 0.2, "txt": 0.8}
    other = Solver(build_lattice(
        make_model_problem({"E": SolverOption(("E",)), "L": SolverOption(("L",)), "EL": SolverOption(("E", "L"))}, {"img": ("EL", 0.2), "txt": ("L", 0.8)}),
        lambda kind, name, role: (1.4 if name == "EL" else 1) * sum({"E": 0.5, "L": 0.3}[p] for p in role),
    ))  # fmt: skip

    assert replan_deployment(solver, 5.0, {}, Terms(scenarios=(mix,))).gpus == other.solve_least(5.0).gpus


# Infeasible and special requests


def test_a_rate_of_zero_takes_nothing():
    solution = make_solver().solve_least(0.0)

    assert (solution.gpus, solution.replicas, solution.flows) == (0, {}, ())
    assert replan_deployment(make_solver(), 0.0, {"E": 2}).replicas == {}


def test_what_does_not_fit_is_served_at_rate_zero():
    solution = make_solver(EL=SolverOption(("E", "L"), 8)).solve_most(limit_gpus(1))

    assert (solution.rate, solution.replicas) == (0.0, {})


def test_a_type_that_nobody_asks_for_needs_no_path():
    problem = make_model_problem({"L": SolverOption(("L",))}, {"txt": ("L", 1.0)}, ())
    problem = msgspec.structs.replace(
        problem, components=("L", "G"), types={**problem.types, "loud": RequestType(("L", "G"), 0.0)}
    )

    solution = Solver(build_lattice(problem, lambda kind, name, role: 0.5)).solve_most(limit_gpus(2))

    assert solution.rate == pytest.approx(4.0)


def test_a_share_of_almost_nothing_still_has_its_replica():
    options = {"L": SolverOption(("L",)), "G": SolverOption(("G",))}
    problem = make_model_problem(options, {"txt": ("L", 1.0), "loud": ("LG", 1e-9)}, (("L", "G"),))

    solution = Solver(build_lattice(problem, lambda kind, name, role: 0.5)).solve_most(limit_gpus(4))

    assert solution.replicas == {"L": 3, "G": 1}


def test_an_option_that_was_not_profiled_is_not_used():
    problem = make_model_problem(
        {"E": SolverOption(("E",)), "L": SolverOption(("L",)), "EL": SolverOption(("E", "L"))}, {"img": ("EL", 1.0)}
    )
    solver = Solver(build_lattice(problem, lambda kind, name, role: None if name == "EL" else 0.5))

    assert solver.solve_most(limit_gpus(4)).replicas == {"E": 2, "L": 2}
    with pytest.raises(Infeasible, match="no path serves requests of type img"):
        Solver(build_lattice(problem, lambda kind, name, role: None if name != "E" else 0.5)).solve_most(limit_gpus(4))


def test_requests_that_take_no_time_are_refused():
    problem = make_model_problem({"L": SolverOption(("L",))}, {"txt": ("L", 1.0)}, ())

    with pytest.raises(BadRequest, match="take no time"):
        Solver(build_lattice(problem, lambda kind, name, role: 0.0)).solve_most(limit_gpus(4))


@pytest.mark.parametrize(
    ("terms", "fault"),
    [
        (Terms(), "say how many GPUs there are"),
        (Terms(gpus={"": -1}), "-1 GPUs"),
        (Terms(gpus={"": 4}, without=("X",)), "the terms name X"),
        (Terms(gpus={"": 4}, within=0), "within is 0 s"),
        (Terms(gpus={"": 4}, running={"E": -1}), "-1 replicas of E run"),
        (Terms(gpus={"": 4}, scenarios=({"loud": 1.0},)), "no request types"),
        (Terms(gpus={"": 4}, scenarios=({"img": 0.0},)), "the workload is empty"),
        (Terms(gpus={"": 4}, scenarios=({"img": float("nan")},)), "the share of request type img is nan"),
        (Terms(gpus={"": 4}, admissible={"E": ()}), "the admissible work of E is empty"),
        (Terms(gpus={"": 4}, admissible={"E": (1.5,)}), "1 x E cannot do 1.5 seconds"),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms, fault):
    with pytest.raises(BadRequest, match=fault):
        make_solver().solve_most(terms)


def test_a_rate_that_is_no_number_is_refused():
    for rate in (float("nan"), float("inf"), -1.0):
        with pytest.raises(BadRequest, match="the rate is"):
            make_solver().solve_least(rate)
        with pytest.raises(BadRequest, match="the rate is"):
            replan_deployment(make_solver(), rate, {})


def test_a_rate_beyond_the_gpus_says_what_it_takes():
    with pytest.raises(Infeasible, match="4 GPUs cannot serve 50 req/s; it takes more than 27.65 GPUs"):
        make_solver({"E": 0.4, "L": 0.273}).solve_least(50.0, limit_gpus(4))


@pytest.mark.parametrize("within", [0.001, 0.05, 0.2])
def test_a_question_ends_at_its_deadline_with_what_was_found(within):
    solver = Solver(omni_network(8, (1, 2, 4)))

    with suppress(DeadlineExceeded):
        solution = solver.solve_most(limit_gpus(64, within=within))

        assert 0 < solution.rate <= solution.bound
        assert solution.proven == (solution.gap == 0)
        assert solution.gap < 1


def test_a_deadline_says_how_long_it_was():
    with pytest.raises(DeadlineExceeded, match="within 1e-06 s"):
        make_solver().solve_most(limit_gpus(64, within=1e-6))


def test_paths_that_cost_nothing_need_no_replica():
    problem = make_model_problem({"E": SolverOption(("E",)), "L": SolverOption(("L",))}, {"img": ("EL", 1.0)})
    network = listed_paths(problem, {"img": [("E", "L")]}, {("img", 0, "L"): 0.5})

    assert Solver(network).solve_least(4.0).replicas == {"L": 2}


def test_worlds_are_what_they_are_said_to_be():
    assert len(omni_network(0).arcs) == 1616
    assert len(worlds.make_omni(0)[0].options) == 63
