"""Histograms of seconds that can be added up: counts by bucket, each about 5 % wide. Pure, no I/O."""

from collections.abc import Iterable, Mapping
from math import exp, log

#: Latencies of a request that are counted: see ``omnibus.profile.Point``. The seconds between two tokens, and the
#: seconds per second of speech, are means of one request.
FIGURES = ("done", "first_token", "token", "first_audio", "real_time")
#: Buckets for each factor of e: a bucket ends 5 % above its begin.
_BUCKETS_PER_E = 20
#: What is shorter is counted as this long.
_MIN_SECONDS = 1e-4
_OFFSET = 200  # makes bucket numbers positive


def bucket_number(seconds: float) -> int:
    """Return the bucket of ``seconds``."""
    return int(log(seconds if seconds > _MIN_SECONDS else _MIN_SECONDS) * _BUCKETS_PER_E + _OFFSET)


def count_figures(rows: Iterable[Mapping[str, float]]) -> dict[str, dict[int, int]]:
    """Return counts by figure and bucket of ``rows``, each of which has the seconds of one request by figure."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        for figure, seconds in row.items():
            counts = found.setdefault(figure, {})
            # As ``bucket_number``, without a call for each: gateways count all that they serve.
            bucket = int(log(seconds if seconds > _MIN_SECONDS else _MIN_SECONDS) * _BUCKETS_PER_E + _OFFSET)
            counts[bucket] = counts.get(bucket, 0) + 1
    return found


class LatencyHistogram:
    """Counts by bucket."""

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = dict(counts or {})

    @property
    def total(self) -> int:
        """Number of values that were counted."""
        return sum(self.counts.values())

    def add_counts(self, counts: Mapping[int, int]) -> None:
        """Add what another histogram has counted."""
        for bucket, count in counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def percentile(self, part: float) -> float:
        """The seconds that ``part`` of all do not exceed, to within 2.5 %; 0 of none."""
        wanted, seen = part * self.total, 0
        for bucket, count in sorted(self.counts.items()):
            seen += count
            if seen >= wanted:
                return exp((bucket + 0.5 - _OFFSET) / _BUCKETS_PER_E)
        return 0.0

    def share_within(self, seconds: float) -> float:
        """The share of all in buckets up to that of ``seconds``; 1 of none."""
        last, total = bucket_number(seconds), self.total
        return sum(count for bucket, count in self.counts.items() if bucket <= last) / total if total else 1.0


def merge_figures(into: dict[str, LatencyHistogram], figures: Iterable[tuple[str, Mapping[int, int]]]) -> None:
    """Add counts by figure to the histograms ``into``."""
    for figure, counts in figures:
        into.setdefault(figure, LatencyHistogram()).add_counts(counts)
