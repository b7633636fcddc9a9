"""Measurement of the components that apps call, and the resulting profile.

A system runs the apps, and each component in an executor of its own. The requests of the workload are sent, app by app,
1, 2, 4 ... at a time, until a further doubling serves less than 5 % more. The processor time of each executor gives the
seconds of a request: other programs of the machine do not change it. An engine that batches needs fewer seconds per
request with more requests at a time.

An app that fails is left out with a note, and so is one whose unit tasks do not start.

Processor seconds of this command's processes, from /proc.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import OmnibusError, StageUnavailable
from omnibus.families.catalog import PYTHON
from omnibus.plan import CPU, Plan, request_type
from omnibus.profile import ModelProfile, OptionProfile, Point, RoleCost, TypeProfile
from omnibus.profiling.load_generator import ClosedLoop, LoadRequest, LoadResult, LoadStep, mean_quantities
from omnibus.profiling.measurements import MeasureSettings
from omnibus.profiling.memory import memory_gb
from omnibus.profiling.monitor import ExecutorMonitor
from omnibus.profiling.run import describe_machine
from omnibus.profiling.workload import Workload, WorkloadRequest

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Fields of ``/proc/PID/stat`` after the name: parent, seconds in user and in system mode.
_PARENT, _USER, _SYSTEM = 1, 11, 12


class ProcessTimes:
    """Processor seconds of all processes below this one, at one time. Without /proc, none is known."""

    def __init__(self, seconds: dict[int, float], below: frozenset[int]) -> None:
        self._seconds, self._below = seconds, below

    @classmethod
    def read_all(cls) -> "ProcessTimes":
        seconds, parents = dict[int, float](), dict[int, int]()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # a process may end
                fields = path.read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                parents[pid] = int(fields[_PARENT])
                seconds[pid] = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_SECOND
        below, fresh = set[int](), {os.getpid()}
        while fresh:
            fresh = {pid for pid, parent in parents.items() if parent in fresh} - below
            below |= fresh
        return cls(seconds, frozenset(below))

    def process_seconds(self, pid: int, default: float) -> float:
        """Return the seconds of ``pid``, or ``default`` if they are unknown."""
        return self._seconds.get(pid, default)

    def total_seconds(self, but: Collection[int]) -> float:
        """Return the seconds of all processes below this one without ``but``."""
        return sum(self._seconds[pid] for pid in self._below if pid not in but)


#: Name of the profile in the store, as the planner reads it.
APPS = "apps"
#: Least growth of the rate for which more requests at a time are tried.
_MIN_GROWTH = 1.05
#: Part of an executor's jobs below which a component counts as unused by an app.
_MIN_JOBS = 0.01


class MeasuredPart(NamedTuple):
    """A component that apps call: its executor, and its service."""

    executor: str
    model: str
    component: str
    service: str


class AppLoad(NamedTuple):
    """One load of an app: its requests, and by component the seconds of processors and of the engine per request."""

    result: LoadResult
    processor: Mapping[str, float]
    engine: Mapping[str, float]


class AppMeasurement(NamedTuple):
    """The loads of one app, with 1, 2, 4 ... requests at a time, and its mean tokens."""

    app: str
    loads: Sequence[AppLoad]
    quantities: Mapping[str, float]

    @property
    def best_load(self) -> AppLoad:
        return max(self.loads, key=lambda load: load.result.rate)


def find_parts(plan: Plan, tasks: Sequence[str], statuses: Sequence[ExecutorStatus]) -> dict[str, MeasuredPart]:
    """Return the components that run ``tasks``, by the names that the planner uses.

    These are the unit task of an app, and the name of a model that is a single component. Models of several components
    keep plans of their own. Raises ``StageUnavailable`` if a component has no executor.
    """
    owners, parts = plan.task_owners(), {}
    for task in tasks:
        model, component = owners[task][0]
        whole = plan.models[model]
        if len(whole.components) > 1 and not whole.apps:
            continue
        ready = [each for each in statuses if each.model == model and component in each.components]
        if not ready:
            raise StageUnavailable(f"the unit task {task} has no executor", stage=component)
        name = task if whole.apps else model
        parts[name] = MeasuredPart(ready[0].id, model, component, whole.options[ready[0].option].service)
    return parts


async def measure_apps(
    port: int,
    monitor: ExecutorMonitor,
    parts: Mapping[str, MeasuredPart],
    workload: Workload,
    how: MeasureSettings,
    tell: Callable[[str, int, int, str], None],
    notes: list[str],
) -> list[AppMeasurement]:
    """Measure each app of ``workload``; append the faults of those that fail to ``notes``."""
    measurements, shares = [], workload.type_shares
    for index, app in enumerate(shares):
        measurer = _AppMeasurer(port, monitor, parts, how, partial(tell, app, index, len(shares)))
        try:
            measurements.append(await measurer.measure_app(app, workload.requests_of(app)))
        except OmnibusError as error:
            notes.append(f"{app} is not measured: {error.message}")
    return measurements


class _AppMeasurer:
    def __init__(
        self,
        port: int,
        monitor: ExecutorMonitor,
        parts: Mapping[str, MeasuredPart],
        how: MeasureSettings,
        tell: Callable[[str], None],
    ) -> None:
        self._port, self._monitor, self._parts, self._how, self._tell = port, monitor, parts, how, tell

    async def measure_app(self, app: str, requests: Sequence[WorkloadRequest]) -> AppMeasurement:
        orders, loads, at_once = [LoadRequest(request) for request in requests], list[AppLoad](), 1
        while at_once <= self._how.most:
            self._tell(f"{at_once} at a time")
            loads.append(await self._run_load(orders, at_once))
            if len(loads) > 1 and loads[-1].result.rate < _MIN_GROWTH * loads[-2].result.rate:
                break
            at_once *= 2
        quantities = mean_quantities(loads[0].result.answers).get(app, {})
        return AppMeasurement(app, loads, quantities)

    async def _run_load(self, orders: Sequence[LoadRequest], at_once: int) -> AppLoad:
        looks: list[tuple[float, dict[str, tuple[float, float, float]], float]] = []
        executors = {part.executor for part in self._parts.values()}

        async def read_parts() -> None:
            await self._monitor.read_busy(executors)
            times = ProcessTimes.read_all()
            seen = {name: self._read_part(part, times) for name, part in self._parts.items()}
            pids = {self._monitor.find_status(id).pid for id in executors}
            looks.append((time.monotonic(), seen, times.total_seconds(but=pids)))

        result = await ClosedLoop(self._port, orders, at_once).run(
            LoadStep(self._how.seconds, self._how.requests), read_parts
        )
        (began, before, system_before), (ended, after, system_after) = looks
        count = result.rate * (ended - began)
        spent = {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in self._parts}
        used = {name: each for name, each in spent.items() if each[2] > _MIN_JOBS * count}
        # Gateways, bus and sidecars take their processor time from the same cores.
        overhead = (system_after - system_before) / max(1e-9, sum(each[0] for each in used.values()))
        return AppLoad(
            result,
            {name: each[0] * (1 + overhead) / count for name, each in used.items()},
            {name: each[1] / count for name, each in used.items()},
        )

    def _read_part(self, part: MeasuredPart, times: ProcessTimes) -> tuple[float, float, float]:
        """Return the seconds of processors and engine of a component so far, and its finished jobs."""
        status = self._monitor.find_status(part.executor)
        index = status.components.index(part.component)
        busy = status.busy[index]
        return times.process_seconds(status.pid, busy), busy, float(status.done[index])


def build_apps_profile(
    monitor: ExecutorMonitor,
    parts: Mapping[str, MeasuredPart],
    starts: Mapping[str, float],
    workload: Workload,
    measurements: Sequence[AppMeasurement],
    threads: int,
) -> ModelProfile:
    """Return the profile of ``parts``.

    ``starts`` are the seconds until each was ready. An engine has ``threads`` threads, and a place of the plan
    has as many cores. Raises ``StageUnavailable`` if no app could be measured.
    """
    components = tuple(name for name in parts if any(name in each.best_load.processor for each in measurements))
    if not components:
        raise StageUnavailable("no app could be measured; see the notes above")
    types = _describe_types(components, measurements, workload.type_shares)
    options = {}
    for name in components:
        part = parts[name]
        options[name] = OptionProfile(
            components=(name,),
            service=part.service,
            gpu=CPU,
            start_s=starts.get(name, 0.0),
            memory_gb=memory_gb(monitor.find_status(part.executor).pid),
            work=tuple(_role_costs(name, components, measurements, threads)),
            curve=tuple(_batch_curve(name, measurements)),
        )
    return ModelProfile(
        model=APPS,
        family=PYTHON,
        components=components,
        types=types,
        options=options,
        created=time.time(),
        machine=describe_machine(),
        workload=workload.label,
    )


def _kind_of(components: Sequence[str], measurement: AppMeasurement) -> str:
    return request_type(components, frozenset(measurement.best_load.processor))


def _describe_types(
    components: Sequence[str], measurements: Sequence[AppMeasurement], shares: Mapping[str, float]
) -> dict[str, TypeProfile]:
    """Return the request types; apps that call the same components are one."""
    measured = sum(shares[each.app] for each in measurements)
    types: dict[str, TypeProfile] = {}
    for each in measurements:
        kind, share = _kind_of(components, each), shares[each.app] / measured
        before = types.get(kind)
        types[kind] = TypeProfile(
            tuple(kind.split("+")), share + (before.share if before else 0.0), dict(each.quantities)
        )
    return types


def _role_costs(
    name: str, components: Sequence[str], measurements: Sequence[AppMeasurement], threads: int
) -> Iterator[RoleCost]:
    kinds: dict[str, list[AppMeasurement]] = {}
    for each in measurements:
        if name in each.best_load.processor:
            kinds.setdefault(_kind_of(components, each), []).append(each)
    for kind, group in kinds.items():
        seconds = sum(each.best_load.processor[name] for each in group) / len(group) / threads
        latency = sum(each.loads[0].engine.get(name, 0.0) for each in group) / len(group)
        yield RoleCost((name,), seconds, kind, latency=max(seconds, latency))


def _batch_curve(name: str, measurements: Sequence[AppMeasurement]) -> Iterator[Point]:
    """Yield the requests of one processor's second, by requests at a time: means over the apps that call ``name``."""
    found: dict[int, list[tuple[float, Point]]] = {}
    for each in measurements:
        for load in each.loads:
            if seconds := load.processor.get(name):
                found.setdefault(load.result.at_once, []).append((seconds, load.result.to_point()))
    for at_once, rows in sorted(found.items()):
        mean = sum(seconds for seconds, _ in rows) / len(rows)
        yield Point(at_once, 1 / mean, done=max(point.done for _, point in rows))
