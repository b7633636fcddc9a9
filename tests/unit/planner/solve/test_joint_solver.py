"""Models that share no option, planned together: each answer against every replica vector and against one program."""

import random

import msgspec
import pytest

from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_network import Network
from omnibus_planner.solve.joint_solver import JointSolver
from omnibus_planner.solve.multi_model import JointModel, join_networks
from omnibus_planner.solve.network_parts import split_network
from omnibus_planner.solve.problem import Infeasible, SolverOption
from omnibus_planner.solve.replan import replan_deployment
from omnibus_planner.solve.solver import Solver
from tests.unit.planner.solve import worlds


class DrawnModels:
    """Two or three random models with their rates, and the rate of each model's replica vectors."""

    def __init__(self, seed: int, gpus: int) -> None:
        dice = random.Random(f"joint {seed}")
        self.worlds = [worlds.make_world(dice.randrange(1000)) for _ in range(dice.choice((2, 2, 3)))]
        self.weights = [dice.uniform(0.3, 3.0) for _ in self.worlds]
        self.gpus = gpus
        self.network = join_networks({
            f"m{at}": JointModel(worlds.build_arcs(world), weight)
            for at, (world, weight) in enumerate(zip(self.worlds, self.weights, strict=True))
        })  # fmt: skip

    def best_rates(self) -> list[list[float]]:
        """Return the highest rate of each model by its GPUs, over every replica vector."""
        found = []
        for world, weight in zip(self.worlds, self.weights, strict=True):
            best = [0.0] * (self.gpus + 1)
            for vector, rate in world.roughly(self.gpus).items():
                cost = world.cost(vector)
                best[cost] = max(best[cost], rate / weight)
            found.append([max(best[: count + 1]) for count in range(self.gpus + 1)])
        return found

    def most(self) -> float:
        """Return the highest rate over every division of the GPUs."""
        *others, last = self.best_rates()
        known = last
        for rates in others:
            known = [
                max(min(rates[mine], known[count - mine]) for mine in range(count + 1))
                for count in range(self.gpus + 1)
            ]
        return known[self.gpus]

    def least_gpus(self, rate: float) -> int:
        return sum(
            next(count for count, each in enumerate(rates) if each >= rate * (1 - 1e-7)) for rates in self.best_rates()
        )


@pytest.mark.parametrize("seed", range(24))
def test_joint_answers_are_those_of_every_replica_vector(seed: int):
    models = DrawnModels(seed, gpus=4 + seed % 4)
    solver, terms = JointSolver(models.network), Terms(gpus={"": models.gpus}, within=60.0)
    assert solver.is_divisible(solver.create_run(terms))

    most = solver.solve_most(terms)

    assert most.rate == pytest.approx(models.most(), rel=1e-6, abs=1e-9)
    if most.rate == 0:
        return
    assert most.proven
    assert most.gpus == models.least_gpus(most.rate)
    assert most.capacity >= most.rate * (1 - 1e-6)
    for share in (1.0, 0.7):
        assert solver.solve_least(share * most.rate, terms).gpus == models.least_gpus(share * most.rate)
    with pytest.raises(Infeasible):
        solver.solve_least(1.01 * most.rate, terms)


def draw_terms(seed: int, network: Network) -> Terms:
    """Return terms of all kinds that parts have their share of."""
    dice = random.Random(f"terms {seed}")
    mixes = [{kind: dice.uniform(0.1, 1.0) for kind in network.types} for _ in range(2)]
    names = list(network.options)
    return Terms(
        gpus={"": 9},
        running={dice.choice(names): 2} if seed % 2 else None,
        scenarios=tuple(mixes) if dice.random() < 0.6 else (),
        admissible={name: (0.7, 1.5, 2.4) for name in names if dice.random() < 0.3},
        covers=((dice.choice(names),),) if dice.random() < 0.5 else (),
        within=60.0,
    )


@pytest.mark.parametrize("seed", range(12))
def test_parts_find_what_one_program_finds(seed: int):
    network = DrawnModels(seed, gpus=9).network
    terms = draw_terms(seed, network)

    joint, one = JointSolver(network).solve_most(terms), Solver(network).solve_most(terms)

    assert joint.rate == pytest.approx(one.rate, rel=1e-6, abs=1e-9)
    assert joint.proven
    if one.rate > 0:
        rate = 0.8 * one.rate
        joint, one = JointSolver(network).solve_least(rate, terms), Solver(network).solve_least(rate, terms)
        assert (joint.cost, joint.executor_count) == (one.cost, one.executor_count)
        assert joint.spawned == one.spawned


def test_flows_of_a_joint_answer_add_up_to_the_rate_of_each_model():
    models = DrawnModels(3, gpus=8)

    solution = JointSolver(models.network).solve_most(Terms(gpus={"": 8}))

    for at, weight in enumerate(models.weights):
        rate = sum(flow.rate for flow in solution.flows if flow.type.startswith(f"m{at}/"))
        assert rate == pytest.approx(solution.rate * weight)


def test_models_that_share_an_option_are_one_part():
    network = worlds.build_arcs(worlds.make_world(1))
    name = network.option_names[0]
    parts = {"a": JointModel(network, 1.0), "b": JointModel(network, 1.0)}

    apart, shared = join_networks(parts), join_networks(parts, {f"b/{name}": f"a/{name}"})

    assert [len(part.options) for part in split_network(apart, ())] == [len(network.options)] * 2
    assert split_network(shared, ()) == []
    assert split_network(apart, [(f"a/{name}", f"b/{name}")]) == []


def make_typed_network(*kinds: str) -> Network:
    """Return two equal models; options of the second are for the GPU types ``kinds``, those of the first for h."""
    network = worlds.build_arcs(worlds.make_world(4))
    network = join_networks({"a": JointModel(network, 1.0), "b": JointModel(network, 1.0)})
    half = len(network.options) // 2
    options = {
        name: msgspec.structs.replace(option, gpu="h" if at < half else kinds[at % len(kinds)])
        for at, (name, option) in enumerate(network.options.items())
    }
    return Network(options, network.types, network.shares, network.whole, network.arcs)


@pytest.mark.parametrize("kinds", [("h",), ("l",), ("h", "l")])
def test_models_divide_gpus_of_their_own_types(kinds: tuple[str, ...]):
    network, terms = make_typed_network(*kinds), Terms(gpus={"h": 6, "l": 5}, within=60.0)

    joint, one = JointSolver(network).solve_most(terms), Solver(network).solve_most(terms)

    assert joint.rate == pytest.approx(one.rate, rel=1e-6)
    assert (joint.proven, joint.gpus) == (True, one.gpus)


def test_prices_that_differ_from_gpus_stay_within_the_gpus():
    network = make_typed_network("h")
    options: dict[str, SolverOption] = {
        name: msgspec.structs.replace(option, price=1.0 + at)
        for at, (name, option) in enumerate(network.options.items())
    }
    network = Network(options, network.types, network.shares, network.whole, network.arcs)
    terms = Terms(gpus={"h": 6}, within=60.0)
    rate = Solver(network).solve_most(terms).rate

    for share in (1.0, 0.6):
        joint, one = JointSolver(network), Solver(network)
        assert joint.solve_least(share * rate, terms).cost == pytest.approx(one.solve_least(share * rate, terms).cost)


def test_a_question_that_ran_before_has_the_same_answer_without_an_option():
    models = DrawnModels(5, gpus=9)
    solver, terms = JointSolver(models.network), Terms(gpus={"": 9}, within=60.0)
    option = next(iter(solver.solve_most(terms).replicas))
    changed = msgspec.structs.replace(terms, without=(option,))

    again = solver.solve_most(changed)

    assert again == JointSolver(models.network).solve_most(changed)
    assert solver.solve_most(terms) == JointSolver(models.network).solve_most(terms)


def test_replanning_many_models_starts_as_few_replicas_as_a_full_solve():
    models = DrawnModels(7, gpus=12)
    solver = JointSolver(models.network)
    running = solver.solve_least(1.0, Terms()).replicas

    replanned = replan_deployment(solver, 1.3, running)

    assert replanned.spawned == Solver(models.network).solve_least(1.3, Terms(running=running)).spawned
