"""Measurement of one deployment option: a replica alone, and with each type of request."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from omnibus.errors import BadRequest, DeadlineExceeded, Overloaded
from omnibus.plan import DeploymentOption
from omnibus.profile import EdgeProfile, OptionProfile, Point, RoleCost
from omnibus.profiling import conclusions, memory
from omnibus.profiling.client import TimedAnswer
from omnibus.profiling.experiments import Trial
from omnibus.profiling.load_generator import LoadRequest, LoadStep, mean_quantities
from omnibus.profiling.loaded_option import LoadedOption, StepMeasurement, bottleneck_notes, split_by_size
from omnibus.profiling.measured_model import Subject
from omnibus.profiling.measurements import CostSample, MeasureSettings, OptionMeasurement
from omnibus.profiling.monitor import EdgeRecorder
from omnibus.profiling.size_variants import relevant_variants
from omnibus.profiling.testbed import NotStarted, Testbed
from omnibus.profiling.workload import Workload, WorkloadRequest

#: Growth of the rate below which a step is flat, and flat steps in a row that end the climb.
MIN_GROWTH, MAX_FLAT_STEPS = 0.05, 2
#: Sequential requests of each type; and answers per concurrent request in steps that measure seconds.
SEQUENTIAL_REQUEST_COUNT, ANSWERS_PER_REQUEST = 3, 4
#: Seconds after its answer that the end of a request may come.
_END_SECONDS = 1.0

Tell = Callable[[str], None]


class Role(NamedTuple):
    """Role of the option on one path: the components that it runs of requests of one type."""

    kind: str
    components: tuple[str, ...]
    pin: str


class _AloneSeconds(NamedTuple):
    """Seconds of a role, one request at a time: 0 if unknown.

    ``first_token`` is the part until the first token, ``overhead`` the request's seconds outside executors.
    """

    latency: float
    first_token: float = 0.0
    overhead: float = 0.0


async def measure_option(
    house: Testbed,
    subject: Subject,
    workload: Workload,
    trial: Trial,
    how: MeasureSettings,
    tell: Tell,
    line_components: Collection[str] = (),
) -> OptionMeasurement:
    """Deploy ``trial`` and measure its option, unless it does not start: the planner then estimates it.

    For ``line_components``, it also measures requests of other sizes.
    """
    tell("starting")
    plain = describe_option(subject, trial.options[trial.option], how.gpu)
    try:
        deployment = await house.deploy(trial)
    except NotStarted as error:
        return OptionMeasurement(plain, notes=(f"{trial.option} is not measured: {error.message}",))
    loaded_option = LoadedOption(house, trial, deployment, how.most_others, tell)
    measuring = _OptionProfiler(subject, workload, how, loaded_option, tell)
    return await house.hearing.unless_ended(deployment.executors, measuring.run(plain, line_components))


def describe_option(subject: Subject, declaration: DeploymentOption, gpu: str) -> OptionProfile:
    """Return ``declaration`` as an unmeasured profile on ``gpu``."""
    return OptionProfile(
        components=subject.in_flow_order(declaration.components),
        service=declaration.service,
        engine=declaration.engine,
        gpus=max(1, declaration.gpus),
        gpu=gpu,
        tp=declaration.gpus if declaration.gpus > 1 else 0,
        batch=declaration.batch,
        checkpoint=declaration.checkpoint,
        dtype=declaration.dtype,
        vllm=declaration.vllm,
        weights_gb=memory.weights_gb(
            subject.family, declaration.checkpoint or subject.checkpoint, declaration.components
        ),
    )


class _OptionProfiler:
    def __init__(
        self, subject: Subject, workload: Workload, how: MeasureSettings, loaded_option: LoadedOption, tell: Tell
    ) -> None:
        self._subject = subject
        self._workload = workload
        self._how = how
        self._loaded = loaded_option
        self._tell = tell
        self._name = loaded_option.trial.option
        self._notes: list[str] = []
        self._held: dict[str, StepMeasurement] = {}
        self._hits = 0
        self._samples: list[CostSample] = []
        #: Components after encoders must not slow them down.
        self._short = {*loaded_option.trial.components} <= {*subject.encoder_components}

    async def run(self, plain: OptionProfile, line_components: Collection[str]) -> OptionMeasurement:
        edges: list[EdgeProfile] = []
        quantities: dict[str, dict[str, float]] = {}
        alone = {role: await self._measure_alone(role, edges, quantities) for role in self._list_roles()}
        curve, best = await self._sweep_load()
        at_once = await self._loaded.full_load(best.seen.at_once, self._how.most)
        work = []
        for role, own in alone.items():
            if role.components:
                seconds = await self._measure_role(role, at_once)
                if seconds is not None:
                    work.append(RoleCost(role.components, seconds, role.kind, own.latency, own.first_token))
        await self._measure_sizes(list(alone), at_once, line_components)
        stats = await self._loaded.read_stats()
        whole = msgspec.structs.replace(
            plain,
            rate=self._mix_rate(best, work),
            start_s=self._loaded.start_seconds or plain.start_s,
            memory_gb=memory.memory_gb(self._loaded.pid),
            gpu_memory_gb=memory.gpu_memory_gb(stats),
            work=tuple(work),
            curve=tuple(curve),
        )
        if self._hits:
            self._notes.append(f"{self._name} took {self._hits} results from caches: its seconds are too low")
        notes = [*self._notes, *self._loaded.notes, *bottleneck_notes(self._name, self._held)]
        return OptionMeasurement(
            whole,
            tuple(edges),
            tuple(self._samples),
            quantities,
            best.load,
            tuple(dict.fromkeys(notes)),
            memory.kv_bytes(stats),
            tuple(own.overhead for own in alone.values() if own.overhead),
        )

    def _mix_rate(self, best: StepMeasurement, work: Sequence[RoleCost]) -> float:
        """Return requests of the mix per second: measured if the option limited them.

        Otherwise the rate follows from ``work``, or is 0 if that is unknown.
        """
        if best.busy is None or best.is_bottleneck:
            return best.seen.rate
        trial = self._loaded.trial
        full, components_by_kind = trial.paths[0], {each.kind: each.used for each in self._workload.requests}
        whole = {
            each.type: each.seconds
            for each in work
            if each.components == trial.role_components(full, components_by_kind[each.type])
        }
        mix_seconds = sum(share * whole.get(kind, 0.0) for kind, share in self._workload.type_shares.items())
        return 1.0 / mix_seconds if mix_seconds > 0 else 0.0

    def _list_roles(self) -> list[Role]:
        """Return each role once for each type.

        The first path is listed for all types, since the requests' quantities are measured on it.
        """
        trial, roles = self._loaded.trial, dict[tuple[str, tuple[str, ...]], Role]()
        for path in trial.paths:
            for request in self._workload.requests:
                role = trial.role_components(path, request.used)
                if role or path == trial.paths[0]:
                    pin = trial.path_name(path, request.used) if len(trial.paths) > 1 else ""
                    roles.setdefault((request.kind, role), Role(request.kind, role, pin))
        return list(roles.values())

    async def _measure_alone(
        self, role: Role, edges: list[EdgeProfile], quantities: dict[str, dict[str, float]]
    ) -> _AloneSeconds:
        """Send requests one at a time, and measure the role's seconds.

        Adds bytes between components to ``edges``, and the sizes that answers report to ``quantities``.
        """
        self._tell(f"{role.kind or 'requests'} one at a time")
        recorder = EdgeRecorder(self._subject.name, role.kind)
        await recorder.listen(self._loaded.bus)
        try:
            orders = [LoadRequest(request, role.pin) for request in self._workload.requests_of(role.kind)]
            step = LoadStep(self._how.seconds / 2, SEQUENTIAL_REQUEST_COUNT)
            load_result = (await self._loaded.run_step(orders, 1, step)).seen
            every = [*load_result.answers, *load_result.others]  # all whose edges were recorded
            await recorder.wait_until_done(len(every), _END_SECONDS)
        finally:
            await recorder.close()
        quantities.update({kind: each for kind, each in mean_quantities(every).items() if kind not in quantities})
        edge_keys = {(edge.source, edge.target) for edge in edges if edge.type == role.kind}
        rows = recorder.mean_rows()
        edges += [
            EdgeProfile(source, target, nbytes, role.kind, *rows.get((source, target), (0.0, 0.0)))
            for (source, target), nbytes in sorted(recorder.mean_bytes().items())
            if (source, target) not in edge_keys
        ]
        return self._time_alone(
            role, recorder.mean_latency(self._loaded.executor), [each for _, each in load_result.answers]
        )

    def _time_alone(self, role: Role, latency: float, answers: Sequence[TimedAnswer]) -> _AloneSeconds:
        """Return the seconds of one request, and those to its first token.

        The latter are 0 unless the role ends with the text's last token.
        """
        text = self._subject.required_components
        if not text or not {*text} <= {*role.components} or role.components[-1] != text[-1]:
            return _AloneSeconds(latency)
        first, overhead = conclusions.seconds_to_first_token(latency, answers)
        used_components = self._workload.requests_of(role.kind)[0].used
        return _AloneSeconds(latency, first, overhead if {*used_components} == {*role.components} else 0.0)

    async def _sweep_load(self) -> tuple[list[Point], StepMeasurement]:
        """Run the mix with 1, 2, 4 ... requests until more do not help. Returns the curve and its best step.

        If other options of the path limit the rate, they get more replicas, and the sweep continues from the best load.
        """
        trial = self._loaded.trial
        full, several, parts = trial.paths[0], len(trial.paths) > 1, {*trial.components}
        orders = [
            LoadRequest(
                request,
                trial.path_name(full, request.used) if several else "",
                self._short,
                not parts.isdisjoint(request.used),
            )
            for request in self._workload.requests
        ]
        steps = await self._climb_load(orders, [], 1)
        best = max(steps, key=lambda each: each.seen.rate)
        while not best.is_bottleneck and await self._loaded.raise_others(best):
            before = best
            lighter = [each for each in steps if each.seen.at_once < best.seen.at_once]
            steps = await self._climb_load(orders, lighter, best.seen.at_once)
            best = max(steps, key=lambda each: each.seen.rate)
            if best.seen.rate < before.seen.rate * (1 + MIN_GROWTH):
                break
        if best.busy is None:
            self._notes.append(f"{self._name} does not report its busy time: its seconds assume a bottleneck")
        return [each.seen.to_point() for each in steps], best

    async def _climb_load(
        self, orders: list[LoadRequest], steps: list[StepMeasurement], at_once: int
    ) -> list[StepMeasurement]:
        """Return ``steps`` and steps from ``at_once`` requests until more do not help."""
        steps, flat = list(steps), 0
        while at_once <= self._how.most and flat < MAX_FLAT_STEPS:
            rate = f", {steps[-1].seen.rate:.3g} req/s" if steps else ""
            self._tell(f"{at_once} at a time{rate}")
            try:
                step = await self._loaded.run_step(orders, at_once, LoadStep(self._how.seconds, self._how.requests))
            except (Overloaded, DeadlineExceeded) as error:
                if not steps:
                    raise
                self._notes.append(f"{self._name} was not loaded further than {at_once // 2}: {error.message}")
                break
            flat = flat + 1 if steps and step.seen.rate < steps[-1].seen.rate * (1 + MIN_GROWTH) else 0
            steps.append(step)
            at_once *= 2
        if not flat and len(steps) > 1 and at_once > self._how.most:
            self._notes.append(f"{self._name} still gained throughput at {at_once // 2} at a time: raise --most")
        return steps

    async def _measure_role(self, role: Role, at_once: int) -> float | None:
        """Return the role's seconds per request: None if it computed nothing."""
        total = 0.0
        for share, requests in split_by_size(self._workload.requests_of(role.kind)):
            self._tell(f"{role.kind or 'requests'} alone, {at_once} at a time")
            result = await self._load_fully([LoadRequest(each, role.pin, self._short) for each in requests], at_once)
            if result.seconds is None:
                self._notes.append(
                    f"{self._name} computed nothing for {role.kind or 'requests'}, though {result.seen.rate:.3g} req/s "
                    "were served: it has no seconds for these"
                )
                return None
            if result.busy is not None and not result.is_bottleneck:
                self._held[role.kind] = result
            total += share * result.seconds
            self._samples.append(self._cost_sample(role, result, share))
        return total

    async def _load_fully(self, orders: list[LoadRequest], at_once: int) -> StepMeasurement:
        """Run a step in which the option is the bottleneck.

        It tries more requests first, then more replicas of other options, up to their limits.
        """
        result, is_refused = await self._loaded.run_most(orders, at_once, self._full_step)
        at_once, enough = result.seen.at_once, is_refused
        while not result.is_bottleneck:
            at_limit = enough or 2 * at_once > self._how.most
            if at_limit and not await self._loaded.raise_others(result):
                break
            at_once *= 1 if at_limit else 2
            try:
                before, result = result, await self._loaded.run_step(orders, at_once, self._full_step(at_once))
            except (Overloaded, DeadlineExceeded):
                break
            grew = result.seen.rate >= before.seen.rate * (1 + MIN_GROWTH)
            if at_limit and not grew:
                break
            enough = not grew
        self._hits += result.engine.hits
        return result

    def _full_step(self, at_once: int) -> LoadStep:
        """Return a step with enough requests for the workload's mean sizes."""
        return LoadStep(self._how.seconds, max(self._how.requests, ANSWERS_PER_REQUEST * at_once))

    def _cost_sample(self, role: Role, result: StepMeasurement, share: float) -> CostSample:
        answers = result.seen.answers
        return CostSample(
            kind=role.kind,
            quantities=mean_quantities(answers).get(role.kind, {}),
            seconds=result.component_seconds(role.components),
            role=role.components,
            share=share,
            count=len(answers) if share else 0,
            short=self._short,
        )

    async def _measure_sizes(self, roles: Sequence[Role], at_once: int, line_components: Collection[str]) -> None:
        """Sample ``line_components`` with other sizes of frequent requests."""
        shares = self._workload.type_shares
        measured_variants: set[tuple[str, str]] = set()
        for component in line_components:
            able = [role for role in roles if component in role.components]
            if not able:
                continue
            role = max(able, key=lambda each: (len(each.components), shares[each.kind]))
            [request] = [each for each in self._workload.requests_of(role.kind) if each.variants]
            for name in relevant_variants(self._subject, component):
                if (role.kind, name) not in measured_variants and name in request.variants:
                    measured_variants.add((role.kind, name))
                    await self._measure_variant(role, request.variants[name], name, at_once)

    async def _measure_variant(self, role: Role, request: WorkloadRequest, name: str, at_once: int) -> None:
        self._tell(f"{role.kind or 'requests'} with {name}")
        try:
            result = await self._load_fully([LoadRequest(request, role.pin, self._short)], at_once)
        except (BadRequest, Overloaded, DeadlineExceeded) as error:
            self._notes.append(f"{self._name} was not measured with {name}: {error.message}")
            return
        if result.seconds is not None:
            self._samples.append(self._cost_sample(role, result, 0.0))
