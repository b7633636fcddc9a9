"""Recorder of the console's history from the metrics of this process."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import StoreUnavailable
from omnibus.metrics import GATEWAY
from omnibus.store import Store
from omnibus_gateway.console.failures import encode_failure
from omnibus_gateway.core import ExecutorTable
from omnibus_gateway.http.failures import FailureLog

log = logging.getLogger(__name__)

#: Seconds between two reads of the counters.
INTERVAL_SECONDS = 10.0
#: Seconds for which one gateway records the stages, which are the same at all gateways.
LEAD_SECONDS = 3 * INTERVAL_SECONDS
#: Timeout of the last record when a gateway stops, in seconds.
_FLUSH_SECONDS = 1.0

_OUTCOMES = ("done", "failed", "refused")

#: Name of a count: its measure, the model, and its type, code, bucket or stage.
Name = tuple[str, str, str]

encode_name = msgspec.json.Encoder().encode


class HistoryRecorder:
    """Adds new counts to the store. If the store is unavailable, the next record includes them."""

    def __init__(
        self,
        gateway: str,
        store: Store,
        members: ExecutorTable,
        kept_seconds: float,
        failures: FailureLog | None = None,
    ) -> None:
        self._gateway = gateway
        self._failures = failures if failures is not None else FailureLog()
        self._store = store
        self._members = members
        self._kept_seconds = kept_seconds
        self._counted = dict(_read_counters())  # other gateways of this process, in tests, counted before
        self._stages = _StageCounts()

    async def run(self) -> None:
        """Record until cancelled, and a last time at the end."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_SECONDS)
                await self._try_record()
        finally:
            try:
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._try_record()
            except TimeoutError:
                log.warning("the last %g s of the history were not written: the store is slow", INTERVAL_SECONDS)

    async def record(self) -> None:
        """Write new counts and failed requests. Raises ``StoreUnavailable``; the next call then writes them."""
        await self._record_failures()
        now = dict(_read_counters())
        counts = {name: int(value - self._counted.get(name, 0.0)) for name, value in now.items()}
        stages, mark_read = self._stages.read_new(self._members.statuses())
        if await self._store.lead_history(
            self._gateway, LEAD_SECONDS
        ):  # otherwise another gateway writes the same counts
            counts |= stages
        new = {encode_name(name).decode(): count for name, count in counts.items() if count > 0}
        if new:
            await self._store.add_history(new, self._kept_seconds)
        self._counted = now
        mark_read()

    async def _record_failures(self) -> None:
        failures = self._failures.take_unsaved()
        bodies: dict[str, list[bytes]] = {}
        for each in failures:
            bodies.setdefault(each.code, []).append(encode_failure(each))
        try:
            if bodies:
                await self._store.add_failures(bodies, self._kept_seconds)
        except StoreUnavailable:
            self._failures.put_back(failures)
            raise

    async def _try_record(self) -> None:
        try:
            await self.record()
        except StoreUnavailable as error:
            log.debug("history not written: %s", error)


def _read_counters() -> Iterator[tuple[Name, float]]:
    """Yield the current counters of requests. Buckets of latencies are not cumulative."""
    for sample in _samples(GATEWAY.arrivals, "_total"):
        yield ("came", sample.labels["model"], sample.labels["type"]), sample.value
    for sample in _samples(GATEWAY.ended, "_total"):
        if (outcome := sample.labels["outcome"]) in _OUTCOMES:
            yield (outcome, sample.labels["model"], sample.labels["type"]), sample.value
    for sample in _samples(GATEWAY.requests, "_total"):
        yield ("code", sample.labels["model"], sample.labels["code"]), sample.value
    for metric, histogram in (("first", GATEWAY.first), ("total", GATEWAY.total)):
        counts: dict[Name, float] = {}
        below: dict[str, float] = {}
        for sample in _samples(histogram, "_bucket"):  # bounds of one series are consecutive and ascending
            series, name = str({**sample.labels, "le": ""}), (metric, sample.labels["model"], sample.labels["le"])
            counts[name] = counts.get(name, 0.0) + sample.value - below.get(series, 0.0)
            below[series] = sample.value
        yield from counts.items()
    for sample in _samples(GATEWAY.stage_failures, "_total"):
        yield ("lost", sample.labels["model"], sample.labels["stage"]), sample.value


def _samples(metric: Any, ending: str) -> Iterator[Any]:
    return (sample for family in metric.collect() for sample in family.samples if sample.name.endswith(ending))


class _StageCounts:
    """Counts by model and component, from the heartbeats of executors.

    They are jobs, milliseconds of computing and milliseconds of being ready.
    """

    def __init__(self) -> None:
        self._known: dict[str, ExecutorStatus] = {}
        self._at = time.monotonic()

    def read_new(self, statuses: Iterable[ExecutorStatus]) -> tuple[Mapping[Name, int], Callable[[], None]]:
        """Return the counts since the last mark, and a function to mark.

        An executor that was unknown at the last mark has no new counts yet.
        """
        statuses_by_id, now = {status.id: status for status in statuses}, time.monotonic()
        counts: dict[Name, float] = {}
        for status in statuses_by_id.values():
            _add_new_work(counts, self._known.get(status.id), status, now - self._at)

        def mark_read() -> None:
            self._known, self._at = statuses_by_id, now

        return {name: round(value) for name, value in counts.items()}, mark_read


def _add_new_work(
    counts: dict[Name, float], old: ExecutorStatus | None, status: ExecutorStatus, elapsed: float
) -> None:
    """Add an executor's work since ``old``, ``elapsed`` seconds ago, to ``counts``."""
    if old is None or old.components != status.components or len(old.busy) != len(status.busy):
        return
    same = status.pid == old.pid  # after a restart, its counts began at 0
    for place, component in enumerate(status.components[: min(len(status.busy), len(status.done))]):
        for metric, value in (
            ("busy", 1000 * (status.busy[place] - (old.busy[place] if same else 0.0))),
            ("jobs", status.done[place] - (old.done[place] if same else 0)),
            ("up", 1000 * elapsed * (status.state == "ready")),
        ):
            name = (metric, status.model, component)
            counts[name] = counts.get(name, 0.0) + value
