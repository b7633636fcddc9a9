"""Baselines of others for the same profile, for comparison: each returns replicas, or a plan's name and replicas."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from services.planner.solve.flow_matrix import FlowMatrix
from services.planner.solve.problem import Infeasible, check_amount, require

#: The goodput in req/s of replicas by option, from a replay of the history.
Replay = Callable[[Mapping[str, int]], float]


def served_rate(frame: FlowMatrix, replicas: Mapping[str, int]) -> float:
    """Return the rate that ``replicas`` serve with the best routing, in req/s."""
    unknown = sorted(set(replicas) - set(frame.network.option_names))
    require(not unknown, f"replicas of {', '.join(unknown)}, which are no options")
    supply = np.array([float(replicas.get(name, 0)) for name in frame.network.option_names])
    return frame.solve_flow(supply, frame.network.type_shares()).rate


def plan_monolith(frame: FlowMatrix, gpus: int) -> tuple[dict[str, int], float]:
    """The best option that runs everything alone, as often as it fits: its replicas and their req/s."""
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
    """TriInfer's Algorithm 2: its best of E+P+D, EP+D and ED+P, as name, replicas and req/s.

    ``stages`` names the option of each of "E", "P", "D", "EP" and "ED"; ``instances`` are divided by the
    stages' work, each with at least one. ``replay`` gives the goodput of each method for the history; without
    one it is what the replicas serve. That the merged instances take the sum of their stages' numbers is its rule,
    not an optimum.
    """
    methods = triinfer_methods(frame, stages, instances)
    found = [
        (name, replicas, replay(replicas) if replay is not None else served_rate(frame, replicas))
        for name, replicas in methods.items()
    ]
    return max(found, key=lambda each: each[2])


def triinfer_methods(frame: FlowMatrix, stages: Mapping[str, str], instances: int) -> dict[str, dict[str, int]]:
    """The replicas of each of TriInfer's methods whose options ``stages`` names, by the name of the method."""
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


def triinfer_shapes(instances: int) -> list[dict[str, int]]:
    """All that TriInfer's exhaustive search lists (section 5.4): instances by stage, each method with each ratio."""
    found: list[dict[str, int]] = []
    for first in range(1, instances):
        found += [{"EP": first, "D": instances - first}, {"ED": first, "P": instances - first}]
        found += [{"E": first, "P": then, "D": instances - first - then} for then in range(1, instances - first)]
    return found


def _split_proportionally(count: int, work: Sequence[float]) -> list[int]:
    """``count`` in proportion to ``work``, rounded, each at least 1; the largest takes what rounding leaves."""
    total = sum(work)
    parts = [max(1, round(count * each / total)) if total > 0 else 1 for each in work]
    while sum(parts) != count:
        largest = max(range(len(parts)), key=lambda at: parts[at])
        parts[largest] += 1 if sum(parts) < count else -1
    return parts


def _option_work(frame: FlowMatrix, option: str) -> float:
    """Seconds of work per request of the mix when all that needs the option's components goes there."""
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
    """ModServe's rule: ceil(load / capacity) replicas of each stage's option for ``rate`` req/s.

    ``stages`` are options of one component each (default: all such options); ``capacity`` is the work in
    seconds per second that one replica may be given within its latency target (default 1). Equals the
    optimum when each request type has the one path through these options.
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
