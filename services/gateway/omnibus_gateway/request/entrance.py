"""Entrance of a request while executors are being added: it waits for room and is counted on arrival."""

from omnibus_gateway.pricing.quantities import Estimates
from omnibus_gateway.request.load_counters import CountedInvocation
from omnibus_gateway.request.load_report import LoadReporter
from omnibus_gateway.request.waiting_room import WaitingRoom
from omnibus_gateway.routing.assignment import Assignment


class Entrance:
    """Passage of a request through the ``WaitingRoom``, before its first segment."""

    def __init__(self, room: WaitingRoom, loads: LoadReporter) -> None:
        self._room = room
        self._loads = loads
        self._entered: tuple[Assignment, CountedInvocation] | None = None  # admitted, not sent yet

    async def wait(self, assignment: Assignment, estimates: Estimates, seconds_left: float) -> bool:
        """Wait while executors can still be added; returns True if it waited. Raises ``Overloaded``."""
        growth = self._room.growth(assignment)
        if growth is None:
            return False
        counted_invocation = self._loads.count_arrival(assignment, estimates)
        self._loads.count_waiting(counted_invocation, 1)
        try:
            await self._room.enter(assignment, growth, seconds_left)
        except BaseException as error:
            self._loads.count_failure(counted_invocation, error)
            raise
        finally:
            self._loads.count_waiting(counted_invocation, -1)
        self._entered = assignment, counted_invocation
        return True

    def leave(self) -> CountedInvocation | None:
        """Return the arrival counted before the wait, once; None if the request did not wait."""
        if self._entered is None:
            return None
        (assignment, counted_invocation), self._entered = self._entered, None
        self._room.leave_entrance(assignment)
        return counted_invocation
