"""Latency goals of a planned model: those of all requests, and those of some request types."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ModelGoals(NamedTuple):
    """Seconds that 99 of 100 requests keep, by figure (``omnibus.cluster.latency_histogram.FIGURES``).

    ``usual`` are for every request. ``types`` replace single figures of these, by the components that a request uses:
    ``vision`` is for each request with images, ``vision+talker`` for those with images that are answered in speech.
    """

    usual: Mapping[str, float] = {}
    types: Mapping[str, Mapping[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self.usual or self.types)

    def of_type(self, kind: str) -> dict[str, float]:
        """Return the goals of request type ``kind``, such as ``vision+thinker``.

        Of two that match, the one with more components counts, and of equal ones the later.
        """
        used, found = set(kind.split("+")), dict(self.usual)
        for parts in sorted(self.types, key=_count_components):
            if used.issuperset(parts.split("+")):
                found |= self.types[parts]
        return found

    def tightest(self, figure: str) -> float:
        """Return the least seconds of ``figure`` over all requests; 0 without such a goal."""
        return min(self._all_of(figure), default=0.0)

    def loosest(self) -> dict[str, float]:
        """Return the most seconds of each figure that has a goal."""
        figures = dict.fromkeys(name for goals in (self.usual, *self.types.values()) for name in goals)
        return {figure: max(self._all_of(figure)) for figure in figures}

    def _all_of(self, figure: str) -> Iterable[float]:
        return [goals[figure] for goals in (self.usual, *self.types.values()) if figure in goals]


def _count_components(parts: str) -> int:
    return parts.count("+")
