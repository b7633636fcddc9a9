"""All options of a model one after the other, and the profile that comes of them."""

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
from omnibus.profile import CostLine, EdgeProfile, ModelProfile, OptionProfile, TypeProfile
from omnibus.profiling import linear_fit, measure
from omnibus.profiling.checkpoint import PartialProfile
from omnibus.profiling.experiments import make_trial
from omnibus.profiling.measure import MeasureSettings, OptionMeasurement
from omnibus.profiling.measured_model import Subject
from omnibus.profiling.testbed import Testbed
from omnibus.profiling.workload import Workload

#: What tells executors of another engine, and that one of the times to follow.
ENGINE, ENGINE_PROFILE = "OMNIBUS_EXECUTOR_ENGINE", "OMNIBUS_EXECUTOR_PROFILE"

#: Hears what is being done: the option, how many are done of how many, and words.
Tell = Callable[[str, int, int, str], None]


class ProfilingSpec(msgspec.Struct, frozen=True):
    """Specification of a run: what to measure, and how. ``env`` is added to the environment of the services; ``marks``
    hold what else must be the same for a run to be resumed."""

    subject: Subject
    workload: Workload
    options: dict[str, DeploymentOption]
    how: MeasureSettings
    env: dict[str, str] = {}
    marks: dict[str, str] = {}
    start_within: float = 300.0

    @property
    def key(self) -> dict[str, str]:
        """Settings that must be the same for a run to continue with the measurements of another one."""
        named = {name: str(value) for name, value in msgspec.structs.asdict(self.how).items()}
        return {
            "model": self.subject.name,
            "checkpoint": self.subject.checkpoint,
            "workload": self.workload.label,
            "options": ",".join(self.options),
            "environment": ",".join(f"{name}={value}" for name, value in sorted(self.env.items())),
            **named,
            **self.marks,
        }


async def run_profiling(asked: ProfilingSpec, keeper: PartialProfile, log: Log, tell: Tell) -> ModelProfile:
    """Measure what ``keeper`` does not have yet. Raises ``StageUnavailable`` when no option could be measured."""
    missing = [name for name in asked.options if name not in keeper.found]
    if missing:
        tell("", len(keeper.found), len(asked.options), "starting the system")
        async with Testbed(asked.subject, log, asked.env, asked.start_within) as house:
            await house.stack.supervisor.unless_over(_measure_missing(asked, missing, keeper, house, tell))
    if not any(found.option.is_measured for found in keeper.found.values()):
        raise StageUnavailable("; ".join(note for found in keeper.found.values() for note in found.notes))
    return build_profile(asked, keeper.found)


async def _measure_missing(
    asked: ProfilingSpec, missing: list[str], keeper: PartialProfile, house: Testbed, tell: Tell
) -> None:
    for name in missing:
        done, count = len(keeper.found), len(asked.options)
        plan = make_trial(asked.subject, name, asked.options[name], asked.how.others)

        said = partial(tell, name, done, count)
        found = await measure.measure_option(house, asked.subject, asked.workload, plan, asked.how, said)
        keeper.save_option(name, found)
        tell(name, done + 1, count, "done")


def build_profile(asked: ProfilingSpec, found: Mapping[str, OptionMeasurement]) -> ModelProfile:
    """The profile of what was ``found``."""
    subject, workload = asked.subject, asked.workload
    brought: dict[str, dict[str, float]] = {}
    edges: dict[tuple[str, str, str], EdgeProfile] = {}
    for each in found.values():
        brought = {**each.quantities, **brought}
        edges = {**{(edge.source, edge.target, edge.type): edge for edge in each.edges}, **edges}
    used = {request.kind: request.used for request in workload.requests}
    return ModelProfile(
        model=subject.name,
        family=subject.family,
        components=subject.components,
        types={
            kind: TypeProfile(used[kind], round(share, 9), brought.get(kind, {}))
            for kind, share in workload.type_shares.items()
        },
        options={name: _with_engine(asked, found[name].option) for name in asked.options if name in found},
        order=subject.order,
        lines=dict(_fit_lines(subject, found)),
        edges=tuple(edges.values()),
        checkpoint=subject.checkpoint,
        created=time.time(),
        machine=describe_machine(),
        workload=workload.label,
    )


def _with_engine(asked: ProfilingSpec, measured: OptionProfile) -> OptionProfile:
    """With the engine that it was measured on: its numbers are that one's."""
    return msgspec.structs.replace(measured, engine=measured.engine or asked.env.get(ENGINE, ""))


def _fit_lines(subject: Subject, found: Mapping[str, OptionMeasurement]) -> dict[str, CostLine]:
    """A line for each component whose requests differ, by the smallest option that has it."""
    fitted = {}
    for component in subject.components:
        hosts = [each for each in found.values() if component in each.option.components and each.samples]
        for host in sorted(hosts, key=lambda each: len(each.option.components)):
            samples = [(each.quantities, each.seconds[component]) for each in host.samples if component in each.seconds]
            line = linear_fit.fit_line(samples, linear_fit.quantity_names(subject, component))
            if line is not None:
                fitted[component] = line
                break
    return fitted


def describe_machine() -> str:
    """Return the number and the name of this machine's processors, as text."""
    name = ""
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "")
    except OSError:
        pass
    return f"{os.cpu_count()} x {name or platform.processor() or platform.machine()}"
