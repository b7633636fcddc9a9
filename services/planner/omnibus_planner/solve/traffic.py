"""Traffic between options as traffic between nodes, by the gateways' routing.

A gateway prefers an executor on the node that holds the bytes, within a bound of the least outstanding work. In the
model, all replicas of an option serve the same rate. Traffic stays on a node as far as both ends can keep it there. The
rest goes from the remaining senders to the remaining receivers in proportion. Each pair of options is separate. The
busier the receivers, the more requests go to the least busy one: in proportion to that, a fraction of them goes to any
receiver.
"""

from collections.abc import Mapping

#: GB/s that executors of one option send to those of another.
OptionTraffic = Mapping[tuple[str, str], float]
#: Fraction of the requests that goes to any receiver at full utilisation, from simulations of gateways.
BUSY_SPREAD = 0.6
#: Less than this fraction of the traffic between two options is a rounding error.
_SHARE_TOLERANCE = 1e-9


def crossing_shares(
    giving: Mapping[str, int], taking: Mapping[str, int], busy: float = 0.0
) -> dict[tuple[str, str], float]:
    """Return the fraction of traffic that crosses nodes, by pair of nodes.

    It flows from replicas ``giving`` to replicas ``taking``, by node. ``busy`` is the utilisation of the receivers;
    with 0 the result is the least crossing traffic.
    """
    given, taken = _replica_shares(giving), _replica_shares(taking)
    free = min(1.0, max(0.0, busy)) * BUSY_SPREAD
    found = {ends: (1 - free) * share for ends, share in _least_crossing(given, taken).items()}
    for start, sent in given.items() if free else ():
        for end, received in taken.items():
            if start != end:
                found[start, end] = found.get((start, end), 0.0) + free * sent * received
    return found


def least_crossing_share(giving: Mapping[str, int], taking: Mapping[str, int]) -> float:
    """Return the least fraction of traffic that crosses nodes, from replicas ``giving`` to replicas ``taking``."""
    given, taken = _replica_shares(giving), _replica_shares(taking)
    return sum(part - min(part, taken.get(node, 0.0)) for node, part in given.items()) if taken else 0.0


def _least_crossing(given: Mapping[str, float], taken: Mapping[str, float]) -> dict[tuple[str, str], float]:
    out = {node: part - min(part, taken.get(node, 0.0)) for node, part in given.items()}
    into = {node: part - min(part, given.get(node, 0.0)) for node, part in taken.items()}
    total = sum(out.values())
    if total <= _SHARE_TOLERANCE:
        return {}
    return {
        (start, end): sent * received / total
        for start, sent in out.items()
        for end, received in into.items()
        if sent * received > 0
    }


def _replica_shares(there: Mapping[str, int]) -> dict[str, float]:
    total = sum(there.values())
    return {node: count / total for node, count in there.items() if count}
