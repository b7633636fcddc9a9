"""Steps of the tenants with few sequences beside one with many. No clock here.

A step of many sequences takes longer than one of few where the device has no room to spare. So while one tenant has
more than the mean number of sequences of a tenant, the others take steps by themselves, as long as these are much
shorter and together take no more time than the steps of everybody: a tenant with many sequences has at least half of
the engine, and all of it when it is alone. Between two tokens of the others there is at most one step of everybody.
What the others leave of their half is kept for a short while, so that a short answer is given at once.
"""

from collections import Counter
from collections.abc import Collection, Iterable

#: How many times as long a step of everybody has to take for shorter ones to be worth their time.
_WORTH = 1.5
#: Steps of everybody whose time those with few sequences may take at once, after they have taken none for as long.
_BURST_STEPS = 8
#: Part of the newest in the means of steps.
_NEWEST_WEIGHT = 0.2


class StepTurns:
    """Says whose step is next; ``observe`` tells how long it took."""

    def __init__(self) -> None:
        self._few_next = False
        self._few = 0.0  # mean seconds of a step of tenants with few sequences
        self._all = 0.0  # of a step of everybody
        self._left = 0.0  # seconds that those with few have before the next step of everybody

    def choose(self, tenants: Iterable[str]) -> Collection[str] | None:
        """The tenants whose step is next, of ``tenants``, one for each sequence that could take one; None: all."""
        counts = Counter(tenants)
        self._few_next = False
        if len(counts) < 2:
            return None
        mean = counts.total() / len(counts)
        few = [tenant for tenant, count in counts.items() if count <= mean]
        if len(few) < len(counts) and self._all > _WORTH * self._few and self._left >= self._few:
            self._few_next = True
            return few
        return None

    def observe(self, seconds: float) -> None:
        """The step that was chosen last took ``seconds``."""
        if self._few_next:
            self._few += _NEWEST_WEIGHT * (seconds - self._few) if self._few else seconds
            self._left -= seconds
        else:
            self._all += _NEWEST_WEIGHT * (seconds - self._all) if self._all else seconds
            self._left = min(self._left + seconds, _BURST_STEPS * self._all)
