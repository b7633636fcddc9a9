"""Network links between nodes in virtual time.

A sidecar pulls up to ``PULLS_AT_ONCE`` tensors of one node at a time, each over a separate connection. TCP divides the
link equally among them: processor sharing with a limit. Further ones wait for a connection, the oldest first. Small
tensors have separate connections and never wait.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from omnibus_planner.simulate.agenda import Agenda, Event

#: Connections between two sidecars in each direction (``OMNIBUS_SIDECAR_LINKS``).
PULLS_AT_ONCE = 4
#: GB up to which a tensor counts as small: 256 KiB.
SMALL_GB = 262144e-9


class Links(NamedTuple):
    """Links between nodes: fixed seconds of each pull, and GB/s by the names of the ends."""

    pull_seconds: float = 0.0
    gb_s: Callable[[str, str], float] = lambda start, end: 1.0


class NodeNetwork:
    """All links of a simulation, one per direction between two nodes."""

    def __init__(self, agenda: Agenda, links: Links) -> None:
        self._agenda = agenda
        self._links = links
        self._known: dict[tuple[str, str], _Link] = {}

    def send(self, start: str, end: str, gb: float, at: float, arrived: Event) -> None:
        """Send ``gb`` between nodes, and call ``arrived`` at the end.

        It leaves ``start`` at ``at``.
        """
        link = self._known.get((start, end))
        if link is None:
            link = self._known[start, end] = _Link(self._agenda, self._links.gb_s(start, end), self._links.pull_seconds)
        link.send(gb, at, arrived)


class _Pull:
    __slots__ = ("arrived", "left")

    def __init__(self, gb: float, arrived: Event) -> None:
        self.left = gb
        self.arrived = arrived


class _Link:
    """One direction of a link of ``gb_s``."""

    def __init__(self, agenda: Agenda, gb_s: float, pull_seconds: float) -> None:
        self._agenda = agenda
        self._gb_s = gb_s
        self._pull_seconds = pull_seconds
        self._moving: list[_Pull] = []
        self._waiting: deque[_Pull] = deque()
        self._at = 0.0  # time up to which transfers are counted
        self._number = 0  # of the next planned end; earlier plans are void

    def send(self, gb: float, at: float, arrived: Event) -> None:
        self._advance(at)
        pull = _Pull(gb, arrived)
        if gb <= SMALL_GB or len(self._moving) < PULLS_AT_ONCE:
            self._moving.append(pull)
            self._plan_end()
        else:
            self._waiting.append(pull)

    def _advance(self, at: float) -> None:
        if self._moving:
            moved = (at - self._at) * self._gb_s / len(self._moving)
            for pull in self._moving:
                pull.left -= moved
        self._at = at

    def _plan_end(self) -> None:
        self._number += 1
        if self._moving:
            number, least = self._number, min(pull.left for pull in self._moving)
            when = self._at + max(0.0, least) * len(self._moving) / self._gb_s
            self._agenda.add(when, lambda at: self._end_least(number, at))

    def _end_least(self, number: int, at: float) -> None:
        """Complete the pull with the least left, and equal ones."""
        if number != self._number:
            return
        self._advance(at)
        least = min(pull.left for pull in self._moving)
        ended = [pull for pull in self._moving if pull.left <= least]
        self._moving = [pull for pull in self._moving if pull not in ended]
        while self._waiting and len(self._moving) < PULLS_AT_ONCE:
            self._moving.append(self._waiting.popleft())
        self._plan_end()
        for pull in ended:
            self._agenda.add(at + self._pull_seconds, pull.arrived)
