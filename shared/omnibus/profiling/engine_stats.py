"""Statistics of the engines of one executor over a window of time.

They are the fill of their batches, their cache hits, and the memory that they report.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import BusUnavailable, DeadlineExceeded, NotFound

#: Seconds that an executor may take to send its statistics.
STATS_TIMEOUT_SECONDS = 3.0

#: ``Runner.stats`` by component.
EngineStats = Mapping[str, Mapping[str, Any]]


class EngineWindow(NamedTuple):
    """Work of engines between two samples of their statistics.

    ``fill`` is the share of a batch's slots that had a sequence, in the fullest component; None if no engine reports
    it. ``waiting`` is true if sequences waited for a slot at both samples. ``hits`` counts the items that were not
    computed because a cache had them or an equal item was computed at the same time.
    """

    fill: float | None = None
    waiting: bool = False
    hits: int = 0


async def read_engine_stats(bus: Bus, status: ExecutorStatus) -> EngineStats:
    """Read the statistics of the only executor of its option; empty if it sends none."""
    try:
        reply = await bus.request(
            f"$SRV.STATS.omnibus-{subjects.subject_token(status.option)}", b"", STATS_TIMEOUT_SECONDS
        )
        endpoints = {each["name"]: each.get("data") or {} for each in msgspec.json.decode(reply)["endpoints"]}
    except (NotFound, DeadlineExceeded, BusUnavailable, msgspec.DecodeError, KeyError, TypeError):
        return {}
    task_components = zip(status.tasks, status.components, strict=False)
    return {component: endpoints[task] for task, component in task_components if isinstance(endpoints.get(task), dict)}


def compare_stats(before: EngineStats, after: EngineStats, at_once: int) -> EngineWindow:
    """Return the work between ``before`` and ``after``, with ``at_once`` requests."""
    fills = [
        fill
        for component, now in after.items()
        if (fill := _batch_fill(before.get(component, {}), now, at_once)) is not None
    ]
    return EngineWindow(
        fill=max(fills, default=None),
        waiting=any(now.get("waiting") and before.get(name, {}).get("waiting") for name, now in after.items()),
        hits=sum(_cache_hits(now) - _cache_hits(before.get(name, {})) for name, now in after.items()),
    )


def reports_busy(stats: EngineStats) -> bool:
    """Return whether every engine seems to report its busy time."""
    return all(each.get("busy", 0.0) is not None for each in stats.values())


def _batch_fill(before: Mapping[str, Any], now: Mapping[str, Any], at_once: int) -> float | None:
    """Return the share of the usable slots that had a sequence; None for an engine without slots."""
    slots = min(int(now.get("slots") or 0), at_once)
    if not slots:
        return None
    key = "steps" if now.get("steps") else "batches"
    if key not in now:
        slot_counts = [each["used"] for each in (before, now) if "used" in each]
        return sum(slot_counts) / len(slot_counts) / slots if slot_counts else None
    counts = {size: count - before.get(key, {}).get(size, 0) for size, count in now[key].items()}
    batches = sum(counts.values())
    return sum(int(size) * count for size, count in counts.items()) / batches / slots if batches else None


def _cache_hits(stats: Mapping[str, Any]) -> int:
    cache = stats.get("cache") or {}
    return int(cache.get("hits", 0)) + int(cache.get("coalesced", 0)) + int(stats.get("prefix_hits", 0))
