"""Network links between nodes in virtual time."""

from collections.abc import Callable


class Links:
    """Network links between nodes: one transfer after the other in each direction of a pair."""

    def __init__(self, pull_seconds: float = 0.0, gb_s: Callable[[str, str], float] = lambda start, end: 1.0) -> None:
        self._pull_seconds = pull_seconds
        self._gb_s = gb_s
        self._free: dict[tuple[str, str], float] = {}

    def transfer(self, start: str, end: str, gb: float, at: float) -> float:
        """Return when ``gb`` that leave at ``at`` are at ``end``."""
        pair = start, end
        free = max(self._free.get(pair, 0.0), at) + gb / self._gb_s(start, end)
        self._free[pair] = free
        return free + self._pull_seconds
