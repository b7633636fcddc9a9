"""Several models at once, other systems' plans, and explanations."""

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.plan import Path, choose_path
from omnibus_planner.solve import baselines, utilisation
from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.enumerate import Gpu, enumerate_options
from omnibus_planner.solve.flow_network import build_lattice
from omnibus_planner.solve.goodput import improve_goodput
from omnibus_planner.solve.multi_model import JointModel, join_networks
from omnibus_planner.solve.problem import Infeasible, PlanningProblem, RequestType, SolverOption
from omnibus_planner.solve.sensitivity import explain_solution
from omnibus_planner.solve.solver import Solver
from tests.lab.goodput import triinfer_shapes
from tests.unit.planner.solve import worlds


def make_network(encode=0.4, think=0.7, alpha=1.3):
    options = {"E": SolverOption(("E",)), "L": SolverOption(("L",)), "EL": SolverOption(("E", "L"))}
    types = {"img": RequestType(("E", "L"), 0.6), "txt": RequestType(("L",), 0.4)}
    tau = {"E": encode, "L": think}
    problem = PlanningProblem(("E", "L"), options, types, (("E", "L"),))
    return build_lattice(
        problem, lambda kind, name, role: (alpha if name == "EL" else 1) * sum(tau[part] for part in role)
    )


# Joint planning


def test_models_that_share_an_encoder_need_no_more_than_each_on_its_own():
    parts = {"a": JointModel(make_network(alpha=9), 1.2), "b": JointModel(make_network(think=0.5, alpha=9), 0.9)}
    alone = [Solver(part.network).solve_least(part.rate).gpus for part in parts.values()]

    apart = Solver(join_networks(parts)).solve_least(1.0)
    shared_solution = Solver(join_networks(parts, {"b/E": "a/E"})).solve_least(1.0)

    assert apart.gpus == sum(alone)
    assert shared_solution.gpus < apart.gpus
    assert "b/E" not in shared_solution.replicas
    rates = [flow.rate for flow in shared_solution.flows if flow.type == "b/img"]
    assert sum(rates) == pytest.approx(0.6 * 0.9)


def test_what_is_shared_must_be_there_and_take_the_same():
    parts = {"a": JointModel(make_network(), 1.0), "b": JointModel(make_network(), 1.0)}

    with pytest.raises(BadRequest, match="there is no option c/E"):
        join_networks(parts, {"b/E": "c/E"})
    with pytest.raises(BadRequest, match="which is b/E: name that one"):
        join_networks(parts, {"b/E": "a/E", "a/E": "b/E"})
    other = msgspec.structs.replace(parts["b"], network=build_lattice(
        PlanningProblem(("E",), {"E": SolverOption(("E",), 2)}, {"img": RequestType(("E",), 1.0)}), lambda *_: 1.0
    ))  # fmt: skip
    with pytest.raises(BadRequest, match="they take 2 and 1 GPUs"):
        join_networks({"a": parts["a"], "b": other}, {"b/E": "a/E"})
    with pytest.raises(BadRequest, match="the rate of model a is nan"):
        join_networks({"a": JointModel(make_network(), float("nan"))})


# Baselines


def make_solver(tau, merge_factor=1.0):
    options = enumerate_options(dict.fromkeys("EPD", 1.0), {"": Gpu(80.0)}, only=["E", "P", "D", "EP", "ED"])
    problem = PlanningProblem(tuple("EPD"), options, {"img": RequestType(tuple("EPD"), 1.0)}, (("E", "P"), ("P", "D")))
    return Solver(
        build_lattice(
            problem, lambda kind, name, role: (merge_factor if "+" in name else 1) * sum(tau[p] for p in role)
        )
    )


STAGES = {"E": "E", "P": "P", "D": "D", "EP": "E+P", "ED": "E+D"}


def test_three_stages_are_divided_by_their_work():
    solver = make_solver({"E": 1.0, "P": 1.0, "D": 2.0}, merge_factor=1.5)

    assert baselines.plan_triinfer(solver.frame, STAGES, 8) == ("E+P+D", {"E": 2, "P": 2, "D": 4}, pytest.approx(2.0))


def test_an_encoder_beside_the_decoder_is_visited_twice():
    solver = make_solver({"E": 1.0, "P": 1.0, "D": 1.0})

    # Six seconds of E and D in three replicas, five of P in five: the pair serves as much as the fewer allow.
    assert baselines.served_rate(solver.frame, {"E+D": 3, "P": 5}) == pytest.approx(1.5)
    assert baselines.served_rate(solver.frame, {"E+D": 6, "P": 2}) == pytest.approx(2.0)


def test_the_heuristic_compares_all_three_methods():
    # Decoding with an encoder costs nothing more, prefilling with one does.
    solver = make_solver({"E": 1.0, "P": 1.0, "D": 1.4})

    assert baselines.triinfer_methods(solver.frame, STAGES, 8) == {
        "E+P+D": {"E": 2, "P": 2, "D": 4},
        "EP+D": {"E+P": 4, "D": 4},
        "ED+P": {"E+D": 6, "P": 2},
    }
    name, replicas, rate = baselines.plan_triinfer(solver.frame, STAGES, 10)
    assert (name, replicas, rate) == ("ED+P", {"E+D": 7, "P": 3}, pytest.approx(7 / 2.4))


def test_the_heuristic_takes_what_a_replay_of_the_history_finds_best():
    solver, replays = make_solver({"E": 1.0, "P": 1.0, "D": 2.0}), []

    def record_replay(replicas):
        replays.append(dict(replicas))
        return 7.0 if "E+P" in replicas else 1.0

    assert baselines.plan_triinfer(solver.frame, STAGES, 8, record_replay) == ("EP+D", {"E+P": 4, "D": 4}, 7.0)
    assert replays == [{"E": 2, "P": 2, "D": 4}, {"E+P": 4, "D": 4}, {"E+D": 6, "P": 2}]


def test_an_exhaustive_search_lists_each_method_with_each_ratio():
    shapes = triinfer_shapes(8)

    assert len(shapes) == 35 == len({tuple(sorted(shape.items())) for shape in shapes})
    assert all(sum(shape.values()) == 8 for shape in shapes)
    assert [shape for shape in shapes if shape.get("EP") == 7] == [{"EP": 7, "D": 1}]


def test_replicas_are_improved_until_no_neighbour_is_better():
    attempts = []

    def judge_replicas(replicas, beyond):
        attempts.append(dict(replicas))
        return 10.0 - abs(replicas.get("a", 0) - 4) - abs(replicas.get("b", 0) - 3)

    replicas, rate = improve_goodput([{"a": 8}, {"c": 8}], {"a": 1, "b": 1, "c": 1}, 8, judge_replicas)

    assert (replicas, rate) == ({"a": 4, "b": 3, "c": 1}, 10.0)
    assert len(attempts) == len({tuple(sorted(each.items())) for each in attempts})


@pytest.mark.parametrize(
    ("candidate", "budget", "best"),
    [
        ({"a": 1}, 2, {"b": 2}),  # a replica of two GPUs makes room for two of one
        ({"a": 1}, 3, {"b": 3}),  # and an idle GPU is used
    ],
)
def test_large_replicas_make_room_for_small_ones(candidate: dict[str, int], budget: int, best: dict[str, int]):
    replicas, _ = improve_goodput([candidate], {"a": 2, "b": 1}, budget, lambda found, _: 1.0 + found.get("b", 0))

    assert replicas == best


def test_several_small_replicas_make_room_for_a_large_one():
    replicas, _ = improve_goodput([{"b": 5}], {"a": 2, "b": 1}, 5, lambda found, _: 1.0 + found.get("a", 0))

    assert replicas == {"a": 2, "b": 1}


def test_the_heuristic_is_never_better_than_the_optimum():
    for tau in ({"E": 0.3, "P": 1.0, "D": 2.2}, {"E": 1.7, "P": 0.2, "D": 0.9}):
        solver = make_solver(tau, merge_factor=1.02)
        for count in (4, 7, 12):
            _, replicas, rate = baselines.plan_triinfer(solver.frame, STAGES, count)

            assert sum(replicas.values()) == count
            assert rate <= solver.solve_most(Terms(gpus={"": count})).rate * (1 + 1e-6)


def test_a_ceiling_for_each_stage_is_optimal_where_there_is_one_path():
    solver = Solver(make_network(alpha=50))
    for rate in (0.9, 2.3, 5.0):
        assert baselines.plan_modserve(solver.frame, rate) == solver.solve_least(rate, Terms(without=("EL",))).replicas
    assert baselines.plan_modserve(solver.frame, 2.0, {"E": 0.5}) == {"E": 1, "L": 2}
    assert baselines.plan_modserve(solver.frame, 2.3, {"E": 0.5}) == {"E": 2, "L": 2}


def test_baselines_without_their_options_say_so():
    with pytest.raises(BadRequest, match="no option is named for stage P"):
        baselines.plan_triinfer(Solver(make_network()).frame, {"E": "E"}, 4)
    with pytest.raises(BadRequest, match="too few for three stages"):
        baselines.plan_triinfer(Solver(make_network()).frame, STAGES, 2)
    with pytest.raises(Infeasible, match="no stage runs L alone"):
        baselines.plan_modserve(Solver(make_network()).frame, 1.0, stages=["E"])


def test_a_monolith_is_one_of_the_answers():
    solver = Solver(make_network(alpha=1.0))

    replicas, rate = baselines.plan_monolith(solver.frame, 5)

    assert replicas == {"EL": 5}
    assert rate == pytest.approx(solver.solve_most(Terms(gpus={"": 5})).rate)


# Tails


def test_more_replicas_may_always_do_more():
    for way in utilisation.UTILISATION:
        work = utilisation.admissible_work(way, 20)

        assert list(work) == sorted(work)
        assert all(each <= count for count, each in enumerate(work, 1))
    assert utilisation.admissible_work("shortest-queue", 3) == pytest.approx((0.49, 1.44, 3 * (0.72 + 0.87) / 2))
    with pytest.raises(BadRequest, match="'best' is no way to choose"):
        utilisation.admissible_work("best", 3)


# Explanations


def test_an_explanation_tells_load_bottleneck_and_what_else_would_do():
    solver, terms = Solver(make_network()), Terms(gpus={"": 7})
    solution = solver.solve_most(terms)

    explanation = explain_solution(solver, solution, terms)

    assert explanation.options.keys() == solution.replicas.keys()
    assert all(0 < use.utilisation <= 1 + 1e-6 for use in explanation.options.values())
    assert explanation.bottlenecks
    assert all(explanation.options[name].utilisation == pytest.approx(1) for name in explanation.bottlenecks)
    assert explanation.distance == pytest.approx(solution.bound / solution.rate - 1)
    for other in explanation.alternatives:
        assert not other.possible or other.rate <= solution.rate * (1 + 1e-6)
        assert other.without not in other.replicas
    assert msgspec.json.decode(msgspec.json.encode(explanation), type=type(explanation)) == explanation


def test_one_more_replica_is_worth_what_it_is_said_to_be():
    solver, terms = Solver(make_network(alpha=9)), Terms(gpus={"": 5})
    solution = solver.solve_most(terms)

    worth = {name: use.worth for name, use in explain_solution(solver, solution, terms).options.items()}

    name = max(worth, key=lambda each: worth[each])
    more = baselines.served_rate(solver.frame, {**solution.replicas, name: solution.replicas[name] + 1})
    assert solution.rate < more <= solution.rate + worth[name] + 1e-9


def test_what_cannot_be_without_an_option_is_said():
    solver, terms = Solver(make_network(alpha=9)), Terms(gpus={"": 5}, without=("EL",))

    explanation = explain_solution(solver, solver.solve_least(2.0, terms), terms, alternatives=2)

    assert [(other.without, other.possible) for other in explanation.alternatives] == [("L", False), ("E", False)]


def test_the_paths_of_an_answer_are_those_that_a_plan_carries():
    solution = Solver(worlds.omni_network(2)).solve_most(Terms(gpus={"": 8}))

    paths = solution.plan_paths()

    for kind, type_paths in paths.items():
        assert all(isinstance(path, Path) for path in type_paths)
        assert choose_path(type_paths, 0.5) in type_paths
        assert sum(path.rate for path in type_paths) == pytest.approx(
            sum(f.rate for f in solution.flows if f.type == kind)
        )
