"""Cache of routes without alternatives: one path, and one executor for each option.

A route is valid until an executor joins, leaves or changes its state. Each lookup checks that none has fallen silent.
"""

from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from omnibus_gateway.routing.assignment import MAX_CACHED_SHAPES, Assignment, ModelPart
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.nearness import Nearness


class ExecutorRoute(NamedTuple):
    """A path with the executor and the tokens of each node.

    When several models run the graph, ``path`` is ``a=E>L,b=L`` and options are ``model/option``.
    """

    path: str
    options: tuple[str, ...]
    executors: tuple[str, ...]
    work: tuple[float, ...]


class _KnownRoute(NamedTuple):
    """A cached route with its graph and executors."""

    parts: tuple[ModelPart, ...]
    work: Sequence[int]
    version: int  # of the table of executors
    members: Sequence[ExecutorEntry]
    route: ExecutorRoute


class OnlyRoutes:
    """Cache of the last graph's route for each model and request type."""

    def __init__(self, members: ExecutorTable, nearness: Nearness | None) -> None:
        self._members = members
        self._nearness = nearness
        self._known: dict[tuple[str, str], _KnownRoute] = {}

    def clear(self) -> None:
        """Drop all routes, because another plan is in force."""
        self._known.clear()

    def find(self, assignment: Assignment, work: Sequence[int]) -> ExecutorRoute | None:
        """Return the cached route of ``assignment`` if none can be better."""
        cached_route = self._known.get((assignment.model, assignment.kind))
        if (
            cached_route is None
            or cached_route.parts is not assignment.parts
            or cached_route.version != self._members.version
            or cached_route.work != work
            or (self._nearness is not None and self._nearness.any_draining)
        ):
            return None
        now = monotonic()
        for member in cached_route.members:
            if not member.is_fit(now):
                return None
        return cached_route.route

    def keep(
        self, assignment: Assignment, work: Sequence[int], members: Sequence[ExecutorEntry], route: ExecutorRoute
    ) -> None:
        """Cache ``route`` through ``members``, the only executors of their options."""
        if len(self._known) >= MAX_CACHED_SHAPES:
            self._known.clear()
        key = assignment.model, assignment.kind
        self._known[key] = _KnownRoute(assignment.parts, work, self._members.version, members, route)
