"""The simulation engine: makes the runners of an executor, all on one device."""

from collections.abc import Mapping

from msgspec import structs

from omnibus.errors import BadRequest
from omnibus.executor.runner import Runner
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim.async_device import REAL_CLOCK, Clock, SimulatedMachine
from omnibus.executor.sim.device import Device, Lane
from omnibus.executor.sim.language import SimulatedDecode, SimulatedPrefill, SimulatedThinker
from omnibus.executor.sim.profile import ANY, Profile, SimOption, kind_of, read_profile
from omnibus.executor.sim.runner import (
    Place,
    SimulatedAnyComponent,
    SimulatedEncoder,
    SimulatedRunner,
    SimulatedVocoder,
)
from omnibus.executor.sim.scheduled_device import StagedDevice
from omnibus.executor.sim.speech import SimulatedTalker
from omnibus.executor.step_budget import StepGoals

KINDS: Mapping[str, type[SimulatedRunner]] = {
    "encode": SimulatedEncoder,
    "think": SimulatedThinker,
    "prefill": SimulatedPrefill,
    "decode": SimulatedDecode,
    "talk": SimulatedTalker,
    "vocode": SimulatedVocoder,
    ANY: SimulatedAnyComponent,
}

#: Kinds with goals for their steps.
STAGES = ("encode", "think", "prefill", "decode")


def _plain_option(settings: ExecutorSettings) -> str:
    """Return the option's name in the profile."""
    return settings.option.removesuffix(f"@{settings.cell}") if settings.cell else settings.option


class Simulation:
    """One simulated executor: its runners, which share one device and start together."""

    def __init__(
        self,
        settings: ExecutorSettings,
        profile: Profile,
        clock: Clock = REAL_CLOCK,
        kinds: Mapping[str, type[SimulatedRunner]] = KINDS,
        *,
        loaded: bool = False,
    ) -> None:
        """With ``loaded``, the executor is running already, and changes its role."""
        self.settings = settings
        self._clock = clock
        self._kinds = kinds
        self._successor: Simulation | None = None
        self._profile = profile
        self._option = with_goals(profile.find_option(_plain_option(settings), settings.model), settings)
        self._device = device_of(self._option, profile.time_scale)
        startup = 0.0 if loaded else self._option.startup * profile.time_scale
        self._machine = SimulatedMachine(self._device, startup, clock)

    def make_runner(self, component: str) -> SimulatedRunner:
        """Return a new runner. Raises ``BadRequest`` if the profile lacks a field of ``component``."""
        settings = self.settings
        part = self._option.find_component(component)
        kind = kind_of(component, part, settings.family)
        if part.answers and not self._kinds[kind].scripted:
            raise BadRequest(
                f"{self._option.name}: `answers` are for thinkers and for prefill, which reads what is answered, "
                f"not for {component}: {kind}"
            )
        lane = lane_of(self._device, self._option, component, kind, settings.batch)
        profile = self._profile
        place = Place(self._machine, lane, profile.seed, profile.jitter, settings.context, self._make_other)
        return self._kinds[kind](component, part, place)

    def _make_other(self, component: str, settings: ExecutorSettings) -> SimulatedRunner:
        """Return a runner of the executor's new role; runners of the same ``settings`` share a device."""
        if self._successor is None or self._successor.settings is not settings:
            self._successor = Simulation(settings, self._profile, self._clock, self._kinds, loaded=True)
        return self._successor.make_runner(component)


def with_goals(option: SimOption, settings: ExecutorSettings) -> SimOption:
    """Add the goals of ``settings`` to an option without goals.

    All its components must have steps; otherwise the option is unchanged.
    """
    goals = StepGoals(settings.ttft, settings.tbt)
    hosted = [name for name in settings.components.split(",") if name in option.components]
    kinds = {kind_of(name, option.components[name], settings.family) for name in hosted}
    staged = bool(kinds) and kinds <= {*STAGES}
    return structs.replace(option, goals=goals) if goals and not option.goals and staged else option


def engine(component: str, settings: ExecutorSettings, kinds: Mapping[str, type[SimulatedRunner]] = KINDS) -> Runner:
    """Return the runner of ``component`` by the profile or checkpoint of ``settings``.

    ``kinds`` are the classes of runners. Successive calls with the same ``settings`` object make the runners of one
    executor. Raises ``BadRequest`` for a profile that cannot be read or that lacks a field.
    """
    global _latest
    if _latest is None or _latest.settings is not settings:
        _latest = Simulation(settings, read_profile(settings.profile or settings.checkpoint), kinds=kinds)
    return _latest.make_runner(component)


_latest: Simulation | None = None


def device_of(option: SimOption, time_scale: float) -> Device:
    """Return the simulated device of one executor of ``option``."""
    scale = option.alpha * time_scale
    return StagedDevice(scale, option.goals) if option.goals else Device(scale)


def lane_of(device: Device, option: SimOption, component: str, kind: str, slots: int) -> Lane:
    """Add the lane of ``component``; ``slots`` unless the profile sets its own.

    Raises ``BadRequest`` if the profile lacks a field.
    """
    part, runner = option.find_component(component), KINDS[kind]
    missing = [f"`{curve}`" for curve in runner.needs if getattr(part, curve) is None]
    if kind == ANY and part.batch is None and part.step is None:
        missing.append("`batch` or `step`")
    if kind == ANY and not part.outputs:
        missing.append("`outputs`")
    if kind == "encode" and not part.tokens:
        missing.append("`tokens`")
    if missing:
        raise BadRequest(f"{option.name}, component {component} of kind {kind}: it needs {' and '.join(missing)}")
    if option.goals and kind not in STAGES:
        raise BadRequest(f"{option.name}: `ttft` and `tbt` are for {', '.join(STAGES)}, not for {component}: {kind}")
    batch = None if kind == "decode" else part.batch
    step = part.step if runner.steps or kind == ANY else None
    usual = round(max((size.mean for size in map(part.tokens_of, part.tokens) if size is not None), default=0.0))
    return device.add_lane(batch, step, part.slots or slots, part.share, reads=kind == "encode", usual=usual)
