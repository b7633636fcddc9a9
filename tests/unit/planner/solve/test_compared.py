"""Several models at once, what others do with the same profile, why an answer is the answer."""

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.plan import Path, choose
from services.planner.solve import baselines, utilisation
from services.planner.solve.constraints import Terms
from services.planner.solve.enumerate import Gpu, every
from services.planner.solve.flow_network import lattice
from services.planner.solve.multi_model import Part, joined
from services.planner.solve.problem import Infeasible, Option, Problem, RequestType
from services.planner.solve.sensitivity import explain
from services.planner.solve.solver import Solver
from tests.unit.planner.solve import worlds


def network(encode=0.4, think=0.7, alpha=1.3):
    options = {"E": Option(("E",)), "L": Option(("L",)), "EL": Option(("E", "L"))}
    types = {"img": RequestType(("E", "L"), 0.6), "txt": RequestType(("L",), 0.4)}
    tau = {"E": encode, "L": think}
    asked = Problem(("E", "L"), options, types, (("E", "L"),))
    return lattice(asked, lambda kind, name, role: (alpha if name == "EL" else 1) * sum(tau[part] for part in role))


# Joint planning


def test_models_that_share_an_encoder_need_no_more_than_each_on_its_own():
    parts = {"a": Part(network(alpha=9), 1.2), "b": Part(network(think=0.5, alpha=9), 0.9)}
    alone = [Solver(part.network).least(part.rate).gpus for part in parts.values()]

    apart = Solver(joined(parts)).least(1.0)
    shared = Solver(joined(parts, {"b/E": "a/E"})).least(1.0)

    assert apart.gpus == sum(alone)
    assert shared.gpus < apart.gpus
    assert "b/E" not in shared.replicas
    rates = [flow.rate for flow in shared.flows if flow.type == "b/img"]
    assert sum(rates) == pytest.approx(0.6 * 0.9)


def test_what_is_shared_must_be_there_and_take_the_same():
    parts = {"a": Part(network(), 1.0), "b": Part(network(), 1.0)}

    with pytest.raises(BadRequest, match="there is no option c/E"):
        joined(parts, {"b/E": "c/E"})
    with pytest.raises(BadRequest, match="which is b/E: name that one"):
        joined(parts, {"b/E": "a/E", "a/E": "b/E"})
    other = msgspec.structs.replace(parts["b"], network=lattice(
        Problem(("E",), {"E": Option(("E",), 2)}, {"img": RequestType(("E",), 1.0)}), lambda *_: 1.0
    ))  # fmt: skip
    with pytest.raises(BadRequest, match="they take 2 and 1 GPUs"):
        joined({"a": parts["a"], "b": other}, {"b/E": "a/E"})
    with pytest.raises(BadRequest, match="the rate of model a is nan"):
        joined({"a": Part(network(), float("nan"))})


# Baselines


def stages(tau, merged=1.0):
    options = every(dict.fromkeys("EPD", 1.0), {"": Gpu(80.0)}, only=["E", "P", "D", "EP", "ED"])
    asked = Problem(tuple("EPD"), options, {"img": RequestType(tuple("EPD"), 1.0)}, (("E", "P"), ("P", "D")))
    return Solver(lattice(asked, lambda kind, name, role: (merged if "+" in name else 1) * sum(tau[p] for p in role)))


STAGES = {"E": "E", "P": "P", "D": "D", "EP": "E+P", "ED": "E+D"}


def test_three_stages_are_divided_by_their_work():
    solver = stages({"E": 1.0, "P": 1.0, "D": 2.0}, merged=1.5)

    assert baselines.triinfer(solver.frame, STAGES, 8) == ("E+P+D", {"E": 2, "P": 2, "D": 4}, pytest.approx(2.0))


def test_the_heuristic_is_never_better_than_the_optimum():
    for tau in ({"E": 0.3, "P": 1.0, "D": 2.2}, {"E": 1.7, "P": 0.2, "D": 0.9}):
        solver = stages(tau, merged=1.02)
        for count in (4, 7, 12):
            _, replicas, rate = baselines.triinfer(solver.frame, STAGES, count)

            assert sum(replicas.values()) == count
            assert rate <= solver.most(Terms(gpus={"": count})).rate * (1 + 1e-6)


def test_a_ceiling_for_each_stage_is_optimal_where_there_is_one_path():
    solver = Solver(network(alpha=50))
    for rate in (0.9, 2.3, 5.0):
        assert baselines.modserve(solver.frame, rate) == solver.least(rate, Terms(without=("EL",))).replicas
    assert baselines.modserve(solver.frame, 2.0, {"E": 0.5}) == {"E": 1, "L": 2}
    assert baselines.modserve(solver.frame, 2.3, {"E": 0.5}) == {"E": 2, "L": 2}


def test_baselines_without_their_options_say_so():
    with pytest.raises(BadRequest, match="no option is named for stage P"):
        baselines.triinfer(Solver(network()).frame, {"E": "E"}, 4)
    with pytest.raises(BadRequest, match="too few for three stages"):
        baselines.triinfer(Solver(network()).frame, STAGES, 2)
    with pytest.raises(Infeasible, match="no stage runs L alone"):
        baselines.modserve(Solver(network()).frame, 1.0, stages=["E"])


def test_a_monolith_is_one_of_the_answers():
    solver = Solver(network(alpha=1.0))

    replicas, rate = baselines.monolith(solver.frame, 5)

    assert replicas == {"EL": 5}
    assert rate == pytest.approx(solver.most(Terms(gpus={"": 5})).rate)


# Tails


def test_more_replicas_may_always_do_more():
    for way in utilisation.UTILISATION:
        work = utilisation.admissible(way, 20)

        assert list(work) == sorted(work)
        assert all(each <= count for count, each in enumerate(work, 1))
    assert utilisation.admissible("shortest-queue", 3) == pytest.approx((0.49, 1.44, 3 * (0.72 + 0.87) / 2))
    with pytest.raises(BadRequest, match="'best' is no way to choose"):
        utilisation.admissible("best", 3)


# Explanations


def test_an_explanation_tells_load_bottleneck_and_what_else_would_do():
    solver, terms = Solver(network()), Terms(gpus={"": 7})
    solution = solver.most(terms)

    found = explain(solver, solution, terms)

    assert found.options.keys() == solution.replicas.keys()
    assert all(0 < use.utilisation <= 1 + 1e-6 for use in found.options.values())
    assert found.bottlenecks
    assert all(found.options[name].utilisation == pytest.approx(1) for name in found.bottlenecks)
    assert found.distance == pytest.approx(solution.bound / solution.rate - 1)
    for other in found.alternatives:
        assert not other.possible or other.rate <= solution.rate * (1 + 1e-6)
        assert other.without not in other.replicas
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_one_more_replica_is_worth_what_it_is_said_to_be():
    solver, terms = Solver(network(alpha=9)), Terms(gpus={"": 5})
    solution = solver.most(terms)

    worth = {name: use.worth for name, use in explain(solver, solution, terms).options.items()}

    name = max(worth, key=lambda each: worth[each])
    more = baselines.served(solver.frame, {**solution.replicas, name: solution.replicas[name] + 1})
    assert solution.rate < more <= solution.rate + worth[name] + 1e-9


def test_what_cannot_be_without_an_option_is_said():
    solver, terms = Solver(network(alpha=9)), Terms(gpus={"": 5}, without=("EL",))

    found = explain(solver, solver.least(2.0, terms), terms, alternatives=2)

    assert [(other.without, other.possible) for other in found.alternatives] == [("L", False), ("E", False)]


def test_the_paths_of_an_answer_are_those_that_a_plan_carries():
    solution = Solver(worlds.omni_network(2)).most(Terms(gpus={"": 8}))

    paths = solution.paths()

    for kind, found in paths.items():
        assert all(isinstance(path, Path) for path in found)
        assert choose(found, 0.5) in found
        assert sum(path.rate for path in found) == pytest.approx(sum(f.rate for f in solution.flows if f.type == kind))
