"""Baselines of others for the same profile: each returns replicas, some with a plan's name."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from omnibus_planner.solve.flow_matrix import FlowMatrix
from omnibus_planner.solve.problem import Infeasible, check_amount, require

#: The goodput in req/s of replicas by option, from a replay of the history.
Replay = Callable[[Mapping[str, int]], float]


def served_rate(frame: FlowMatrix, replicas: Mapping[str, int]) -> float:
    """Return the req/s that ``replicas`` serve with the best routing."""
    unknown = sorted(set(replicas) - set(frame.network.option_names))
    require(not unknown, f"replicas of {', '.join(unknown)}, which are no options")
    supply = np.array([float(replicas.get(name, 0)) for name in frame.network.option_names])
    return frame.solve_flow(supply, frame.network.type_shares()).rate


def plan_monolith(frame: FlowMatrix, gpus: int) -> tuple[dict[str, int], float]:
    """Return replicas and rate of the best option with all components.

    It fills all GPUs; the rate is in req/s.
    """
    parts = {part for arc in frame.network.arcs for use in arc.uses for part in use.role}
    best: tuple[dict[str, int], float] = {}, 0.0
    for name, option in frame.network.options.items():
        if parts <= set(option.components) and option.gpus <= gpus:
            replicas = {name: gpus // option.gpus}
            best = max(best, (replicas, served_rate(frame, replicas)), key=lambda found: found[1])
    return best


def plan_triinfer(
    frame: FlowMatrix, stages: Mapping[str, str], instances: int, replay: Replay | None = None
) -> tuple[str, dict[str, int], float]:
    """Run TriInfer's Algorithm 2: the best of E+P+D, EP+D and ED+P.

    Returns its name, replicas and req/s. ``stages`` maps "E", "P", "D", "EP" and "ED" to options. ``instances`` are
    divided in proportion to the stages' work, each with at least one. ``replay`` returns the goodput of a method for
    the history; without it, the rate that the replicas serve counts. Merged instances take the sum of their stages'
    numbers, which is TriInfer's rule and not an optimum.
    """
    methods = triinfer_methods(frame, stages, instances)
    found = [
        (name, replicas, replay(replicas) if replay is not None else served_rate(frame, replicas))
        for name, replicas in methods.items()
    ]
    return max(found, key=lambda each: each[2])


def triinfer_methods(frame: FlowMatrix, stages: Mapping[str, str], instances: int) -> dict[str, dict[str, int]]:
    """Return the replicas of each TriInfer method whose options are in ``stages``."""
    require(instances >= 3, f"{instances} instances are too few for three stages")
    for stage in ("E", "P", "D"):
        require(stage in stages, f"no option is named for stage {stage}")
    work = [_option_work(frame, stages[stage]) for stage in "EPD"]
    encode, prefill, decode = _split_proportionally(instances, work)
    methods = {
        "E+P+D": {"E": encode, "P": prefill, "D": decode},
        "EP+D": {"EP": encode + prefill, "D": decode},
        "ED+P": {"ED": encode + decode, "P": prefill},
    }
    return {
        name: {stages[stage]: count for stage, count in method.items()}
        for name, method in methods.items()
        if method.keys() <= stages.keys()
    }


def _split_proportionally(count: int, work: Sequence[float]) -> list[int]:
    """Divide ``count`` in proportion to ``work``, rounded, each at least 1; the largest absorbs the rounding."""
    total = sum(work)
    parts = [max(1, round(count * each / total)) if total > 0 else 1 for each in work]
    while sum(parts) != count:
        largest = max(range(len(parts)), key=lambda at: parts[at])
        parts[largest] += 1 if sum(parts) < count else -1
    return parts


def _option_work(frame: FlowMatrix, option: str) -> float:
    """Return the option's work per request of the mix, in seconds.

    All requests with its components go there.
    """
    require(option in frame.network.option_numbers, f"there is no option {option}")
    at, network = frame.network.option_numbers[option], frame.network
    longest: dict[int, float] = {}
    for arc in network.arcs:
        for use in arc.uses:
            if use.option == at:
                longest[arc.kind] = max(longest.get(arc.kind, 0.0), use.seconds)
    return sum(network.shares[kind] * seconds for kind, seconds in longest.items())


def plan_modserve(
    frame: FlowMatrix, rate: float, capacity: Mapping[str, float] | None = None, stages: Sequence[str] | None = None
) -> dict[str, int]:
    """Apply ModServe's rule: ceil(load / capacity) replicas per stage.

    ``rate`` is in req/s. ``stages`` are options of one component each (default: all such options). ``capacity`` is the
    work of one replica within its latency target, in seconds per second (default 1). The result is optimal if each
    request type has only the path through these options.
    """
    check_amount(rate, "the rate")
    network = frame.network
    named = stages or [name for name, option in network.options.items() if len(option.components) == 1]
    parts = [network.options[name].components[0] for name in named if name in network.options]
    require(len(parts) == len(named), f"stages name options that there are not: {', '.join(named)}")
    require(len(set(parts)) == len(parts), "two options run the same component: name one stage for each")
    needed = {part for arc in network.arcs if network.shares[arc.kind] > 0 for use in arc.uses for part in use.role}
    if missing := needed - set(parts):
        raise Infeasible(f"no stage runs {', '.join(sorted(missing))} alone")
    found = {}
    for name in named:
        each = (capacity or {}).get(name, 1.0)
        require(each > 0, f"the capacity of {name} is {each}: it must be more than 0")
        work = rate * _option_work(frame, name)
        found[name] = math.ceil(work / each - 1e-9)
    return {name: count for name, count in found.items() if count}
