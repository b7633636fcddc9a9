"""Preference for executors on the node that holds their inputs.

A reader views a tensor on its own node, and copies one from another node over the network. So among executors with
nearly the same work, the gateway prefers the node that holds most of the inputs. Inputs lie on the executors of earlier
stages, or on this gateway's node, which holds the client's media. Otherwise work decides: queueing after another
request costs more than most transfers. Draining nodes, and pairs of nodes that cannot reach each other, are avoided if
there is a choice.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from omnibus.cluster.nodes import NodeDirectory
from omnibus.errors import StageUnavailable
from omnibus.graph import GraphNode
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable

#: Cuts that one search for a route avoids: each doubles the number of routes to try.
_MAX_AVOIDED_CUTS = 4


class Route(Protocol):
    """The executor of each node of a graph."""

    @property
    def executors(self) -> tuple[str, ...]: ...


_Route = TypeVar("_Route", bound=Route)


class Nearness:
    """Chooses among executors by the location of their inputs."""

    def __init__(self, home: str, members: ExecutorTable, nodes: NodeDirectory, slack: float) -> None:
        """Configure the gateway's node, ``home``, and the tolerance for a higher load.

        ``slack`` is the work by which a near executor may exceed the least, in mean invocations of its option.
        """
        self._home = home
        self._members = members
        self._nodes = nodes
        self._slack = slack

    @property
    def any_draining(self) -> bool:
        """True while a node drains."""
        return bool(self._nodes.draining)

    def without_draining(self, members: list[ExecutorEntry]) -> list[ExecutorEntry]:
        """Drop executors on draining nodes, unless there are no others."""
        draining = self._nodes.draining
        return [member for member in members if member.status.node not in draining] or members if draining else members

    def count_sources(
        self, nodes: Sequence[GraphNode], readers: Sequence[int], executors: Sequence[str]
    ) -> Mapping[str, int]:
        """Count the inputs of the graph nodes ``readers`` by machine, if known.

        Inputs of the request itself lie on the gateway's node. Inputs from stages that are not placed yet do not count.
        """
        sources: Counter[str] = Counter()
        for reader in readers:
            if not nodes[reader].uses:
                sources[self._home] += 1
            for source, _ in nodes[reader].uses:
                member = self._members.get(executors[source])
                if member is not None:
                    sources[member.status.node] += 1
        return sources

    def near_executors(
        self, serving: Sequence[ExecutorEntry], loads: Mapping[str, float], sources: Mapping[str, int]
    ) -> list[str]:
        """Return the executors with most of ``sources`` among the least loaded.

        ``sources`` counts inputs by node, ``loads`` is the work. The result is not empty, and in the order of
        ``loads``. Executors with the least work are always candidates.
        """
        least = min(loads.values())
        limit = least + self._slack * serving[0].pool.mean_work
        nodes = {member.status.id: member.status.node for member in serving}
        close = [id for id, load in loads.items() if load < limit or load == least]
        most = max(sources.get(nodes[id], 0) for id in close)
        return [id for id in close if sources.get(nodes[id], 0) == most]

    # Nodes that cannot reach each other

    @property
    def any_cut(self) -> bool:
        """True while a pair of nodes cannot reach each other."""
        return bool(self._nodes.cuts)

    def avoid_cuts(
        self, nodes: Sequence[GraphNode], find_route: Callable[[frozenset[str]], _Route], exclude: frozenset[str]
    ) -> _Route:
        """Return a route whose nodes can all reach each other; the first route if there is none.

        ``find_route`` excludes the executors passed to it, ``exclude`` at first. Its errors propagate.
        """
        first = find_route(exclude)
        return self._avoid_cuts(nodes, find_route, first, exclude, _MAX_AVOIDED_CUTS) or first

    def _avoid_cuts(
        self,
        nodes: Sequence[GraphNode],
        find_route: Callable[[frozenset[str]], _Route],
        route: _Route,
        exclude: frozenset[str],
        depth: int,
    ) -> _Route | None:
        cut = self._find_cut(nodes, route.executors)
        if cut is None:
            return route
        reader, source = cut
        for node in (source, reader):
            without = exclude | self._members.executors_on(node)
            if without == exclude or not depth:
                continue
            try:
                other = find_route(without)
            except StageUnavailable:
                continue
            other_route = self._avoid_cuts(nodes, find_route, other, without, depth - 1)
            if other_route is not None:
                return other_route
        return None

    def _find_cut(self, nodes: Sequence[GraphNode], executors: Sequence[str]) -> tuple[str, str] | None:
        """Return the first cut pair of nodes (reader, source) of a route; None without any."""
        members = [self._members.get(executor) for executor in executors]
        places = [member.status.node if member is not None else self._home for member in members]
        for graph_node, reader in zip(nodes, places, strict=True):
            pairs = [(reader, places[source]) for source, _ in graph_node.uses] or [(reader, self._home)]
            for pair in (*pairs, (self._home, reader)):
                if pair[0] != pair[1] and pair in self._nodes.cuts:
                    return pair
        return None


def are_apart(members: Sequence[ExecutorEntry]) -> bool:
    """Return True if ``members`` are on more than one node."""
    return len({member.status.node for member in members}) > 1
