"""Separate steps for tenants with few sequences, next to one with many. No clock here.

A step of many sequences takes longer than one of few if the device is full. So while one tenant has more than the mean
number of sequences of a tenant, the others also get steps without it. These must be much shorter than common steps, and
together take no more time. A tenant with many sequences thus has at least half of the engine, and all of it when it is
alone. Between two tokens of the others there is at most one common step. Time that the others leave of their half is
kept for a short while, so that a short answer starts at once.
"""

from collections import Counter
from collections.abc import Collection, Iterable

#: How many times longer a common step must be than one of few sequences to make the latter worthwhile.
_WORTH = 1.5
#: Number of common steps whose time the tenants with few sequences may take at once, after they have taken none for as
#: long.
_BURST_STEPS = 8
#: Part of the newest in the means of steps.
_NEWEST_WEIGHT = 0.2


class StepTurns:
    """Chooses the tenants of the next step; pass its duration to ``observe``."""

    def __init__(self) -> None:
        self._few_next = False
        self._few = 0.0  # mean seconds of a step of tenants with few sequences
        self._all = 0.0  # mean seconds of a common step
        self._left = 0.0  # seconds that tenants with few sequences have before the next common step

    def choose(self, tenants: Iterable[str]) -> Collection[str] | None:
        """Return the tenants of the next step; None for all.

        ``tenants`` has an entry for each sequence that could take a step.
        """
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
        """Record that the last chosen step took ``seconds``."""
        if self._few_next:
            self._few += _NEWEST_WEIGHT * (seconds - self._few) if self._few else seconds
            self._left -= seconds
        else:
            self._all += _NEWEST_WEIGHT * (seconds - self._all) if self._all else seconds
            self._left = min(self._left + seconds, _BURST_STEPS * self._all)
