"""Load of this gateway by model and request type, reported each second.

A request only increments counters. A timer publishes them, and updates those that Prometheus scrapes. It runs from the
first request until nothing is in flight and a whole period had no news. Prometheus metrics of
executors, path shares, limits and dead letters are computed at scrape time.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from omnibus.bus import Bus, messages, subjects
from omnibus.bus.heartbeats import LOAD_REPORT_SECONDS
from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus.cluster.latency_histogram import count_figures
from omnibus.errors import OmnibusError, Overloaded
from omnibus.metrics import GATEWAY
from omnibus.plan import Plan
from omnibus.profile import QUANTITIES
from omnibus.recording.dead_letters import REASONS
from omnibus.settings import GatewaySettings
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.pricing.meter import Estimates, add_quantities
from omnibus_gateway.request.record import DeadLetters
from omnibus_gateway.routing.assignment import Assignment, ModelPart
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router


class LoadCounters:
    """Counters of one model and request type since the last event."""

    __slots__ = (
        "came",
        "done",
        "ended",
        "estimated",
        "estimated_done",
        "failed",
        "first",
        "goals",
        "met",
        "missed",
        "quantities",
        "refused",
        "total",
        "waiting",
    )

    def __init__(self, goals: Mapping[str, float]) -> None:
        self.goals = goals  # seconds by figure
        self.waiting = 0  # now, not since the last event
        self.clear()

    def clear(self) -> None:
        self.came = self.done = self.failed = self.refused = self.met = self.missed = 0
        self.ended: list[Mapping[str, float]] = []  # seconds by figure of successful requests
        self.first = self.total = 0.0
        self.quantities = [0.0] * len(QUANTITIES)
        self.estimated = [0.0] * len(QUANTITIES)
        self.estimated_done = [0.0] * len(QUANTITIES)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to report."""
        return not (self.came or self.done or self.failed or self.refused or self.waiting)

    def to_load(self) -> LoadCounts:
        if self.goals:
            self.count_goals()
        sums, estimate_sums, done_estimates = (
            {name: value for name, value in zip(QUANTITIES, values, strict=True) if value}
            for values in (self.quantities, self.estimated, self.estimated_done)
        )
        return LoadCounts(
            self.came,
            self.done,
            self.failed,
            self.refused,
            sums,
            self.first,
            self.total,
            estimate_sums,
            done_estimates,
            self.waiting,
            count_figures(self.ended),
            self.met,
            self.missed,
        )

    def count_goals(self) -> None:
        """Count the successful requests that met or missed their goals."""
        for figures in self.ended:
            late = any(figures.get(figure, 0.0) > limit for figure, limit in self.goals.items())
            self.missed += late
            self.met += not late

    def count_miss(self) -> None:
        """Count a request that was rejected or failed."""
        self.missed += bool(self.goals)


class CountedInvocation(NamedTuple):
    """An invocation counted on arrival: the counters of each of its parts."""

    slots: tuple[LoadCounters, ...]
    parts: tuple[ModelPart, ...]


log = logging.getLogger(__name__)


#: An invocation that is counted nowhere.
_OPTIONAL = CountedInvocation((), ())


class LoadReporter:
    """Counters of one gateway; a graph that several models run counts for each of them."""

    def __init__(self, router: Router, bus: Bus, limit: int) -> None:
        self.inflight = 0  # invocations
        self._router = router
        self._bus = bus
        self._limit = limit
        self._slots: dict[tuple[str, str], LoadCounters] = {}
        self._counted: dict[tuple[str, str], CountedInvocation] = {}  # by an assignment's model and kind
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0.0  # monotonic seconds
        self._goals_plan: Plan | None = None  # whose goals the counters have

    # The hot path

    def count_arrival(self, assignment: Assignment, estimates: Estimates = ()) -> CountedInvocation:
        """Count an invocation; pass the result to ``count_end`` or ``count_failure``."""
        counted_invocation = self._find_counters(assignment)
        for slot in counted_invocation.slots:
            slot.came += 1
            for place, value in estimates:
                slot.estimated[place] += value
        self.inflight += 1
        self._start_timer()
        return counted_invocation

    def count_optional(self) -> CountedInvocation:
        """Count an optional invocation: it is only in flight, and does not add executors."""
        self.inflight += 1
        self._start_timer()
        return _OPTIONAL

    def count_waiting(self, counted_invocation: CountedInvocation, change: int) -> None:
        """Count one more (1) or one less (-1) arrived request that waits for room."""
        for slot in counted_invocation.slots:
            slot.waiting += change

    def count_end(
        self,
        counted_invocation: CountedInvocation,
        running: InflightInvocation,
        done: bool,
        began: float,
        estimates: Estimates = (),
        figures: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Count the end of an invocation that ``began`` at these Unix seconds.

        If every executor was full, it counts as rejected. ``estimates`` are those of its arrival, ``figures`` the
        seconds that its client observed in addition to ``done``.
        """
        if not done:
            self.count_failure(counted_invocation, running.failure)
            return
        self.inflight -= 1
        total, streams = time.time() - began, running.streams
        begin_times = [stream.began for stream in streams.values() if stream.began]
        first = (
            max(0.0, min(begin_times) - began) if begin_times else total
        )  # an early request may begin before its client's need
        several = len(counted_invocation.slots) > 1
        end_figures = {"done": total} if several else {"done": total, **figures}
        for slot, part in zip(counted_invocation.slots, counted_invocation.parts, strict=True):
            slot.done += 1
            slot.first += first
            slot.total += total
            slot.ended.append(end_figures)  # evaluated once a second
            for place, value in estimates:
                slot.estimated_done[place] += value
            own = [stream for key, stream in streams.items() if key[0] in part.nodes] if several else streams.values()
            add_quantities(slot.quantities, own)

    def count_failure(self, counted_invocation: CountedInvocation, error: BaseException | None) -> None:
        """Count an end with ``error``; a request without room counts as rejected, not as arrived."""
        self.inflight -= 1
        for slot, part in zip(counted_invocation.slots, counted_invocation.parts, strict=True):
            if isinstance(error, Overloaded):
                slot.came -= 1
                slot.refused += 1
                slot.count_miss()
                GATEWAY.rejection_counter(part.model, "executors").inc()
            else:
                slot.failed += 1
                if error is not None:  # None: its client disconnected
                    slot.count_miss()
        if (
            counted_invocation.parts
            and isinstance(error, OmnibusError)
            and error.stage
            and not isinstance(error, Overloaded)
        ):
            _count_stage_failure(counted_invocation, error)

    def count_limit_refusal(self, model: str) -> None:
        """Count a rejection at the limit, before the request's type was known.

        ``model`` is "" for an app."""
        GATEWAY.rejection_counter(model, "gateway").inc()
        if model:
            slot = self._model_counters(model, "")
            slot.refused += 1
            slot.count_miss()
            self._start_timer()

    def count_rejection(self, assignment: Assignment, estimates: Estimates = ()) -> None:
        """Count an invocation without a turn, as demand for the planner."""
        for slot in self._find_counters(assignment).slots:
            slot.refused += 1
            slot.count_miss()
            for place, value in estimates:
                slot.estimated[place] += value
        self._start_timer()

    # Once a second

    def close(self) -> None:
        """Publish the last counters."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._flush_counters()

    def _find_counters(self, assignment: Assignment) -> CountedInvocation:
        counted_invocation = self._counted.get((assignment.model, assignment.kind))
        if counted_invocation is None:
            slots = tuple(self._model_counters(part.model, part.kind) for part in assignment.parts)
            counted_invocation = self._counted[assignment.model, assignment.kind] = CountedInvocation(
                slots, assignment.parts
            )
        return counted_invocation

    def _model_counters(self, model: str, kind: str) -> LoadCounters:
        slot = self._slots.get((model, kind))
        if slot is None:
            slot = self._slots[model, kind] = LoadCounters(self._type_goals(model, kind))
        return slot

    def _type_goals(self, model: str, kind: str) -> Mapping[str, float]:
        plan = self._router.plan
        model_plan = plan.models.get(model) if plan is not None else None
        return model_plan.latency_goals.of_type(kind) if model_plan is not None else {}

    def _start_timer(self) -> None:
        if self._timer is None:
            self._told = time.monotonic()
            self._schedule_publish()

    def _schedule_publish(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOAD_REPORT_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        # Reports sent while the bus is disconnected arrive together after the reconnect, as if all were recent.
        news = not self._bus.connected or self._flush_counters()
        if news or self.inflight:
            self._schedule_publish()
            return
        self._timer = None
        self._slots.clear()  # models change over time; no counted invocation is in flight any more
        self._counted.clear()

    def _flush_counters(self) -> bool:
        """Publish and reset the counters; returns True if there was news."""
        loads, plan = [], self._router.plan
        for (model, kind), slot in self._slots.items():
            if not slot.is_empty:
                loads.append((model, kind, slot.to_load()))
                slot.clear()
            if plan is not self._goals_plan:
                slot.goals = self._type_goals(model, kind)
        self._goals_plan = plan
        now = time.monotonic()
        seconds, self._told = now - self._told, now
        self._publish_loads(seconds, loads)
        for each in loads:
            _update_metrics(*each)
        return bool(loads)

    def _publish_loads(self, seconds: float, loads: list[tuple[str, str, LoadCounts]]) -> None:
        plan = self._router.plan
        models: dict[str, dict[str, LoadCounts]] = {}
        for model, kind, load in loads:
            models.setdefault(model, {})[kind] = load
        event = LoadEvent(self._router.gateway, plan.epoch if plan else 0, seconds, self.inflight, models)
        body = messages.encode(event)
        if len(body) > self._limit and len(loads) > 1:
            half = len(loads) // 2
            self._publish_loads(seconds, loads[:half])
            self._publish_loads(seconds, loads[half:])
            return
        try:
            self._bus.publish(subjects.event_subject(subjects.LOAD), body)
        except OmnibusError as error:
            log.warning("cannot publish the load: %s", error)


def _count_stage_failure(counted_invocation: CountedInvocation, error: OmnibusError) -> None:
    """Count ``error`` for the first model with its stage; unknown stages are ``other``."""
    models = [part.model for part in counted_invocation.parts if error.stage in part.kind.split("+")]
    stage = error.stage if models else "other"
    GATEWAY.stage_failures.labels((models or [counted_invocation.parts[0].model])[0], stage, error.code).inc()


def _update_metrics(model: str, kind: str, load: LoadCounts) -> None:
    GATEWAY.arrivals.labels(model, kind).inc(load.came + load.refused)
    for outcome, count in (("done", load.done), ("failed", load.failed), ("refused", load.refused)):
        GATEWAY.ended.labels(model, kind, outcome).inc(count)
    for result, count in (("met", load.met), ("missed", load.missed)):
        if count:
            GATEWAY.goals.labels(model, result).inc(count)
    for quantity, value in load.quantities.items():
        GATEWAY.quantities.labels(model, kind, quantity).inc(value)


def register_metrics(
    settings: GatewaySettings, router: Router, members: ExecutorTable, dispatcher: Dispatcher, dead: DeadLetters
) -> None:
    """Register these objects as sources of the metrics of this process."""
    GATEWAY.inflight.set_value(lambda: dispatcher.inflight_count)
    GATEWAY.limit.set_value(lambda: settings.max_inflight)
    GATEWAY.retained.set_value(lambda: dispatcher.retention.nbytes)
    GATEWAY.epoch.set_values(lambda: {(): router.plan.epoch} if router.plan is not None else {})
    GATEWAY.created.set_values(lambda: {(): router.plan.created} if router.plan is not None else {})
    GATEWAY.planned.set_values(router.path_shares)
    GATEWAY.executors.set_values(lambda: _count_executors(members))
    GATEWAY.outstanding.set_values(lambda: _outstanding_tokens(members))
    GATEWAY.dead.set_values(lambda: _count_dead_letters(router, dead))
    GATEWAY.records_lost.set_value(lambda: dead.records_lost)


def count_paths(assignment: Assignment, path: str) -> None:
    """Count a request on the path of each of its models.

    The single paths are few, unlike their combinations in ``path``.
    """
    parts = assignment.parts
    if len(parts) == 1 and "=" not in path:
        GATEWAY.path_counter(parts[0].model, parts[0].kind, path).inc()
        return
    names = path.split(",") if len(parts) > 1 else [path]
    if len(names) == len(parts):
        for part, name in zip(parts, names, strict=True):
            GATEWAY.path_counter(part.model, part.kind, name.removeprefix(f"{part.model}=")).inc()


def _count_executors(members: ExecutorTable) -> Counter[tuple[str, ...]]:
    """Count the executors by model, option and state."""
    return Counter((*labels, state) for labels, state in members.executor_states())


def _outstanding_tokens(members: ExecutorTable) -> dict[tuple[str, ...], float]:
    """Return outstanding tokens by model and option."""
    tokens: dict[tuple[str, ...], float] = {}
    for status in members.statuses():
        member = members.get(status.id)
        key = status.model, status.option
        tokens[key] = tokens.get(key, 0.0) + (max(0.0, member.outstanding) if member is not None else 0.0)
    return tokens


def _count_dead_letters(router: Router, dead: DeadLetters) -> dict[tuple[str, str], int]:
    """Count dead letters by model and reason, from 0: the first one is an increase as well."""
    models = router.plan.models if router.plan is not None else ()
    return {(model, reason): 0 for model in models for reason in REASONS} | dead.counts
