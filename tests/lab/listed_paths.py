"""Networks of listed paths: one arc from nothing to everything for each path. The paper's form of the problem."""

from collections.abc import Iterator, Mapping, Sequence

from omnibus_planner.solve.flow_network import Arc, ComponentSets, Network, Use
from omnibus_planner.solve.problem import PlanningProblem, check_amount, check_problem, require

#: Seconds per request of a request type, the number of its path and an option. Absent: 0.
PathSeconds = Mapping[tuple[str, int, str], float]


def listed_paths(
    problem: PlanningProblem, paths: Mapping[str, Sequence[Sequence[str]]], seconds: PathSeconds
) -> Network:
    """Build the network of listed paths only: option names in the order of execution.

    If a path visits an option twice, its seconds are those of both visits. Raises ``BadRequest``.
    """
    check_problem(problem)
    _check_rows(problem, paths, seconds)
    bits, number, arcs = ComponentSets(problem), {name: at for at, name in enumerate(problem.options)}, []
    for kind, (name, declared) in enumerate(problem.types.items()):
        whole = bits.to_mask(declared.components)
        for index, path in enumerate(paths.get(name, ())):
            uses: list[Use] = []
            for option, role in _path_roles(problem, bits, name, path):
                again = any(use.option == number[option] for use in uses)
                spent = 0.0 if again else float(seconds.get((name, index, option), 0.0))
                uses.append(Use(number[option], spent, role))
            arcs.append(Arc(kind, 0, whole, tuple(uses)))
    shares = tuple(float(kind.share) for kind in problem.types.values())
    whole_of = tuple(bits.to_mask(kind.components) for kind in problem.types.values())
    return Network(dict(problem.options), tuple(problem.types), shares, whole_of, tuple(arcs))


def _path_roles(
    problem: PlanningProblem, bits: ComponentSets, kind: str, path: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each stop of a path with its components: those of the option that are not done and can run."""
    whole, done, said = (
        bits.to_mask(problem.types[kind].components),
        0,
        f"path {' > '.join(path)} of request type {kind}",
    )
    for option in path:
        require(option in problem.options, f"{said} uses option {option!r}, which is not declared")
        left = bits.to_mask(problem.options[option].components) & whole & ~done
        require(bool(left), f"{said} has nothing left to run on {option}")
        role = bits.runnable_part(left, done, whole)
        require(bool(role), f"{said} runs {option} before what it waits for")
        yield option, bits.component_names(role)
        done |= role
    require(done == whole, f"{said} does not run {', '.join(bits.component_names(whole & ~done))}")


def _check_rows(problem: PlanningProblem, paths: Mapping[str, Sequence[Sequence[str]]], seconds: PathSeconds) -> None:
    for name in paths:
        require(name in problem.types, f"paths of {name!r}, which is no request type")
    for (kind, index, option), spent in seconds.items():
        said = f"seconds of option {option} on path {index} of {kind}"
        require(kind in paths and 0 <= index < len(paths[kind]), f"{said}: there is no such path")
        require(option in paths[kind][index], f"{said}: the path does not use it")
        check_amount(spent, said)
