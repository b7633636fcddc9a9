"""The answer: replicas, and the rate of each path. Data."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from omnibus.plan import Path
from omnibus_planner.solve.flow_network import Arc, Network
from omnibus_planner.solve.highs import Vector

#: Fraction of a type's rate; less on a path is a rounding error.
_RATE_TOLERANCE = 1e-9


class Flow(msgspec.Struct, frozen=True):
    """A path: options in the order of execution, their components and seconds per request, and its rate.

    The rate is in req/s.
    """

    type: str
    options: tuple[str, ...]
    components: tuple[tuple[str, ...], ...]
    seconds: tuple[float, ...]
    rate: float


class Solution(msgspec.Struct, frozen=True):
    """A deployment.

    ``rate`` is the planned rate and ``capacity`` the highest one, in req/s; flows add up to ``rate``. ``goal`` is
    "rate" (most requests) or "cost" (least GPUs or price). No deployment beats ``bound``, in req/s or cost by ``goal``.
    ``gap`` is the largest relative distance of a better deployment: 0 if ``proven``. If ``settled``, the order among
    equals is proven too. ``spawned`` counts new replicas compared to running ones. ``scenarios`` are the flows under
    further mixes.
    """

    goal: str
    rate: float
    capacity: float
    gpus: int
    cost: float
    replicas: dict[str, int]
    flows: tuple[Flow, ...]
    bound: float
    gap: float = 0.0
    proven: bool = True
    settled: bool = True
    spawned: int = 0
    scenarios: tuple[tuple[Flow, ...], ...] = ()

    @property
    def executor_count(self) -> int:
        return sum(self.replicas.values())

    def path_probabilities(self) -> dict[str, dict[str, float]]:
        """Return each request type's probabilities of paths, such as ``{"E>L": 0.7}`` (Figure 5)."""
        found: dict[str, dict[str, float]] = {}
        for flow in self.flows:
            paths, name = found.setdefault(flow.type, {}), ">".join(flow.options)
            paths[name] = paths.get(name, 0.0) + flow.rate
        return {kind: normalize_rates(paths) for kind, paths in found.items()}

    def plan_paths(self) -> dict[str, tuple[Path, ...]]:
        """Return the paths of each request type, as in a plan."""
        found: dict[str, list[Path]] = {}
        for flow in self.flows:
            runs = {part: option for option, parts in zip(flow.options, flow.components, strict=True) for part in parts}
            found.setdefault(flow.type, []).append(Path(">".join(flow.options), runs, flow.rate))
        return {kind: tuple(paths) for kind, paths in found.items()}


def normalize_rates(rates: Mapping[str, float]) -> dict[str, float]:
    """Return each rate as a fraction of their sum."""
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()} if total > 0 else dict.fromkeys(rates, 0.0)


def decompose_flow(network: Network, flow: Vector, rates: Sequence[float]) -> tuple[Flow, ...]:
    """Decompose the flow of each arc into paths.

    ``rates`` are those of the request types, in req/s; the paths of a type add up to its rate. Each walk goes from
    nothing to everything along the arcs with the largest flow, and subtracts the smallest of them. There are no cycles
    and each walk empties an arc, so this terminates.
    """
    left = np.array(flow, float)
    leaving: dict[tuple[int, int], list[int]] = {}
    for at, arc in enumerate(network.arcs):
        leaving.setdefault((arc.kind, arc.tail), []).append(at)
    found: list[Flow] = []
    for kind, rate in enumerate(rates):
        if rate > 0:
            found += _type_flows(network, kind, rate, left, leaving)
    return tuple(found)


def _type_flows(
    network: Network, kind: int, rate: float, left: Vector, leaving: Mapping[tuple[int, int], Sequence[int]]
) -> list[Flow]:
    walks: dict[tuple[int, ...], float] = {}
    while walk := _walk_path(network, kind, left, leaving, _RATE_TOLERANCE * rate):
        least = float(min(left[at] for at in walk))
        left[list(walk)] -= least
        walks[walk] = walks.get(walk, 0.0) + least
    total = sum(walks.values())
    return [
        _build_flow(network, [network.arcs[at] for at in walk], amount * rate / total) for walk, amount in walks.items()
    ]


def _walk_path(
    network: Network, kind: int, left: Vector, leaving: Mapping[tuple[int, int], Sequence[int]], nothing: float
) -> tuple[int, ...]:
    """Return the numbers of the arcs along a path with flow.

    It is empty if no path has flow.
    """
    at, walk = 0, []
    while at != network.whole[kind]:
        best = max(leaving.get((kind, at), ()), key=lambda arc: left[arc], default=None)
        if best is None or left[best] <= nothing:
            return ()
        walk.append(best)
        at = network.arcs[best].head
    return tuple(walk)


def _build_flow(network: Network, arcs: Sequence[Arc], rate: float) -> Flow:
    uses = [use for arc in arcs for use in arc.uses]
    return Flow(
        type=network.types[arcs[0].kind],
        options=tuple(network.option_names[use.option] for use in uses),
        components=tuple(use.role for use in uses),
        seconds=tuple(use.seconds for use in uses),
        rate=rate,
    )
