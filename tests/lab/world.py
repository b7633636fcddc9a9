"""Models of the lab: times of their engines, their profile, plans and runs.

All of it is in virtual time. The profile is measured on virtual devices at saturation, as a profiler would. The planner
plans from it, and simulates its plans before it promises them. Experiments measure the executors of that plan on the
devices.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from omnibus.executor.sim.predict import TypeDemand, predict_performance
from omnibus.executor.sim.profile import Profile, decode_profile
from omnibus.plan import DeploymentOption, ModelPlan
from omnibus.plan_goals import ModelGoals
from omnibus.profile import ModelProfile, OptionProfile, RoleCost, TypeProfile
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import GpuType, PlannedModel
from omnibus_planner.optimize.goodput_search import Traffic
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, even_arrivals
from omnibus_planner.simulate.cluster import AdmissionLimits, RoutingRules, SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices, simulated_devices
from omnibus_planner.simulate.outcome import SimulationOutcome
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan
from omnibus_planner.simulate.saturate import RoleRate, saturated_rate

#: The one GPU type, and the one model.
GPU, MODEL = "A100", "lab"
#: A family whose engine runs any components; none of its code is loaded.
_FAMILY = "qwen2_5_omni"
#: No request is rejected or late: experiments measure the executors.
NO_LIMITS = AdmissionLimits(credits=1 << 30, inflight=1 << 30, deadline=1e6)
#: Relative variation of the seconds of a step.
_JITTER = 0.03
#: Load of throughput measurements as a multiple of the promise, and the unobserved fraction of a run.
_OVERLOAD, _WARM_UP = 1.05, 0.3
#: Virtual seconds of throughput measurements: several successive answers.
_STEADY_SECONDS = 300.0
#: Sizes that engines require, by kind; each request has its own.
_SIZES: dict[str, dict[str, Any]] = {"encode": {"tokens": {"any": 1}}} | {
    kind: {"steps": 1} for kind in ("think", "decode", "talk")
}
#: Seconds in which a plan is solved and simulated again, as a number of simulated requests.
_PLAN_SECONDS = 5.0
#: The same with goals, for which requests are replayed.
_REPLAY_SECONDS = 40.0
#: Requests that measure the seconds of a role.
_MEASURED_REQUESTS = 80


class LabOption(msgspec.Struct, frozen=True):
    """A deployment option of the lab: its components, and the GPUs of one replica."""

    components: tuple[str, ...]
    gpus: int = 1


class LabModel:
    """A model whose engines take ``times``.

    ``options`` and request ``types`` are by name. ``kinds`` are those of its components' unit tasks, in the order in
    which data flows. Encoders have the name of their modality.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        times: Profile,
        options: Mapping[str, LabOption],
        types: Mapping[str, TypeProfile],
    ) -> None:
        self.kinds = dict(kinds)
        self.components = tuple(kinds)
        self.times = times
        self.options = dict(options)
        self.types = dict(types)

    def declared(self, **planned: Any) -> Model:
        """Return the model as declared with these parameters of ``planned``."""
        encoders = {part: part for part, kind in self.kinds.items() if kind == "encode"}
        asked = PlannedModel(**planned)
        declared = DeclaredModel(_FAMILY, "times.json", self.components, encoders, self.kinds, planned=asked)
        return Model(MODEL, declared)

    def with_types(self, types: Mapping[str, TypeProfile]) -> "LabModel":
        """Return the same model under another workload."""
        return LabModel(self.kinds, self.times, self.options, types)

    @cached_property
    def devices(self) -> ModelDevices:
        """Devices with the times of the engines."""
        made = self.declared()
        return simulated_devices(made.components, made.kinds, made.encoders, self.times)

    @cached_property
    def profile(self) -> ModelProfile:
        """Profile that a profiler would measure: seconds of full replicas by request type and role."""
        order = tuple(_component_order(self.kinds))
        options = {name: self._measure_option(name) for name in self.options}
        return ModelProfile(MODEL, _FAMILY, self.components, self.types, options, order)

    def _measure_option(self, name: str) -> OptionProfile:
        option, work = self.options[name], []
        for kind, about in self.types.items():
            for role in self._option_roles(option, about):
                rates = [RoleRate(role, 1.0, about.quantities)]
                seconds = 1 / saturated_rate(self.devices, name, rates, requests=_MEASURED_REQUESTS)
                alone = {kind: TypeDemand(1.0, self.devices.role_loads(role, about.quantities))}
                one = predict_performance(self.devices.times, name, alone, inflight=1, requests=3)
                parts = tuple(part for part in self.components if part in role)
                work.append(RoleCost(parts, seconds, kind, 1 / one.throughput))
        return OptionProfile(option.components, "llm", gpus=option.gpus, gpu=GPU, work=tuple(work))

    def _option_roles(self, option: LabOption, about: TypeProfile) -> Iterator[frozenset[str]]:
        """Yield the roles of an option in a request: all its components, and those without encoders."""
        whole = frozenset(option.components) & frozenset(about.components)
        encoders = {part for part in whole if self.kinds[part] == "encode"}
        yield from dict.fromkeys(role for role in (whole, whole - encoders) if role)

    def plan(self, gpus: int, traffic: Traffic | None = None, **planned: Any) -> PlanningResult:
        """Return the plan for ``gpus`` GPUs.

        It is simulated before it is promised, except plans by the rules of others. With goals, ``traffic`` judges it.
        """
        planner = self._planner(gpus, **planned)
        if planned.get("policy"):
            return planner.plan(explain=False)
        within = _REPLAY_SECONDS if planned.get("goals") else _PLAN_SECONDS
        return PromiseChecker(planner, traffic).plan(within=within)

    def solve(self, gpus: int, **planned: Any) -> PlanningResult:
        """Return the solver's plan for ``gpus`` GPUs, without a simulation."""
        return self._planner(gpus, **planned).plan(explain=False)

    def _planner(self, gpus: int, **planned: Any) -> Planner:
        return Planner({MODEL: self.declared(**planned)}, {MODEL: self.profile}, {GPU: GpuType(gpus, 80.0)}, {})

    def route(self, replicas: Mapping[str, int]) -> PlanningResult:
        """Return the plan that serves most over ``replicas`` by option, each in all roles that it can have."""
        gpus = sum(self.options[name].gpus * count for name, count in replicas.items())
        planner = self._planner(gpus)
        running = self.declared().build_plan(self._deployed_options(replicas), {})
        return planner.reroute_running({MODEL: running}, partial=False)

    def throughput(self, result: PlanningResult, rules: RoutingRules = RoutingRules()) -> float:  # noqa: B008
        """Return req/s in steady state at 105 % of the promised rate."""
        rate, seconds = _OVERLOAD * result.capacity[MODEL], _STEADY_SECONDS
        found = self.run(result.models[MODEL], self.even_load(rate, seconds), seconds, rules=rules, warm_up=_WARM_UP)
        return found.throughput

    def even_load(self, rate: float, seconds: float) -> Iterator[Arrival]:
        """Yield requests of all types at equal intervals."""
        return even_arrivals(self.type_rates(rate), seconds)

    def type_rates(self, rate: float) -> list[TypeRate]:
        """Return the req/s of each request type for ``rate`` in total."""
        return [TypeRate(MODEL, kind, each.share * rate, each.quantities) for kind, each in self.types.items()]

    def _deployed_options(self, replicas: Mapping[str, int]) -> dict[str, DeploymentOption]:
        engine = self.declared().engine
        return {
            name: DeploymentOption(
                self.options[name].components, "llm", count, self.options[name].gpus, engine=engine, gpu=GPU
            )
            for name, count in replicas.items()
            if count
        }

    def run(
        self,
        plan: ModelPlan,
        arrivals: Iterable[Arrival],
        seconds: float,
        *,
        goals: ModelGoals = ModelGoals(),  # noqa: B008 a constant
        rules: RoutingRules = RoutingRules(),  # noqa: B008 a constant
        warm_up: float = 0.0,
        seed: int = 1,
    ) -> SimulationOutcome:
        """Run ``plan`` on the devices."""
        return simulate_plan(self.simulated(plan, goals, rules), arrivals, seconds, seed=seed, warm_up=warm_up)

    def simulated(self, plan: ModelPlan, goals: ModelGoals, rules: RoutingRules) -> SimulatedPlan:
        """Return ``plan`` on the devices; no request is rejected or late."""
        return SimulatedPlan({MODEL: SimulatedModel(plan, self.devices)}, {MODEL: goals}, NO_LIMITS, rules=rules)


def engine_times(
    kinds: Mapping[str, str],
    components: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    ttft: float = 0.0,
    tbt: float = 0.0,
) -> Profile:
    """Return times of simulated engines: ``components`` as in profiles, changed by ``options``.

    With goals, in seconds, executors step by the schedule of stages.
    """
    parts = {part: {**_SIZES.get(kinds[part], {}), "kind": kinds[part], **about} for part, about in components.items()}
    file = {
        "seed": 1,
        "jitter": _JITTER,
        "default": {"ttft": ttft, "tbt": tbt, "components": parts},
        "options": options or {},
    }
    return decode_profile(msgspec.json.encode(file), "the lab")


def _component_order(kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield pairs in order: encoders before the language model, then the others in sequence."""
    chain = [part for part, kind in kinds.items() if kind != "encode"]
    yield from ((part, chain[0]) for part, kind in kinds.items() if kind == "encode")
    yield from pairwise(chain)
