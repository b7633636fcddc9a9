"""Small plans of one-GPU services in sequence. Their times can be calculated by hand."""

import json
from typing import Any

from omnibus.executor.sim import decode_profile
from omnibus.plan import DeploymentOption, ModelPlan, Path
from omnibus_planner.simulate.cluster import AdmissionLimits, SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices, simulated_devices
from omnibus_planner.simulate.run import SimulatedPlan

SEEN, TEXT = "vision+thinker", "thinker"
KINDS = {"vision": "encode", "thinker": "think"}
#: Seconds of an image, and of a text: 10 steps one by one.
IMAGE, STEP, STEPS = 0.2, 0.01, 10


def make_devices(**vision: Any) -> ModelDevices:
    """Return devices with one request per component, or as in ``vision``."""
    parts = {
        "vision": {"kind": "encode", "slots": 1, "batch": {"per_item": IMAGE}, "tokens": {"image": 10}, **vision},
        "thinker": {
            "kind": "think", "slots": 1, "batch": {"base": STEP}, "step": {"base": STEP}, "steps": STEPS,
        },
    }  # fmt: skip
    times = decode_profile(json.dumps({"default": {"components": parts}}).encode())
    return simulated_devices(("vision", "thinker"), KINDS, {"image": "vision"}, times)


def make_plan(replicas: dict[str, int], paths: dict[str, tuple[Path, ...]]) -> ModelPlan:
    """Return a model with options ``E``, ``L`` and ``EL``."""
    parts = {"E": ("vision",), "L": ("thinker",), "L2": ("thinker",), "EL": ("vision", "thinker")}
    return ModelPlan(
        "qwen2_5_vl",
        "/none",
        ("vision", "thinker"),
        {"image": "vision"},
        {name: DeploymentOption(parts[name], "llm", count, 1, gpu="H100") for name, count in replicas.items()},
        paths,
    )


def make_chain(encoders: int = 1, thinkers: int = 1) -> ModelPlan:
    """Return a plan with E>L for images, and L for text."""
    image_path = Path("E>L", {"vision": "E", "thinker": "L"}, 1.0)
    return make_plan({"E": encoders, "L": thinkers}, {SEEN: (image_path,), TEXT: (Path("L", {"thinker": "L"}, 1.0),)})


def simulate_model(model_plan: ModelPlan, limits: AdmissionLimits = AdmissionLimits(), **model: Any) -> SimulatedPlan:  # noqa: B008
    return SimulatedPlan(
        {"vl": SimulatedModel(model_plan, model.pop("devices", None) or make_devices(), **model)}, limits=limits
    )
