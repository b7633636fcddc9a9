"""Additive histograms of seconds: counts by bucket, each about 5 % wide. Pure, no I/O."""

from collections.abc import Iterable, Mapping
from math import exp, log

#: Latencies of a request to count, see ``omnibus.profile.Point``. The seconds between two tokens, and the seconds per
#: second of speech, are means of one request.
FIGURES = ("done", "first_token", "token", "first_audio", "real_time")
#: Buckets for each factor of e: the end of a bucket is 5 % above its start.
_BUCKETS_PER_E = 20
#: Shorter times count as this long.
_MIN_SECONDS = 1e-4
_OFFSET = 200  # makes bucket numbers positive


def bucket_number(seconds: float) -> int:
    """Return the bucket of ``seconds``."""
    return int(log(seconds if seconds > _MIN_SECONDS else _MIN_SECONDS) * _BUCKETS_PER_E + _OFFSET)


def count_figures(rows: Iterable[Mapping[str, float]]) -> dict[str, dict[int, int]]:
    """Return counts by figure and bucket. Each row has the seconds of one request by figure."""
    figures: dict[str, dict[int, int]] = {}
    for row in rows:
        for figure, seconds in row.items():
            counts = figures.setdefault(figure, {})
            # Inlined ``bucket_number``, as gateways count every request.
            bucket = int(log(seconds if seconds > _MIN_SECONDS else _MIN_SECONDS) * _BUCKETS_PER_E + _OFFSET)
            counts[bucket] = counts.get(bucket, 0) + 1
    return figures


class LatencyHistogram:
    """Counts of values by bucket."""

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = dict(counts or {})

    @property
    def total(self) -> int:
        """Return the number of counted values."""
        return sum(self.counts.values())

    def add_counts(self, counts: Mapping[int, int]) -> None:
        """Add the counts of another histogram."""
        for bucket, count in counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def percentile(self, part: float) -> float:
        """Return the seconds that ``part`` of the values do not exceed. The result is exact to 2.5 %, and 0 without
        values."""
        target, count_below = part * self.total, 0
        for bucket, count in sorted(self.counts.items()):
            count_below += count
            if count_below >= target:
                return exp((bucket + 0.5 - _OFFSET) / _BUCKETS_PER_E)
        return 0.0

    def share_within(self, seconds: float) -> float:
        """Return the share of values in buckets up to that of ``seconds``. It is 1 without values."""
        last, total = bucket_number(seconds), self.total
        return sum(count for bucket, count in self.counts.items() if bucket <= last) / total if total else 1.0


def merge_figures(into: dict[str, LatencyHistogram], figures: Iterable[tuple[str, Mapping[int, int]]]) -> None:
    """Add counts by figure to the histograms ``into``."""
    for figure, counts in figures:
        into.setdefault(figure, LatencyHistogram()).add_counts(counts)
