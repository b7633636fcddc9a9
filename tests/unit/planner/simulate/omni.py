"""An any-to-any model in a small world: the times of its engines, and an exact profiler's profile of them."""

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from omnibus.executor.sim import Profile, TypeDemand, decode_profile, predict_performance
from omnibus.plan import DeploymentOption, ModelPlan, Path
from omnibus.profile import EdgeProfile, ModelProfile, OptionProfile, RoleCost, TypeProfile
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import GpuType, PlannedModel
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices, simulated_devices
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan
from omnibus_planner.simulate.saturate import RoleRate, saturated_rate

PARTS = ("vision", "audio", "thinker", "talker", "vocoder")
SEEN, HEARD, TEXT, SPOKEN = (
    "vision+thinker", "audio+thinker+talker+vocoder", "thinker", "thinker+talker+vocoder",
)  # fmt: skip
#: Components of options; ``M`` is everything on one GPU.
OPTIONS = {"EV": PARTS[:1], "EA": PARTS[1:2], "Th": PARTS[2:3], "Ta": PARTS[3:4], "V": PARTS[4:], "M": PARTS}
ENGINES: dict[str, Any] = {
    "seed": 1,
    "jitter": 0.05,
    "default": {
        "startup": 4,
        "components": {
            "vision": {"slots": 4, "batch": {"points": [[1, 0.12], [4, 0.36]]}, "tokens": {"image": 300}},
            "audio": {"slots": 8, "batch": {"points": [[1, 0.05], [8, 0.16]]}, "tokens": {"audio": 100}},
            "thinker": {
                "slots": 16, "chunk": 32, "batch": {"base": 0.004, "per_token": 2e-5},
                "step": {"base": 0.016, "per_item": 2e-4}, "steps": {"mean": 48, "cv": 0.3, "most": 96},
            },
            "talker": {
                "slots": 16, "chunk": 32, "batch": {"base": 0.004},
                "step": {"base": 0.012, "per_item": 2e-4}, "steps": {"per": 3},
            },
            "vocoder": {"slots": 4, "batch": {"base": 0.03, "per_token": 4e-4}, "samples": 480, "rate": 24000},
        },
    },
    "options": {"M": {"alpha": 1.25}},
}  # fmt: skip
TYPES = {
    SEEN: TypeProfile(("vision", "thinker"), 0.4, {"prompt_tokens": 340, "completion_tokens": 48, "image_tokens": 300}),
    HEARD: TypeProfile(
        ("audio", "thinker", "talker", "vocoder"),
        0.2,
        {"prompt_tokens": 122, "completion_tokens": 48, "audio_tokens": 100, "speech_seconds": 2.88},
    ),
    TEXT: TypeProfile(("thinker",), 0.3, {"prompt_tokens": 68, "completion_tokens": 48}),
    SPOKEN: TypeProfile(
        ("thinker", "talker", "vocoder"), 0.1, {"prompt_tokens": 72, "completion_tokens": 48, "speech_seconds": 2.88}
    ),
}
ORDER = (("vision", "thinker"), ("audio", "thinker"), ("thinker", "talker"), ("talker", "vocoder"))


def engine_times(**changes: Any) -> Profile:
    """Return the times of simulated engines."""
    return decode_profile(json.dumps({**ENGINES, **changes}).encode())


def make_omni_model(**asked: Any) -> Model:
    return Model("omni", DeclaredModel("qwen2_5_omni", "times.json", planned=PlannedModel(**asked)))


def true_devices(times: Profile | None = None) -> ModelDevices:
    omni_model = make_omni_model()
    return simulated_devices(omni_model.components, omni_model.kinds, omni_model.encoders, times or engine_times())


def measured_profile(times: Profile | None = None) -> ModelProfile:
    """Return the seconds of full replicas and of single requests. The former are by request type and role.

    Sizes are those of the requests sent.
    """
    return _usual_profile() if times is None else _measure_profile(times)


@functools.cache
def _usual_profile() -> ModelProfile:
    return _measure_profile(engine_times())


def _measure_profile(times: Profile) -> ModelProfile:
    devices = true_devices(times)
    return ModelProfile(
        model="omni",
        family="qwen2_5_omni",
        components=PARTS,
        types=TYPES,
        options={name: _measured_option(devices, name) for name in OPTIONS},
        order=ORDER,
        edges=tuple(_measured_edges(times)),
    )


def _measured_edges(times: Profile) -> Iterator[EdgeProfile]:
    """Yield rows and codes of spoken answers, and their number per message."""
    parts = times.default.components
    for kind in (HEARD, SPOKEN):
        words = TYPES[kind].quantities["completion_tokens"]
        yield EdgeProfile("thinker", "talker", 0.0, kind, words - 1, parts["thinker"].chunk)
        codes = words * parts["talker"].steps_size.per
        yield EdgeProfile("talker", "vocoder", 0.0, kind, codes, parts["talker"].chunk)


def _measured_option(devices: ModelDevices, name: str) -> OptionProfile:
    work = []
    for kind, about in TYPES.items():
        whole = frozenset(OPTIONS[name]) & frozenset(about.components)
        for role in dict.fromkeys((whole, whole - {"vision", "audio"}) if name == "M" else (whole,)):
            if role:
                seconds = 1 / saturated_rate(devices, name, [RoleRate(role, 1.0, about.quantities)])
                alone = {kind: TypeDemand(1.0, devices.role_loads(role, about.quantities))}
                one = predict_performance(devices.times, name, alone, inflight=1, requests=5)
                parts = tuple(part for part in PARTS if part in role)
                first = first_token_alone(devices, name, parts, about.quantities) if parts[-1] == "thinker" else 0.0
                work.append(RoleCost(parts, seconds, kind, 1 / one.throughput, first))
    return OptionProfile(OPTIONS[name], service="llm", gpu="H100", work=tuple(work))


def make_omni_plan(options: Mapping[str, int], paths: Mapping[str, Mapping[str, str]]) -> ModelPlan:
    """Return a model with replicas of ``options``. Its paths map components to options by request type."""
    return ModelPlan(
        "qwen2_5_omni",
        "times.json",
        PARTS,
        make_omni_model().encoders,
        {name: DeploymentOption(OPTIONS[name], "llm", count, 1, gpu="H100") for name, count in options.items()},
        {kind: (Path("path", dict(path), 1.0),) for kind, path in paths.items()},
    )


def first_token_alone(devices: ModelDevices, option: str, parts: tuple[str, ...], sizes: Mapping[str, float]) -> float:
    """Return seconds to the first token of a lone request on ``option``. The option runs ``parts`` of it."""
    kind = "+".join(parts)
    plan = make_omni_plan({option: 1}, {kind: dict.fromkeys(parts, option)})
    simulated_plan = SimulatedPlan({"omni": SimulatedModel(plan, devices)})
    [outcome] = simulate_plan(simulated_plan, [Arrival(0.0, "omni", kind, sizes)], 1.0, warm_up=0.0).types
    return outcome.median["first_token"]


def make_omni_planner(profile: ModelProfile, gpus: int = 16, **asked: Any) -> Planner:
    return Planner({"omni": make_omni_model(**asked)}, {"omni": profile}, {"H100": GpuType(gpus, 80.0)}, {})
