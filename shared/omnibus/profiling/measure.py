"""One deployment option: what a replica of it can do, by itself and for each type of request."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from omnibus.errors import DeadlineExceeded, Overloaded
from omnibus.profile import EdgeProfile, OptionProfile, Point, RoleCost
from omnibus.profiling import memory
from omnibus.profiling.experiments import Trial
from omnibus.profiling.load_generator import ClosedLoop, LoadRequest, LoadResult, LoadStep, mean_quantities
from omnibus.profiling.measured_model import Subject
from omnibus.profiling.monitor import BusySample, EdgeRecorder
from omnibus.profiling.testbed import DeployedTrial, NotStarted, Testbed
from omnibus.profiling.workload import Workload, WorkloadRequest

#: A step that serves less than so much more than the one before has found the end, the second time in a row.
MIN_GROWTH, MAX_FLAT_STEPS = 0.05, 2
#: Share of the time that an option must be busy to count as what holds requests back.
BOTTLENECK_LOAD = 0.85
#: Sizes that differ by more than this factor are measured apart.
MIN_SIZE_RATIO = 1.2
#: Requests one at a time, of each type.
SEQUENTIAL_REQUEST_COUNT = 3

Tell = Callable[[str], None]


class MeasureSettings(msgspec.Struct, frozen=True):
    """``seconds`` and ``requests`` of a step, ``most`` at a time; ``others`` is how many replicas the rest has, ``gpu``
    the type that options run on."""

    seconds: float = 5.0
    requests: int = 16
    most: int = 64
    others: int = 1
    gpu: str = "cpu"


class CostSample(msgspec.Struct, frozen=True):
    """Mean quantities of requests of one type and size, and the seconds of each component that they cost."""

    kind: str
    quantities: dict[str, float]
    seconds: dict[str, float]


class OptionMeasurement(msgspec.Struct, frozen=True):
    """All that measuring one option gave. ``busy`` is its busy share when it was saturated; -1: it does not say."""

    option: OptionProfile
    edges: tuple[EdgeProfile, ...] = ()
    samples: tuple[CostSample, ...] = ()
    quantities: dict[str, dict[str, float]] = {}
    busy: float = -1.0
    notes: tuple[str, ...] = ()


class StepMeasurement(NamedTuple):
    """A step, and the share of its time that each component of the option was busy; None: it does not say."""

    seen: LoadResult
    busy: dict[str, float] | None

    @property
    def load(self) -> float:
        return sum(self.busy.values()) if self.busy is not None else -1.0

    @property
    def seconds(self) -> float:
        """Of one replica per request: by the service demand law where something else holds requests back."""
        held = 0.0 < self.load < BOTTLENECK_LOAD
        return (self.load if held else 1.0) / self.seen.rate

    def component_seconds(self, role: Sequence[str]) -> dict[str, float]:
        """Seconds of each component of the ``role``."""
        if len(role) == 1:
            return {role[0]: self.seconds}
        if self.busy is None or not self.load > 0:
            return {}
        return {part: self.seconds * self.busy.get(part, 0.0) / self.load for part in role}


class Role(NamedTuple):
    """Role of the option on one path: the components that it runs of requests of one type."""

    kind: str
    components: tuple[str, ...]
    pin: str


async def measure_option(
    house: Testbed, subject: Subject, workload: Workload, trial: Trial, how: MeasureSettings, tell: Tell
) -> OptionMeasurement:
    """Deploy ``trial`` and measure its option. One that does not start is left for the planner to estimate."""
    tell("starting")
    declared = trial.options[trial.option]
    plain = OptionProfile(
        components=subject.in_flow_order(declared.components),
        service=declared.service,
        engine=declared.engine,
        gpus=max(1, declared.gpus),
        gpu=how.gpu,
        weights_gb=memory.weights_gb(subject.family, subject.checkpoint, declared.components),
    )
    try:
        deployed = await house.deploy(trial)
    except NotStarted as error:
        return OptionMeasurement(plain, notes=(f"{trial.option} is not measured: {error.message}",))
    measuring = _OptionProfiler(house, subject, workload, trial, how, deployed, tell)
    return await house.hearing.unless_ended(deployed.executors, measuring.run(plain))


class _OptionProfiler:
    def __init__(
        self,
        house: Testbed,
        subject: Subject,
        workload: Workload,
        trial: Trial,
        how: MeasureSettings,
        deployed: DeployedTrial,
        tell: Tell,
    ) -> None:
        self._house = house
        self._subject = subject
        self._workload = workload
        self._trial = trial
        self._how = how
        self._deployed = deployed
        self._tell = tell
        self._notes: list[str] = []
        #: Nothing after encoders is to hold them back.
        self._short = {*trial.components} <= {*subject.encoder_components}

    async def run(self, plain: OptionProfile) -> OptionMeasurement:
        edges: list[EdgeProfile] = []
        quantities: dict[str, dict[str, float]] = {}
        latency = {role: await self._measure_alone(role, edges, quantities) for role in self._list_roles()}
        curve, best = await self._sweep_load()
        work, samples = [], []
        for role in latency:
            if role.components:
                seconds, found = await self._measure_role(role, best.seen.at_once)
                work.append(RoleCost(role.components, seconds, role.kind, latency[role]))
                samples += found
        whole = msgspec.structs.replace(
            plain,
            rate=self._mix_rate(best, work),
            start_s=self._house.starts.get(self._trial.option, plain.start_s),
            memory_gb=memory.memory_gb(self._deployed.pid),
            work=tuple(work),
            curve=tuple(curve),
        )
        return OptionMeasurement(whole, tuple(edges), tuple(samples), quantities, best.load, tuple(self._notes))

    def _mix_rate(self, best: StepMeasurement, work: Sequence[RoleCost]) -> float:
        """Requests of the mix per second: what was served, unless others held it back."""
        if best.busy is None or best.load >= BOTTLENECK_LOAD:
            return best.seen.rate
        full, used = self._trial.paths[0], {each.kind: each.used for each in self._workload.requests}
        whole = {
            each.type: each.seconds
            for each in work
            if each.components == self._trial.role_components(full, used[each.type])
        }
        spent = sum(share * whole.get(kind, 0.0) for kind, share in self._workload.type_shares.items())
        return 1.0 / spent if spent > 0 else best.seen.rate

    def _list_roles(self) -> list[Role]:
        """Each role once for each type. The first path is there for all types: what they bring is seen on it."""
        trial, found = self._trial, dict[tuple[str, tuple[str, ...]], Role]()
        for path in trial.paths:
            for request in self._workload.requests:
                role = trial.role_components(path, request.used)
                if role or path == trial.paths[0]:
                    pin = trial.path_name(path, request.used) if len(trial.paths) > 1 else ""
                    found.setdefault((request.kind, role), Role(request.kind, role, pin))
        return list(found.values())

    async def _measure_alone(
        self, role: Role, edges: list[EdgeProfile], quantities: dict[str, dict[str, float]]
    ) -> float:
        """Requests one at a time: seconds of the role, bytes between components, what the answers tell."""
        self._tell(f"{role.kind or 'requests'} one at a time")
        heard = EdgeRecorder(self._subject.name, role.kind)
        await heard.listen(self._house.stack.bus)
        try:
            orders = [LoadRequest(request, role.pin) for request in self._workload.requests_of(role.kind)]
            seen = (await self._run_step(orders, 1, LoadStep(self._how.seconds / 2, SEQUENTIAL_REQUEST_COUNT))).seen
        finally:
            await heard.close()
        quantities.update(
            {kind: each for kind, each in mean_quantities(seen.answers).items() if kind not in quantities}
        )
        known = {(edge.source, edge.target) for edge in edges if edge.type == role.kind}
        edges += [
            EdgeProfile(source, target, nbytes, role.kind)
            for (source, target), nbytes in sorted(heard.mean_bytes().items())
            if (source, target) not in known
        ]
        return heard.mean_latency(self._deployed.under)

    async def _sweep_load(self) -> tuple[list[Point], StepMeasurement]:
        """The mix with 1, 2, 4 ... at a time until more does not help; the curve, and its best step."""
        full = self._trial.paths[0]
        several = len(self._trial.paths) > 1
        orders = [
            LoadRequest(request, self._trial.path_name(full, request.used) if several else "", self._short)
            for request in self._workload.requests
        ]
        taken: list[StepMeasurement] = []
        flat, at_once = 0, 1
        while at_once <= self._how.most and flat < MAX_FLAT_STEPS:
            rate = f", {taken[-1].seen.rate:.3g} req/s" if taken else ""
            self._tell(f"{at_once} at a time{rate}")
            try:
                step = await self._run_step(orders, at_once, LoadStep(self._how.seconds, self._how.requests))
            except (Overloaded, DeadlineExceeded) as error:
                if not taken:
                    raise
                self._notes.append(f"{self._trial.option} was not loaded further than {at_once // 2}: {error.message}")
                break
            flat = flat + 1 if taken and step.seen.rate < taken[-1].seen.rate * (1 + MIN_GROWTH) else 0
            taken.append(step)
            at_once *= 2
        if not flat and len(taken) > 1 and at_once > self._how.most:
            self._notes.append(
                f"{self._trial.option} served more and more up to {at_once // 2} at a time: raise --most"
            )
        best = max(taken, key=lambda each: each.seen.rate)
        if best.busy is None:
            self._notes.append(
                f"{self._trial.option} does not say how busy it is: its seconds are right if it held all back"
            )
        return [each.seen.to_point() for each in taken], best

    async def _measure_role(self, role: Role, at_once: int) -> tuple[float, list[CostSample]]:
        """Seconds per request of the role, requests of that type alone; and samples of what sizes cost."""
        total, samples = 0.0, []
        for share, requests in _split_by_size(self._workload.requests_of(role.kind)):
            self._tell(f"{role.kind or 'requests'} alone, {at_once} at a time")
            orders = [LoadRequest(request, role.pin, self._short) for request in requests]
            taken = await self._run_step(orders, at_once, LoadStep(self._how.seconds, self._how.requests))
            total += share * taken.seconds
            brought = mean_quantities(taken.seen.answers).get(role.kind, {})
            samples.append(CostSample(role.kind, brought, taken.component_seconds(role.components)))
        return total, samples

    async def _run_step(self, orders: list[LoadRequest], at_once: int, step: LoadStep) -> StepMeasurement:
        heard: list[BusySample] = []

        async def record_busy() -> None:
            heard.append(await self._house.hearing.read_busy(self._deployed.under))

        seen = await ClosedLoop(self._house.stack.port, orders, at_once).run(step, record_busy)
        return StepMeasurement(seen, _busy_shares(*heard))


def _busy_shares(before: BusySample, after: BusySample) -> dict[str, float] | None:
    if before.seconds is None or after.seconds is None:
        return None
    passed = max(after.at - before.at, 1e-9)
    return {part: max(0.0, after.seconds[part] - before.seconds[part]) / passed for part in after.seconds}


def _split_by_size(requests: Sequence[WorkloadRequest]) -> list[tuple[float, list[WorkloadRequest]]]:
    """Small and large ones apart, each with its part of the requests; all together where sizes do not differ."""
    by_size = sorted(requests, key=lambda request: request.size)
    if by_size[-1].size <= by_size[0].size * MIN_SIZE_RATIO:
        return [(1.0, by_size)]
    total, passed = sum(request.share for request in by_size), 0.0
    small: list[WorkloadRequest] = []
    for request in by_size[:-1]:
        if small and passed + request.share / 2 > total / 2:
            break
        small.append(request)
        passed += request.share
    return [(passed / total, small), (1 - passed / total, by_size[len(small) :])]
