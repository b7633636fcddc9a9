"""Small random worlds, and models that tests share."""

import random
from itertools import combinations, pairwise

import msgspec

from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.flow_network import Network, build_lattice
from omnibus_planner.solve.problem import PlanningProblem, RequestType, SolverOption
from omnibus_planner.solve.solver import Solver
from tests.lab.listed_paths import listed_paths
from tests.unit.planner.solve.exact import SolverWorld


def make_world(seed: int) -> SolverWorld:
    """Return a world of two or three components. It has up to five options of 1 or 2 GPUs, and one to three request
    types.
    """
    dice = random.Random(seed)
    components = tuple("abc"[: dice.choice((2, 2, 3))])
    pairs = list(pairwise(components))
    order = tuple(pair for pair in pairs if dice.random() < 0.7)
    sets = [parts for size in range(2, len(components) + 1) for parts in combinations(components, size)]
    option_parts = [(part,) for part in components] + dice.sample(sets, min(len(sets), dice.randint(1, 2)))
    options = {"".join(parts): (parts, dice.choice((1, 1, 1, 2))) for parts in option_parts}
    kinds = [parts for size in range(1, len(components) + 1) for parts in combinations(components, size)]
    names = [components, *dice.sample(kinds[:-1], dice.randint(0, 2))]
    cuts = sorted(dice.sample(range(1, 1000), len(names) - 1))
    shares = [high - low for low, high in zip([0, *cuts], [*cuts, 1000], strict=True)]
    types = {
        "".join(kind): (kind, f"0.{share:03d}" if share < 1000 else "1")
        for kind, share in zip(names, shares, strict=True)
    }
    tau = {part: f"{dice.uniform(0.05, 2):.4f}" for part in components}
    alpha = {name: "1" if len(parts) == 1 else f"{dice.uniform(0.8, 1.6):.3f}" for name, (parts, _) in options.items()}
    return SolverWorld(components, order, options, types, tau, alpha)


def build_problem(world: SolverWorld) -> PlanningProblem:
    return PlanningProblem(
        world.components,
        {name: SolverOption(parts, gpus) for name, (parts, gpus) in world.options.items()},
        {name: RequestType(parts, float(share)) for name, (parts, share) in world.types.items()},
        world.order,
    )


def build_arcs(world: SolverWorld) -> Network:
    """Return all paths, not listed."""
    return build_lattice(build_problem(world), lambda kind, option, role: float(world.seconds(option, role)))


def list_paths(world: SolverWorld) -> Network:
    """Return the same paths, listed."""
    named_paths = {kind: [tuple(name for name, _ in path) for path in world.paths(kind)] for kind in world.types}
    seconds: dict[tuple[str, int, str], float] = {}
    for kind in world.types:
        for at, path in enumerate(world.paths(kind)):
            for name, role in path:
                seconds[kind, at, name] = seconds.get((kind, at, name), 0.0) + float(world.seconds(name, role))
    return listed_paths(build_problem(world), named_paths, seconds)


def make_model_problem(options, types, order=(("E", "L"),), **changes):
    components = tuple(dict.fromkeys(part for option in options.values() for part in option.components))
    kinds = {name: RequestType(tuple(parts), share) for name, (parts, share) in types.items()}
    return msgspec.structs.replace(PlanningProblem(components, options, kinds, order), **changes)


def make_solver(tau=None, alpha=1.0, gpus=1, **options):
    """Return a solver of an encoder and a thinker, alone and together; 70 % of requests have an image."""
    tau = tau or {"E": 0.5, "L": 0.3}
    all_options = {
        "E": SolverOption(("E",)),
        "L": SolverOption(("L",)),
        "EL": SolverOption(("E", "L"), gpus),
        **options,
    }
    planning_problem = make_model_problem(all_options, {"img": ("EL", 0.7), "txt": ("L", 0.3)})
    return Solver(
        build_lattice(
            planning_problem, lambda kind, name, role: (alpha if name == "EL" else 1) * sum(tau[p] for p in role)
        )
    )


def limit_gpus(count, **terms):
    return Terms(gpus={"": count}, **terms)


COMPONENTS = ("I", "V", "A", "T", "K", "G")
ORDER = (("I", "T"), ("V", "T"), ("A", "T"), ("T", "K"), ("K", "G"))


def make_omni(seed: int, degrees: tuple[int, ...] = (1,)) -> tuple[PlanningProblem, dict[str, float]]:
    """Return six components with all 63 options and eight request types. Also returns the factor on each option's
    seconds.

    Every request has an image; half have a video, half have audio, and a fifth get spoken answers.
    """
    dice = random.Random(seed)
    types = {}
    for extra in ("", "V", "A", "VA"):
        for speech in ("", "KG"):
            name = f"I{extra}T{speech}"
            types[name] = RequestType(tuple(name), 0.25 * (0.2 if speech else 0.8))
    options, alpha = {}, {}
    for size in range(1, 7):
        for parts in combinations(COMPONENTS, size):
            gpus = dice.choice(degrees)
            options["".join(parts)] = SolverOption(parts, gpus)
            alpha["".join(parts)] = (1 + 0.3 * dice.random() * dice.random() * (size - 1)) / gpus**0.9
    return PlanningProblem(COMPONENTS, options, types, ORDER), alpha


def omni_network(seed: int, degrees: tuple[int, ...] = (1,)) -> Network:
    """Return a network with seconds of each component between 0.05 and 2, log-uniform."""
    planning_problem, alpha = make_omni(seed, degrees)
    dice = random.Random(-seed - 1)
    tau = {part: 0.05 * 40 ** dice.random() for part in COMPONENTS}
    return build_lattice(planning_problem, lambda kind, option, role: alpha[option] * sum(tau[part] for part in role))
