"""Plans of models from the solver's solution: options with replicas, and paths with rates in req/s."""

from collections.abc import Iterable, Iterator, Mapping

from omnibus.plan import CPU, DeploymentOption, ModelPlan, Path, cut_paths, request_type
from omnibus_planner.optimize.candidates import option_service
from omnibus_planner.optimize.joint import PlanningOutcome
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.solve.flow_network import Arc, Network
from omnibus_planner.solve.solution import Flow


def build_plan(outcome: PlanningOutcome, name: str) -> ModelPlan:
    """Return the plan of model ``name``."""
    ready = outcome.ready[name]
    names = _plan_names(ready)
    types = dict(_plan_paths(outcome, name, names))
    replicas = {names[at]: count for at, count in outcome.solution.replicas.items() if at in names}
    widest = frozenset(part for option in replicas for part in ready.options[option].components)
    kind = request_type(ready.model.components, widest)
    if kind not in types and set(ready.model.required_components()) <= widest:
        types[kind] = (_cheapest_path(ready, kind, replicas),)
    used = {option for paths in types.values() for path in paths for option in path.options.values()}
    return ready.model.build_plan(dict(_plan_options(ready, replicas, used)), types)


def build_cells(outcome: PlanningOutcome, name: str) -> tuple[ModelPlan, ...]:
    """Return the plan of each cell of model ``name``, the largest first."""
    return tuple(
        build_plan(outcome._replace(solution=outcome.cell_solutions[size]), name)
        for size, count in sorted(outcome.cells.items(), reverse=True)
        for _ in range(count)
    )


def reference_plan(ready: ModelInputs) -> ModelPlan:
    """Return the model with one replica of every option.

    It helps to find equal executors in another plan.
    """
    return ready.model.build_plan(dict(_plan_options(ready, dict.fromkeys(ready.options, 1), set(ready.lent))), {})


def _plan_names(ready: ModelInputs) -> dict[str, str]:
    return {(name if name in ready.lent else f"{ready.name}/{name}"): name for name in ready.options}


def _plan_options(
    ready: ModelInputs, replicas: Mapping[str, int], used: Iterable[str]
) -> Iterator[tuple[str, DeploymentOption]]:
    for name, option in ready.options.items():
        runs = option_service(ready.model, option)
        if name in ready.lent:
            if name in used:
                yield name, DeploymentOption(option.components, runs, replicas=0, of=name)
        elif replicas.get(name, 0):
            gpus = 0 if option.gpu == CPU else option.gpus
            engine = option.engine or ready.model.engine
            yield (
                name,
                DeploymentOption(
                    option.components,
                    runs,
                    replicas[name],
                    gpus,
                    engine=engine,
                    gpu=option.gpu,
                    batch=option.batch,
                    checkpoint=option.checkpoint,
                    dtype=option.dtype,
                    vllm=option.vllm,
                ),
            )


def _plan_paths(
    outcome: PlanningOutcome, name: str, names: Mapping[str, str]
) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield the paths of each request type.

    They are those under the usual mix, or under the first mix with the type.
    """
    components = outcome.ready[name].model.components
    done: set[str] = set()
    for flows in (outcome.solution.flows, *outcome.solution.scenarios):
        mine: dict[str, list[Flow]] = {}
        for flow in flows:
            model, _, kind = flow.type.rpartition("/")
            if model == name:
                mine.setdefault(kind, []).append(flow)
        for kind in [each for each in mine if each not in done]:
            paths = [Path("", component_options(flow, names), flow.rate) for flow in mine[kind]]
            yield kind, cut_paths(paths, components, frozenset(kind.split("+")))
        done |= mine.keys()


def component_options(flow: Flow, names: Mapping[str, str]) -> dict[str, str]:
    """Return the option that runs each component of a path."""
    return {part: names[option] for option, parts in zip(flow.options, flow.components, strict=True) for part in parts}


# Request types without planned requests


def _cheapest_path(ready: ModelInputs, kind: str, replicas: Mapping[str, int]) -> Path:
    """Return the fastest path over running replicas, to serve ``kind`` too."""
    components = ready.model.components
    walk = _shortest_path(ready.build_network([kind], {}), {name for name, count in replicas.items() if count})
    found = {part: name for name, parts in walk for part in parts}
    if not found:  # the combination of the options was not measured
        for part in kind.split("+"):
            able = [name for name in ready.options_running(part) if replicas.get(name)]
            found[part] = next((name for name in able if name in found.values()), able[0])
    return cut_paths([Path("", found, 1.0)], components, frozenset(kind.split("+")))[0]


def _shortest_path(network: Network, allowed: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the options, and their components, along the shortest complete path; empty if there is none."""
    best: dict[int, tuple[float, int, tuple[Arc, ...]]] = {0: (0.0, 0, ())}
    for arc in network.arcs:  # those with few finished components come first
        names = {network.option_names[use.option] for use in arc.uses}
        if arc.tail not in best or not names <= allowed:
            continue
        spent, stops, walk = best[arc.tail]
        reached = spent + sum(use.seconds for use in arc.uses), stops + 1, (*walk, arc)
        if arc.head not in best or reached[:2] < best[arc.head][:2]:
            best[arc.head] = reached
    walk = best.get(network.whole[0], (0.0, 0, ()))[2]
    return [(network.option_names[use.option], use.role) for arc in walk for use in arc.uses]
