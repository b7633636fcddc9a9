"""Spare capacity of executors: whether work without a client may run now."""

from collections.abc import Callable, Iterable, Sequence

from omnibus.graph import Invocation
from omnibus_gateway.request.request import RequestFactory
from omnibus_gateway.routing.executors import ExecutorEntry
from omnibus_gateway.routing.router import Router

#: Seconds between two checks for room.
LOOK_SECONDS = 0.01
#: Seconds without comparisons after one without room.
PAUSE_SECONDS = 1.0

#: Model, and one of its deployment options.
Place = tuple[str, str]


def invocation_places(invocations: Iterable[Invocation]) -> set[Place]:
    """Return the models and options that run ``invocations``."""
    return {
        (node.model or invocation.model, option)
        for invocation in invocations
        for node, option in zip(invocation.nodes, invocation.options, strict=True)
    }


class SpareRoom:
    """Spare capacity of the executors in ``router``; ``count_waiting`` counts waiting requests at this gateway."""

    def __init__(self, router: Router, count_waiting: Callable[[], int]) -> None:
        self._router = router
        self._count_waiting = count_waiting

    def is_free(self, places: Iterable[Place], own_count: int = 0) -> bool:
        """Return True if nothing waits and executors are less than half full.

        ``places`` are their models and options. ``own_count`` of their invocations are comparisons, which do not count.
        """
        return not self._count_waiting() and all(
            _has_room(self._router.serving_executors(model, option), own_count) for model, option in places
        )


def waiting_counter(runs: RequestFactory) -> Callable[[], int]:
    """Return a function that counts waiting requests at this gateway."""

    def count_waiting() -> int:
        queues = runs.admission.queues() if runs.admission is not None else ()
        return runs.room.waiting + sum(queue.fair.waiting for queue in queues)

    return count_waiting


def _has_room(members: Sequence[ExecutorEntry], own_count: int) -> bool:
    if any(member.drain.overloaded for member in members):
        return False
    users = sum(member.own + member.foreign for member in members) - own_count
    return users < sum(max(1, member.status.slots // 2) for member in members)
