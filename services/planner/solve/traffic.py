"""Traffic between options to traffic between nodes, by the rule that gateways choose executors by.

A gateway prefers an executor on the node that holds the bytes, within a bound of the least outstanding work. Taken as:
all replicas of an option serve the same rate; what both ends can keep on one node stays there; what is left of the
givers goes to what is left of the takers in proportion. Each pair of options is looked at by itself. The busier takers
are, the more requests go where there is less to do: a part of them, in proportion to that, goes to any taker.
"""

from collections.abc import Mapping

#: GB/s that executors of one option send to those of another.
OptionTraffic = Mapping[tuple[str, str], float]
#: The part of the requests that goes to any taker where these are busy all of the time: gateways in simulation.
BUSY_SPREAD = 0.6
#: Less than this part of what flows between two options is rounding.
_SHARE_TOLERANCE = 1e-9


def crossing_shares(
    giving: Mapping[str, int], taking: Mapping[str, int], busy: float = 0.0
) -> dict[tuple[str, str], float]:
    """The part of what flows from replicas ``giving`` to replicas ``taking``, by node, from one node to another one.

    ``busy`` is the part of their time that the takers are busy; with 0 it is the least that crosses.
    """
    given, taken = _replica_shares(giving), _replica_shares(taking)
    free = min(1.0, max(0.0, busy)) * BUSY_SPREAD
    found = {ends: (1 - free) * share for ends, share in _least_crossing(given, taken).items()}
    for start, sent in given.items() if free else ():
        for end, received in taken.items():
            if start != end:
                found[start, end] = found.get((start, end), 0.0) + free * sent * received
    return found


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


def crossing_traffic(places: Mapping[str, Mapping[str, int]], traffic: OptionTraffic) -> dict[tuple[str, str], float]:
    """GB/s from one node to another with replicas at ``places``, by option and node."""
    found: dict[tuple[str, str], float] = {}
    for (source, target), rate in traffic.items():
        for pair, share in crossing_shares(places.get(source, {}), places.get(target, {})).items():
            found[pair] = found.get(pair, 0.0) + rate * share
    return found


def _replica_shares(there: Mapping[str, int]) -> dict[str, float]:
    total = sum(there.values())
    return {node: count / total for node, count in there.items() if count}
