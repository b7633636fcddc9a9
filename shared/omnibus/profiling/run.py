"""Measurement of all options of a model, and the resulting profile."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from omnibus.errors import StageUnavailable
from omnibus.plan import DeploymentOption
from omnibus.process.logs import Log
from omnibus.profile import CostLine, ModelProfile, OptionProfile, TypeProfile
from omnibus.profiling import conclusions, measure
from omnibus.profiling.experiments import make_trial
from omnibus.profiling.measured_model import Subject
from omnibus.profiling.measurements import MeasureSettings, OptionMeasurement, PartialProfile
from omnibus.profiling.testbed import Testbed
from omnibus.profiling.workload import Workload

#: Variables that give executors another engine, and that engine the times to simulate.
ENGINE, ENGINE_PROFILE = "OMNIBUS_EXECUTOR_ENGINE", "OMNIBUS_EXECUTOR_PROFILE"
#: Settings of measured executors. Requests repeat: with caches, the profiler would measure cache hits instead of work.
#: With a low priority, it would measure the other programs of the machine.
MEASURED = {
    "OMNIBUS_EXECUTOR_CACHE_MIB": "0",
    "OMNIBUS_EXECUTOR_NICE": "0",
    "OMNIBUS_VLLM_PREFIX_CACHE": "false",
}

#: Callback for progress: the option, the options done, all options, and a message.
Tell = Callable[[str, int, int, str], None]


class ProfilingSpec(msgspec.Struct, frozen=True):
    """Specification of a run.

    ``env`` is added to the environment of the services. ``marks`` has further settings that must match for a run to
    resume. ``notes`` list what was left out.
    """

    subject: Subject
    workload: Workload
    options: dict[str, DeploymentOption]
    how: MeasureSettings
    env: dict[str, str] = {}
    marks: dict[str, str] = {}
    start_within: float = 300.0
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> dict[str, str]:
        """Settings that must match for a run to resume another one."""
        settings = {name: str(value) for name, value in msgspec.structs.asdict(self.how).items()}
        return {
            "model": self.subject.name,
            "checkpoint": self.subject.checkpoint,
            "workload": self.workload.label,
            "options": ",".join(self.options),
            "environment": ",".join(f"{name}={value}" for name, value in sorted(self.env.items())),
            **settings,
            **self.marks,
        }


async def run_profiling(spec: ProfilingSpec, keeper: PartialProfile, log: Log, tell: Tell) -> ModelProfile:
    """Measure the options that ``keeper`` lacks.

    Raises ``StageUnavailable`` if no option could be measured.
    """
    missing = [name for name in spec.options if name not in keeper.found]
    if missing:
        tell("", len(keeper.found), len(spec.options), "starting the system")
        async with Testbed(spec.subject, log, {**spec.env, **MEASURED}, spec.start_within) as house:
            await house.stack.supervisor.unless_over(_measure_missing(spec, missing, keeper, house, tell))
    if not any(measurement.option.is_measured for measurement in keeper.found.values()):
        raise StageUnavailable("; ".join(note for result in keeper.found.values() for note in result.notes))
    return build_profile(spec, keeper.found)


async def _measure_missing(
    spec: ProfilingSpec, missing: list[str], keeper: PartialProfile, house: Testbed, tell: Tell
) -> None:
    line_components = conclusions.lined_components(spec.subject, spec.options)
    for name in missing:
        done_count, count = len(keeper.found), len(spec.options)
        plan = make_trial(spec.subject, name, spec.options[name], spec.how.others)

        report = partial(tell, name, done_count, count)
        measurement = await measure.measure_option(
            house, spec.subject, spec.workload, plan, spec.how, report, line_components.get(name, ())
        )
        keeper.save_option(name, measurement)
        tell(name, done_count + 1, count, "done")


def build_profile(spec: ProfilingSpec, measurements: Mapping[str, OptionMeasurement]) -> ModelProfile:
    """Return the profile of ``measurements``."""
    subject, workload = spec.subject, spec.workload
    sizes, lines = conclusions.mean_sizes(measurements.values()), conclusions.fit_lines(subject, measurements.values())
    components_by_kind = {request.kind: request.used for request in workload.requests}
    return ModelProfile(
        model=subject.name,
        family=subject.family,
        components=subject.components,
        types={
            kind: TypeProfile(components_by_kind[kind], round(share, 9), sizes.get(kind, {}))
            for kind, share in workload.type_shares.items()
        },
        options={
            name: _build_option(spec, measurements[name], lines, sizes) for name in spec.options if name in measurements
        },
        order=subject.order,
        lines=lines,
        edges=conclusions.measured_edges(measurements.values(), sizes),
        kv=conclusions.key_values(measurements.values()),
        checkpoint=subject.checkpoint,
        created=time.time(),
        machine=describe_machine(),
        workload=workload.label,
        overhead_s=conclusions.median_overhead(measurements.values()),
    )


def _build_option(
    spec: ProfilingSpec,
    measurement: OptionMeasurement,
    lines: Mapping[str, CostLine],
    sizes: Mapping[str, Mapping[str, float]],
) -> OptionProfile:
    """Return the option's profile, with seconds for the common mean sizes."""
    option = measurement.option
    return msgspec.structs.replace(
        option,
        work=conclusions.scale_work(option, measurement.samples, lines, sizes),
        engine=option.engine or spec.env.get(ENGINE, ""),
    )


def describe_machine() -> str:
    """Return the number and the name of this machine's processors."""
    name = ""
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "")
    except OSError:
        pass
    return f"{os.cpu_count()} x {name or platform.processor() or platform.machine()}"
