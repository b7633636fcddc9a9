"""Bounds that no deployment can beat, and the distance of each option from them: shortest paths, no solver.

Without whole numbers a request of type t takes at least d_t GPU-seconds: the shortest path through its
network when an arc costs c_s * sec. So R requests per second take g*R GPUs, g = sum of pi_t * d_t.
A replica of option s does at most e_s GPUs' worth of that, e_s = the largest progress per second over
its arcs; the rest, c_s - e_s, is waste that no routing avoids. A deployment with one replica of s needs
g*R + waste_s GPUs, so an option whose waste is more than is left over takes part in no optimum.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.planner.solve.flow_network import Arc, Network
from services.planner.solve.highs import Vector


@dataclass(frozen=True)
class Bound:
    """``each``: GPUs (or price) per req/s that all deployments take; inf when some type has no path.
    ``waste``: what of one replica of each option is lost at least."""

    each: float
    waste: Vector


def compute_bound(network: Network, mix: Sequence[float], prices: Vector) -> Bound:
    """``prices`` of one replica of each option: its GPUs, or what it costs."""
    from_start, to_end = _prices_from_start(network, prices), _prices_to_end(network, prices)
    each = sum(
        share * from_start.get((kind, whole), np.inf)
        for kind, (share, whole) in enumerate(zip(mix, network.whole, strict=True))
        if share > 0
    )
    ahead, behind = np.zeros(len(prices)), np.zeros(len(prices))
    for arc in network.arcs:
        if mix[arc.kind] > 0 and (arc.kind, arc.head) in to_end:
            made = from_start[arc.kind, arc.head] - from_start[arc.kind, arc.tail]
            _update_progress(ahead, arc, made, prices)
            _update_progress(behind, arc, to_end[arc.kind, arc.tail] - to_end[arc.kind, arc.head], prices)
    return Bound(float(each), prices - np.minimum(prices, np.minimum(ahead, behind)))


def _update_progress(best: Vector, arc: Arc, made: float, prices: Vector) -> None:
    total = sum(prices[use.option] * use.seconds for use in arc.uses)
    for use in arc.uses:
        if use.seconds > 0:
            others = total - prices[use.option] * use.seconds
            best[use.option] = max(best[use.option], (made - others) / use.seconds)


def _arc_cost(arc: Arc, prices: Vector) -> float:
    return float(sum(prices[use.option] * use.seconds for use in arc.uses))


def _prices_from_start(network: Network, prices: Vector) -> dict[tuple[int, int], float]:
    """Least price to finish each set of components; arcs come with few finished components first."""
    found = {(kind, 0): 0.0 for kind in range(len(network.types))}
    for arc in network.arcs:
        spent = found[arc.kind, arc.tail] + _arc_cost(arc, prices)
        if spent < found.get((arc.kind, arc.head), np.inf):
            found[arc.kind, arc.head] = spent
    return found


def _prices_to_end(network: Network, prices: Vector) -> dict[tuple[int, int], float]:
    """Least price from each set of finished components to the end, where there is a way."""
    found = dict.fromkeys(enumerate(network.whole), 0.0)
    for arc in reversed(network.arcs):
        if (arc.kind, arc.head) in found:
            spent = found[arc.kind, arc.head] + _arc_cost(arc, prices)
            if spent < found.get((arc.kind, arc.tail), np.inf):
                found[arc.kind, arc.tail] = spent
    return found


def unreached_types(network: Network, mix: Sequence[float], arcs: Iterable[int]) -> list[str]:
    """Request types with a share that no path over these arcs (by number, in ascending order) serves."""
    reached = {(kind, 0) for kind in range(len(network.types))}
    for at in arcs:
        arc = network.arcs[at]
        if (arc.kind, arc.tail) in reached:
            reached.add((arc.kind, arc.head))
    return [
        network.types[kind]
        for kind, whole in enumerate(network.whole)
        if mix[kind] > 0 and (kind, whole) not in reached
    ]
