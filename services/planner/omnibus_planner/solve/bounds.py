"""Lower bounds of all deployments, and options' distances from them.

They follow from shortest paths. Without whole numbers, a request of type t takes at least d_t GPU-seconds. This is the
shortest path through its network if an arc costs c_s * sec. So R requests per second take g*R GPUs, g = sum of pi_t *
d_t.

A replica of option s does at most e_s GPUs' worth of that: e_s is the largest progress per second over its arcs. The
rest, c_s - e_s, is waste that no routing avoids. A deployment with one replica of s needs g*R + waste_s GPUs. So no
optimum has an option whose waste exceeds the GPUs that are left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from omnibus_planner.solve.flow_network import Arc, Network
from omnibus_planner.solve.highs import Vector


@dataclass(frozen=True)
class Bound:
    """Lower bound of the cost of all deployments.

    ``each`` is the number of GPUs (or the price) per req/s; inf if some type has no path. ``waste`` is the least loss
    of one replica of each option.
    """

    each: float
    waste: Vector


def compute_bound(network: Network, mix: Sequence[float], prices: Vector) -> Bound:
    """Compute the bound for ``mix``.

    ``prices`` are the GPUs or the cost of one replica of each option.
    """
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
    """Return the least price to finish each set of components. Arcs are sorted by finished components."""
    found = {(kind, 0): 0.0 for kind in range(len(network.types))}
    for arc in network.arcs:
        spent = found[arc.kind, arc.tail] + _arc_cost(arc, prices)
        if spent < found.get((arc.kind, arc.head), np.inf):
            found[arc.kind, arc.head] = spent
    return found


def _prices_to_end(network: Network, prices: Vector) -> dict[tuple[int, int], float]:
    """Return the least price from each set of components to the end.

    Sets without a path to the end are absent.
    """
    found = dict.fromkeys(enumerate(network.whole), 0.0)
    for arc in reversed(network.arcs):
        if (arc.kind, arc.head) in found:
            spent = found[arc.kind, arc.head] + _arc_cost(arc, prices)
            if spent < found.get((arc.kind, arc.tail), np.inf):
                found[arc.kind, arc.tail] = spent
    return found


def unreached_types(network: Network, mix: Sequence[float], arcs: Iterable[int]) -> list[str]:
    """Return the request types that no path over ``arcs`` serves.

    Types without a share do not count. ``arcs`` are numbers in ascending order.
    """
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
