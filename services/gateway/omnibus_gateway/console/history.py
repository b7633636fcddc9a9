"""History of rates, latencies and errors, as written by ``recorder``."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from omnibus.errors import ClientClosed, Rejected
from omnibus.metrics.collectors import LATENCY_BUCKETS_SECONDS
from omnibus.store import Bucket, Store
from omnibus.store.history import COARSE_STEP_SECONDS, FINE_STEP_SECONDS, MIDDLE_STEP_SECONDS

#: Longest span of one answer, in seconds.
MAX_SPAN_SECONDS = 31 * 24 * 3600
#: Longest spans in seconds for the finer bucket sizes.
_SPANS = ((3600, FINE_STEP_SECONDS), (12 * 3600, MIDDLE_STEP_SECONDS))
#: Limit of buckets in one answer; longer spans lose their oldest ones.
_MAX_BUCKETS = 1008
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_OUTCOMES = ("came", "done", "failed", "refused")


def _rejected_codes(error: type[Rejected] = Rejected) -> Iterator[str]:
    yield error.code
    for each in error.__subclasses__():
        yield from _rejected_codes(each)


#: Error codes that the request causes. A client that disconnected is not at fault.
REJECTED_CODES = frozenset(_rejected_codes()) - {ClientClosed.code}

_Name = tuple[str, str, str]
_decode_name = msgspec.json.Decoder(_Name).decode


async def read_history(store: Store, seconds: float, until: float) -> dict[str, Any]:
    """Return the ``seconds`` before ``until`` as columns with values per ``starts``.

    ``until`` is in Unix seconds. Counts are per bucket of ``step`` seconds. The first ``whole`` buckets are complete,
    and the last one still grows. ``rejected`` counts requests with a 4xx error, before or after they became an
    invocation. Latencies are in seconds, null in a bucket without requests; ``latency`` has those of all buckets
    together. ``stages`` has the jobs of a component, and its seconds of computing (``busy``) and of being ready
    (``up``) summed over its executors. It also has the requests that ``failed`` there. Raises ``StoreUnavailable``.
    """
    step = next((step for span, step in _SPANS if seconds <= span), COARSE_STEP_SECONDS)
    first = max(until - seconds, until - step * _MAX_BUCKETS)
    buckets = [_Counts(bucket) for bucket in await store.history(step, first, until)]
    models = dict.fromkeys(name for each in buckets for name in each.models)
    return {
        "step": step,
        "starts": [each.start for each in buckets],
        "whole": sum(each.start + step <= until for each in buckets),
        "models": {model: _model_columns(buckets, model) for model in models},
        "stages": {model: stages for model in models if (stages := _stage_columns(buckets, model))},
    }


class _Counts:
    """Counts of one bucket by measure, model and detail.

    A detail is a type, code, bound or stage.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.start = bucket.start
        self._counts: dict[tuple[str, str], dict[str, int]] = {}
        for text, count in bucket.counts.items():
            metric, model, of = _decode_name(text)
            self._counts.setdefault((metric, model), {})[of] = count

    @property
    def models(self) -> Iterator[str]:
        return (model for _, model in self._counts)

    def of(self, metric: str, model: str) -> dict[str, int]:
        return self._counts.get((metric, model), {})


def _model_columns(buckets: Sequence[_Counts], model: str) -> dict[str, Any]:
    types = _names(buckets, _OUTCOMES, model)
    return {
        **{what: [sum(each.of(what, model).values()) for each in buckets] for what in _OUTCOMES},
        "types": {
            kind: {what: [each.of(what, model).get(kind, 0) for each in buckets] for what in _OUTCOMES}
            for kind in types
        },
        "rejected": [sum(each.of("code", model).get(code, 0) for code in REJECTED_CODES) for each in buckets],
        "rejected_codes": {
            code: count
            for code in sorted(REJECTED_CODES)
            if (count := sum(each.of("code", model).get(code, 0) for each in buckets))
        },
        "codes": {
            code: [each.of("code", model).get(code, 0) for each in buckets] for code in _names(buckets, ["code"], model)
        },
        "latency": {what: _latency_values(buckets, what, model) for what in ("first", "total")},
        **{
            f"{what}_{name}": [_quantile(each.of(what, model), part) for each in buckets]
            for what in ("first", "total")
            for name, part in _QUANTILES.items()
        },
    }


def _latency_values(buckets: Iterable[_Counts], what: str, model: str) -> dict[str, Any]:
    """Return the percentiles of a latency over all ``buckets``, and the count of its requests."""
    counts: Counter[str] = Counter()
    for each in buckets:
        counts.update(each.of(what, model))
    return {name: _quantile(counts, part) for name, part in _QUANTILES.items()} | {"count": counts.total()}


def _stage_columns(buckets: Sequence[_Counts], model: str) -> dict[str, Any]:
    def read_column(metric: str, stage: str, scale: float = 1) -> list[float]:
        return [each.of(metric, model).get(stage, 0) / scale for each in buckets]

    return {
        stage: {
            "jobs": read_column("jobs", stage),
            "busy": read_column("busy", stage, 1000),
            "up": read_column("up", stage, 1000),
            "failed": read_column("lost", stage),
        }
        for stage in _names(buckets, ("jobs", "busy", "up", "lost"), model)
    }


def _names(buckets: Iterable[_Counts], whats: Sequence[str], model: str) -> dict[str, None]:
    return dict.fromkeys(name for each in buckets for what in whats for name in each.of(what, model))


def _quantile(counts: dict[str, int], part: float) -> float | None:
    """Return a quantile in seconds of a histogram by upper bound.

    Values are interpolated linearly within a bucket. For a value above the last bound, that bound is returned.
    """
    bounds = sorted((float(bound), count) for bound, count in counts.items() if count > 0)
    rank, count_below, last = part * sum(count for _, count in bounds), 0, 0.0
    for bound, count in bounds:
        lower = _lower_bound(bound)
        if bound == float("inf"):
            return lower
        last = bound
        if count_below + count >= rank:
            return lower + (bound - lower) * (rank - count_below) / count
        count_below += count
    return last if bounds else None


def _lower_bound(bound: float) -> float:
    return max((each for each in LATENCY_BUCKETS_SECONDS if each < bound), default=0.0)
