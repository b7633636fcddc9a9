"""Bus events during a measurement: busy time of executors, their ends, and transfers.

Statistics of the engines of one executor over a window of time.

They are the fill of their batches, their cache hits, and the memory that they report.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from omnibus import graph
from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.census import Census
from omnibus.bus.messages import Chunk, ExecutorStatus, Hop
from omnibus.cluster.presence import PresenceTracker, follow_events
from omnibus.errors import BusUnavailable, DeadlineExceeded, NotFound, OmnibusError, ProtocolError, StageFailed
from omnibus.graph import Invocation

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


#: Seconds that an executor may take to report its busy time, and that the notice of its end may take.
STATUS_TIMEOUT_SECONDS, EXIT_NOTICE_SECONDS = 3.0, 2.0

T = TypeVar("T")


class BusySample(NamedTuple):
    """Seconds that each component had computed at the monotonic time ``at``; None if unreported."""

    at: float
    seconds: dict[str, float] | None


class ExecutorMonitor:
    """Tracks executors by the statuses they publish. Call ``listen`` first."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._census = Census(bus, subjects.EXECUTOR)
        self._known = PresenceTracker[ExecutorStatus]()
        self._first: dict[str, float] = {}
        self._ends: dict[str, int] = {}

    async def listen(self) -> None:
        handlers: dict[str, Callable[[Any], None]] = {subjects.EXECUTOR: self._on_status, subjects.GONE: self._on_gone}
        await follow_events(self._bus, handlers, census=self._census)

    def ready_executors(self, model: str, option: str) -> list[ExecutorStatus]:
        """Return the ready executors of an option."""
        return [each for each in self._known.entries().values() if (each.model, each.option) == (model, option)]

    def ready_since(self, executor: str) -> float:
        """Return the monotonic time at which ``executor`` first reported ready, or 0."""
        return self._first.get(executor, 0.0)

    def end_count(self, model: str, option: str) -> int:
        """Return how often executors of an option have ended so far."""
        prefix = subjects.subject_token(f"{model}-{option}-")
        return sum(count for id, count in self._ends.items() if id.startswith(prefix))

    @property
    def ready_statuses(self) -> list[ExecutorStatus]:
        """The ready executors."""
        return list(self._known.entries().values())

    def find_status(self, executor: str) -> ExecutorStatus:
        """Return the last status of ``executor``. Raises ``StageFailed`` if it is not ready."""
        status = self._known.get(executor)
        if status is None:
            raise StageFailed(f"executor {executor} ended while it was measured", executor=executor)
        return status

    async def wait_until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``true`` holds, and return False after ``seconds``. It is checked after each status."""
        return await self._known.wait_until(true, seconds)

    async def read_busy(self, executors: Collection[str]) -> dict[str, BusySample]:
        """Read the current busy time of each of ``executors``. Raises ``StageFailed`` without an answer."""
        request_time = time.monotonic()
        with suppress(BusUnavailable):
            self._census.ask()
        await self.wait_until(
            lambda: all(self._known.last_seen(each) > request_time for each in executors), STATUS_TIMEOUT_SECONDS
        )
        return {each: self._busy_sample(each, request_time) for each in executors}

    def _busy_sample(self, executor: str, request_time: float) -> BusySample:
        at, status = self._known.last_seen(executor), self._known.get(executor)
        if status is None or at <= request_time:
            raise StageFailed(f"executor {executor} does not report its status", executor=executor)
        busy_seconds = dict(zip(status.components, status.busy, strict=False))
        return BusySample(at, busy_seconds if len(busy_seconds) == len(status.components) else None)

    async def read_stats(self, executor: str) -> EngineStats:
        """Read the engine statistics of ``executor``, the only one of its option; empty if it sends none."""
        status = self._known.get(executor)
        return {} if status is None else await read_engine_stats(self._bus, status)

    async def unless_ended(self, executors: dict[str, str], work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``. Raises ``StageFailed`` if one of ``executors`` (id to option) ends."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._wait_for_end(executors))
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and isinstance(task.exception(), OmnibusError) and not watch.done():
                await asyncio.wait({watch}, timeout=EXIT_NOTICE_SECONDS)  # its end may be the cause
            if watch.done():
                raise watch.result()
        finally:
            for each in (task, watch):
                each.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)
        return task.result()

    async def _wait_for_end(self, executors: dict[str, str]) -> StageFailed:
        before = {id: self._ends.get(id, 0) for id in executors}

        def ended_executor() -> str:
            return next((id for id in executors if self._ends.get(id, 0) > before[id]), "")

        await self._known.wait_until(lambda: bool(ended_executor()))
        ended_id = ended_executor()
        return StageFailed(
            f"executor {ended_id} of option {executors[ended_id]} ended while it was measured", executor=ended_id
        )

    def _on_status(self, status: ExecutorStatus) -> None:
        if status.state == "ready":
            self._first.setdefault(status.id, time.monotonic())
            self._known.record(status.id, status)
            self._known.notify_change()
        else:
            self._forget_executor(status.id)

    def _on_gone(self, executor: str) -> None:
        self._ends[executor] = self._ends.get(executor, 0) + 1
        self._forget_executor(executor)

    def _forget_executor(self, executor: str) -> None:
        self._known.remove(executor)
        self._first.pop(executor, None)
        self._known.notify_change()


class EdgeRecorder:
    """Records transfers between components, and seconds in executors, of successful ``kind`` requests."""

    def __init__(self, model: str, kind: str) -> None:
        self._about = (model, kind)
        self._invocations: dict[str, Invocation] = {}
        self._done: set[str] = set()
        self._ended = asyncio.Event()
        self._bytes: dict[tuple[str, str, str], float] = defaultdict(float)
        self._bunches: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        self._hops: dict[tuple[str, int], Hop] = {}
        self._stops: list[Callable[[], Awaitable[None]]] = []

    async def listen(self, bus: Bus) -> None:
        takes = (
            ("task.*.*", self._on_invocation),
            ("edge.*", self._on_edge),
            ("reply.*", self._on_reply),
            ("end.*", self._on_end),
        )
        for subject, take in takes:
            self._stops.append(await bus.subscribe(f"{subjects.ROOT}.{subject}", take))

    async def close(self) -> None:
        for stop in self._stops:
            await stop()

    async def wait_until_done(self, requests: int, seconds: float) -> bool:
        """Wait until ``requests`` have ended successfully, and return False after ``seconds``.

        The end of a request may arrive after its answer.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self._done) < requests:
                    self._ended.clear()
                    await self._ended.wait()
        return len(self._done) >= requests

    def mean_bytes(self) -> dict[tuple[str, str], float]:
        """Return the mean bytes per request, by producing and consuming component."""
        totals: dict[tuple[str, str], float] = defaultdict(float)
        for (invocation, source, target), nbytes in self._bytes.items():
            if invocation in self._done:
                totals[source, target] += nbytes / len(self._done)
        return totals

    def mean_rows(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Return mean rows per request, and those of the largest message.

        The keys are component and reader. Rows are those of tensors that grow, or codes.
        """
        row_counts: dict[tuple[str, str], list[list[int]]] = defaultdict(list)
        for (invocation, source, target), bunches in self._bunches.items():
            if invocation in self._done:
                row_counts[source, target].append(bunches)
        return {
            edge: (sum(map(sum, each)) / len(self._done), float(max(map(max, each))))
            for edge, each in row_counts.items()
        }

    def mean_latency(self, executor: str) -> float:
        """Return a request's mean seconds in ``executor``, from inputs to end: 0 if none."""
        spans: dict[str, list[Hop]] = defaultdict(list)
        for (invocation, _), hop in self._hops.items():
            if hop.executor == executor and invocation in self._done:
                spans[invocation].append(hop)
        latencies = [max(hop.end for hop in hops) - min(hop.ready for hop in hops) for hops in spans.values()]
        return sum(latencies) / len(latencies) if latencies else 0.0

    def _on_invocation(self, delivery: Delivery) -> None:
        with suppress(ProtocolError):
            invocation = graph.decode_invocation(delivery.data)
            if (invocation.model, invocation.type) == self._about:
                self._invocations.setdefault(invocation.id, invocation)

    def _on_end(self, delivery: Delivery) -> None:
        with suppress(ProtocolError):
            end = messages.decode_end(delivery.data)
            if end.status == "done" and end.inv in self._invocations:
                self._done.add(end.inv)
                self._ended.set()

    def _on_edge(self, delivery: Delivery) -> None:
        if not delivery.data:
            return
        executor = delivery.subject.rpartition(".")[2]
        with suppress(ProtocolError):
            for message in messages.decode_edges(delivery.data):
                if isinstance(message, Hop):
                    self._hops[message.inv, message.node] = message
                elif isinstance(message, Chunk):
                    self._count_bytes(message, executor)

    def _on_reply(self, delivery: Delivery) -> None:
        if not delivery.data:
            return
        with suppress(ProtocolError):
            for message in messages.decode_replies(delivery.data):
                if isinstance(message, Hop) and message.attempt >= 0:
                    self._hops[message.inv, message.node] = message

    def _count_bytes(self, chunk: Chunk, executor: str) -> None:
        invocation = self._invocations.get(chunk.inv)
        if invocation is None or chunk.node >= len(invocation.nodes):
            return
        readers = invocation.find_consumers(chunk.node).get(chunk.output, [])
        size, rows = _chunk_bytes(chunk), _chunk_rows(chunk)
        for part in {invocation.nodes[each].component for each in readers if invocation.route[each] == executor}:
            edge = chunk.inv, invocation.nodes[chunk.node].component, part
            self._bytes[edge] += size
            if rows:
                self._bunches[edge].append(rows)


def _chunk_bytes(chunk: Chunk) -> float:
    """Return the bytes of a chunk: its data, and the rows that it adds to its tensor."""
    size = float(len(msgspec.json.encode(chunk.data))) if chunk.data else 0.0
    if chunk.inline is not None:
        return size + len(chunk.inline.data)
    if chunk.handle is None:
        return size
    rows = chunk.handle.shape[0] if chunk.handle.shape else 0
    part = (chunk.rows[1] - chunk.rows[0]) / rows if chunk.rows is not None and rows else 1.0
    return size + chunk.handle.nbytes * part


def _chunk_rows(chunk: Chunk) -> int:
    """Return the rows a chunk adds to a tensor or codes, else 0."""
    if chunk.rows is not None:
        return chunk.rows[1] - chunk.rows[0]
    codes = chunk.data.get("codes")
    return len(codes) if isinstance(codes, list) else 0
