"""Observations of plans, executors, gateways and their load over the last seconds. No I/O."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from omnibus.bus.heartbeats import EXECUTOR_ABSENT_SECONDS, GATEWAY_FORGOTTEN_SECONDS, LOAD_ABSENT_SECONDS
from omnibus.bus.messages import ExecutorStatus, GatewayStatus, LoadCounts, LoadEvent
from omnibus.cluster.load_window import LoadWindow
from omnibus.cluster.nodes import NodeDirectory
from omnibus.cluster.presence import ExecutorKind, PresenceTracker, replica_counts
from omnibus.plan import Plan
from omnibus.store import PlanProblem, PlanState

#: Seconds over which rates are computed.
RATE_WINDOW_SECONDS = 5.0


class Totals(NamedTuple):
    """Totals of one model and request type. Rates are per second. ``first`` and ``total`` are mean seconds, None
    without requests."""

    came: float
    done: float
    failed: int  # since the beginning
    refused: int  # since the beginning
    first: float | None
    total: float | None
    quantities: dict[str, float]  # per second


class NodeExecutor(NamedTuple):
    """Executor on a node. ``busy`` is a share of its time, None if unknown."""

    id: str
    model: str
    option: str
    state: str
    busy: float | None
    inflight: int


class OptionState(NamedTuple):
    """Executors of one kind. ``busy`` is a share of the time of those that are up, ``jobs`` per second."""

    kind: ExecutorKind
    components: tuple[str, ...]
    wanted: int
    staged: int | None  # number in the staged plan
    up: int
    leaving: int
    busy: float | None
    inflight: int
    jobs: float | None


class _ExecutorHistory:
    """Last status and recent work of one executor."""

    def __init__(self) -> None:
        self.status: ExecutorStatus
        self._samples: deque[tuple[float, float, int]] = deque()

    def add_status(self, status: ExecutorStatus, now: float) -> None:
        self.status = status
        self._samples.append((now, sum(status.busy), sum(status.done)))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def busy(self) -> float | None:
        """Return the busy share of the time. If engines of several components compute concurrently, the time counts
        once."""
        rates = self._compute_rates()
        return min(1.0, rates[0]) if rates is not None and self.status.busy else None

    @property
    def jobs(self) -> float | None:
        rates = self._compute_rates()
        return rates[1] if rates is not None and self.status.done else None

    def _compute_rates(self) -> tuple[float, float] | None:
        (began, busy, jobs), (end, later, more) = self._samples[0], self._samples[-1]
        if end <= began:
            return None
        return max(0.0, later - busy) / (end - began), max(0, more - jobs) / (end - began)


class SystemState:
    """State of the observed system. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stand = PlanState(0, 0, 0, 0)
        self.plan: Plan | None = None
        self.staged: Plan | None = None
        self.problems: Mapping[str, PlanProblem] = {}
        self.nodes = NodeDirectory(clock)
        self._clock = clock
        self._executors = PresenceTracker[_ExecutorHistory](EXECUTOR_ABSENT_SECONDS, clock)
        self._gateways = PresenceTracker[int](GATEWAY_FORGOTTEN_SECONDS, clock)  # epochs
        self._gateway_nodes = PresenceTracker[str](GATEWAY_FORGOTTEN_SECONDS, clock)
        self._inflight = PresenceTracker[int](LOAD_ABSENT_SECONDS, clock)
        self._recent = LoadWindow(RATE_WINDOW_SECONDS, clock)
        self._lost: dict[tuple[str, str], list[int]] = {}  # failed and refused since the beginning

    # Events

    def handle_executor(self, status: ExecutorStatus) -> None:
        if status.state == "gone":
            self.handle_gone(status.id)
            return
        history = self._executors.get(status.id) or _ExecutorHistory()
        history.add_status(status, self._clock())
        self._executors.record(status.id, history)

    def handle_gone(self, executor: str) -> None:
        self._executors.remove(executor)

    def handle_gateway(self, status: GatewayStatus) -> None:
        if status.state == "ready":
            self._gateways.record(status.id, status.epoch)
            self._gateway_nodes.record(status.id, status.node)
        else:
            self._gateways.remove(status.id)
            self._gateway_nodes.remove(status.id)
            self._inflight.remove(status.id)

    def handle_load(self, event: LoadEvent) -> None:
        self._recent.add_event(event)
        self._inflight.record(event.gateway, event.inflight)
        self._gateways.record(event.gateway, event.epoch)
        for model, types in event.models.items():
            for kind, load in types.items():
                losses = self._lost.setdefault((model, kind), [0, 0])
                losses[0] += load.failed
                losses[1] += load.refused

    def handle_disconnect(self) -> None:
        """Drop load data, as the bus was disconnected and events were lost."""
        self._recent.clear()
        self._inflight.forget_before(math.inf)

    # State

    @property
    def gateways(self) -> dict[str, int]:
        """Return the plan's epoch at each gateway."""
        return dict(sorted(self._gateways.entries().items()))

    def node_gateways(self) -> dict[str, list[str]]:
        """Return the ids of the gateways on each node."""
        gateways: dict[str, list[str]] = {}
        for gateway, node in sorted(self._gateway_nodes.entries().items()):
            gateways.setdefault(node, []).append(gateway)
        return gateways

    def node_executors(self) -> dict[str, list[NodeExecutor]]:
        """Return the executors on each node."""
        executors: dict[str, list[NodeExecutor]] = {}
        for id, each in sorted(self._executors.entries().items()):
            status = each.status
            executor = NodeExecutor(id, status.model, status.option, status.state, each.busy, status.inflight)
            executors.setdefault(status.node, []).append(executor)
        return executors

    @property
    def inflight(self) -> int:
        """Return the invocations in flight at all gateways."""
        return sum(self._inflight.entries().values())

    @property
    def span(self) -> float:
        """Return the seconds over which rates are computed now."""
        return self._recent.span

    def type_totals(self) -> dict[tuple[str, str], Totals]:
        """Return the totals of every model and type requested since the beginning."""
        self._recent.drop_expired()
        rates = {key: _RateSums() for key in self._lost}
        for event, per_second in self._recent.event_rates():
            for model, types in event.models.items():
                for kind, load in types.items():
                    rates[model, kind].add_load(load, per_second)
        return {key: rates[key].to_totals(*losses) for key, losses in sorted(self._lost.items())}

    def ready_counts(self) -> dict[ExecutorKind, int]:
        """Return the number of ready executors of each kind."""
        counts: dict[ExecutorKind, int] = {}
        for each in self._executors.entries().values():
            if each.status.state == "ready":
                kind = self._executor_kind(each.status)
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    def option_states(self) -> list[OptionState]:
        """Return the states of all planned or running kinds of executors."""
        planned_counts = replica_counts(self.plan.models) if self.plan is not None else {}
        staged_counts = replica_counts(self.staged.models) if self.staged is not None else None
        there: dict[ExecutorKind, list[_ExecutorHistory]] = {}
        for each in self._executors.entries().values():
            there.setdefault(self._executor_kind(each.status), []).append(each)
        kinds = dict.fromkeys([*planned_counts, *(staged_counts or {}), *sorted(there)])
        return [
            _option_state(
                kind, self._option_components(kind, there), planned_counts, staged_counts, there.get(kind, [])
            )
            for kind in sorted(kinds, key=lambda kind: kind[:2])
        ]

    def _executor_kind(self, status: ExecutorStatus) -> ExecutorKind:
        """Return the kind of an executor. One without an origin counts for any, so for the planned one."""
        for plan in (self.plan, self.staged) if not status.origin else ():
            model = plan.models.get(status.model) if plan is not None else None
            if model is not None and status.option in model.options:
                return ExecutorKind(status.model, status.option, model.option_origin(status.option))
        return ExecutorKind(status.model, status.option, status.origin)

    def _option_components(
        self, kind: ExecutorKind, there: Mapping[ExecutorKind, list[_ExecutorHistory]]
    ) -> tuple[str, ...]:
        if kind in there:
            return there[kind][0].status.components
        for plan in (self.plan, self.staged):
            model = plan.models.get(kind.model) if plan is not None else None
            if model is not None and kind.option in model.options:
                return model.options[kind.option].components
        return ()


class _RateSums:
    def __init__(self) -> None:
        self.came = self.done = self.first = self.total = 0.0
        self.quantities: dict[str, float] = {}

    def add_load(self, load: LoadCounts, per_second: float) -> None:
        self.came += per_second * (load.came + load.refused)
        self.done += per_second * load.done
        self.first += per_second * load.first
        self.total += per_second * load.total
        for name, value in load.quantities.items():
            self.quantities[name] = self.quantities.get(name, 0.0) + per_second * value

    def to_totals(self, failures: int, refusals: int) -> Totals:
        first, total = (self.first / self.done, self.total / self.done) if self.done > 0 else (None, None)
        return Totals(max(0.0, self.came), self.done, failures, refusals, first, total, self.quantities)


def sum_totals(parts: Iterable[Totals]) -> Totals:
    """Return the totals of several types."""
    parts = list(parts)
    done_count = sum(part.done for part in parts)
    quantities: dict[str, float] = {}
    for part in parts:
        for name, value in part.quantities.items():
            quantities[name] = quantities.get(name, 0.0) + value
    first, total = (
        sum(part.done * (seconds or 0.0) for part, seconds in zip(parts, means, strict=True)) / done_count
        if done_count
        else None
        for means in ([part.first for part in parts], [part.total for part in parts])
    )
    return Totals(
        sum(part.came for part in parts),
        done_count,
        sum(part.failed for part in parts),
        sum(part.refused for part in parts),
        first,
        total,
        quantities,
    )


def planned_rates(plan: Plan | None) -> dict[tuple[str, str], float]:
    """Return the requests per second that the plan was made for. They are by model and type, for models whose rates the
    solver found.

    Rates of other models' paths are shares without a unit.
    """
    models = plan.explain.get("planned", {}).get("models", {}) if plan is not None else {}
    return {
        (name, kind): each["rate"] for name, model in models.items() for kind, each in model.get("types", {}).items()
    }


def _option_state(
    kind: ExecutorKind,
    components: tuple[str, ...],
    planned_counts: Mapping[ExecutorKind, int],
    staged_counts: Mapping[ExecutorKind, int] | None,
    there: list[_ExecutorHistory],
) -> OptionState:
    ready = [each for each in there if each.status.state == "ready"]
    busy = [each.busy for each in ready if each.busy is not None]
    jobs = [each.jobs for each in there if each.jobs is not None]
    return OptionState(
        kind=kind,
        components=components,
        wanted=planned_counts.get(kind, 0),
        staged=staged_counts.get(kind, 0) if staged_counts is not None else None,
        up=len(ready),
        leaving=len(there) - len(ready),
        busy=sum(busy) / len(busy) if busy else None,
        inflight=sum(each.status.inflight for each in there),
        jobs=sum(jobs) if jobs else None,
    )
