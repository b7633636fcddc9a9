"""Measured bytes that a request moves from one component to another."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from omnibus.plan import request_type
from omnibus.profile import ModelProfile

#: Bytes of a GB, as networks count them.
_GB_BYTES = 1e9


class TensorHop(NamedTuple):
    """GB per request from one stop to a later one."""

    source: int
    target: int
    gb: float


class EdgeSizes:
    """GB per request on each edge of a model, by request type."""

    def __init__(self, components: tuple[str, ...], profile: ModelProfile) -> None:
        called = {name: request_type(components, frozenset(kind.components)) for name, kind in profile.types.items()}
        self._known: dict[tuple[str, str], dict[str, float]] = {}
        for edge in profile.edges:
            sizes = self._known.setdefault((edge.source, edge.target), {})
            sizes[called.get(edge.type, edge.type)] = edge.bytes / _GB_BYTES

    def edge_gb(self, kind: str, source: str, target: str) -> float:
        """Return the GB for a request of ``kind``.

        A type that was not measured has those of any type, else the mean of all types. An unknown edge has 0.
        """
        sizes: Mapping[str, float] = self._known.get((source, target), {})
        if not sizes:
            return 0.0
        return sizes.get(kind, sizes.get("", sum(sizes.values()) / len(sizes)))

    def path_hops(self, kind: str, stops: tuple[tuple[str, ...], ...]) -> Iterator[TensorHop]:
        """Yield the transfers between ``stops``.

        A stop is the components that one executor of a path runs.
        """
        for target, taking in enumerate(stops):
            for source, giving in enumerate(stops[:target]):
                size = sum(self.edge_gb(kind, one, other) for one in giving for other in taking)
                if size > 0:
                    yield TensorHop(source, target, size)

    def incoming_edges(self, parts: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return the edges into ``parts`` from other components."""
        return [edge for edge in self._known if edge[1] in parts and edge[0] not in parts]

    def outgoing_edges(self, parts: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return the edges from ``parts`` to other components."""
        return [edge for edge in self._known if edge[0] in parts and edge[1] not in parts]

    def largest_gb(self, source: str, target: str) -> float:
        """Return the GB of the request type with the most of them."""
        return max(self._known.get((source, target), {}).values(), default=0.0)
