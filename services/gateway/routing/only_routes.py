"""Routes of requests for which nothing is to be chosen: one path, and one executor of each option.

They are found once and hold until an executor comes, leaves or changes its state; that none has fallen silent is looked
at each time.
"""

from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from services.gateway.routing.assignment import MAX_CACHED_SHAPES, Assignment, ModelPart
from services.gateway.routing.executors import ExecutorEntry, ExecutorTable
from services.gateway.routing.nearness import Nearness


class ExecutorRoute(NamedTuple):
    """A path with its executors filled in, per node, and the tokens that each node counts for there.

    When several models run the graph, ``path`` is ``a=E>L,b=L`` and options are ``model/option``.
    """

    path: str
    options: tuple[str, ...]
    executors: tuple[str, ...]
    work: tuple[float, ...]


class _KnownRoute(NamedTuple):
    """A route, of which graph it is, and the executors that it holds for."""

    parts: tuple[ModelPart, ...]
    work: Sequence[int]
    version: int  # of the table of executors
    members: Sequence[ExecutorEntry]
    route: ExecutorRoute


class OnlyRoutes:
    """Remembers the route of the last graph of each model and request type."""

    def __init__(self, members: ExecutorTable, nearness: Nearness | None) -> None:
        self._members = members
        self._nearness = nearness
        self._known: dict[tuple[str, str], _KnownRoute] = {}

    def clear(self) -> None:
        """Forget all: another plan is in force."""
        self._known.clear()

    def find(self, assignment: Assignment, work: Sequence[int]) -> ExecutorRoute | None:
        """Return the route of ``assignment``, if it was found before and no other one can be better now."""
        known = self._known.get((assignment.model, assignment.kind))
        if (
            known is None
            or known.parts is not assignment.parts
            or known.version != self._members.version
            or known.work != work
            or (self._nearness is not None and self._nearness.any_draining)
        ):
            return None
        now = monotonic()
        for member in known.members:
            if not member.is_fit(now):
                return None
        return known.route

    def keep(
        self, assignment: Assignment, work: Sequence[int], members: Sequence[ExecutorEntry], route: ExecutorRoute
    ) -> None:
        """Remember ``route`` through ``members``, the only executors of their options."""
        if len(self._known) >= MAX_CACHED_SHAPES:
            self._known.clear()
        key = assignment.model, assignment.kind
        self._known[key] = _KnownRoute(assignment.parts, work, self._members.version, members, route)
