"""Profiles and planned models that tests share."""

from collections.abc import Mapping
from typing import Any

from omnibus.plan import ModelPlan
from omnibus.profile import ModelProfile, OptionProfile, RoleCost, TypeProfile
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType, PlannedModel, TailLatencyGoals
from omnibus_planner.optimize.planner import Planner

SEEN, TEXT = "vision+thinker", "thinker"
EIGHT = {"H100": GpuType(8, 80.0)}


def make_work(*rows: tuple[Any, ...]) -> tuple[RoleCost, ...]:
    """Return rows of components, seconds and optionally request type and latency."""
    return tuple(RoleCost(tuple(parts.split("+")), *rest) for parts, *rest in rows)


def make_option(parts: str, *rows: tuple[Any, ...], **fields: Any) -> OptionProfile:
    return OptionProfile(tuple(parts.split("+")), work=make_work(*rows), **fields)


def make_types(components: tuple[str, ...] = ("vision", "thinker"), **shares: float) -> dict[str, TypeProfile]:
    return {name.replace("_", "+"): TypeProfile(tuple(name.split("_")), share) for name, share in shares.items()}


E = make_option("vision", ("vision", 0.2, SEEN, 0.25), service="encoder", gpu="H100")
L = make_option("thinker", ("thinker", 0.3, "", 1.0), service="llm", gpu="H100")
EL = make_option("vision+thinker", (SEEN, 0.7, SEEN, 1.3), ("thinker", 0.35, "", 1.0), service="llm", gpu="H100")
MIXED = make_types(vision_thinker=0.6, thinker=0.4)


def make_profile(options: Mapping[str, OptionProfile] | None = None, **fields: Any) -> ModelProfile:
    """Return a profile of a Qwen2.5-VL. 60 % of requests have an image; separate stages are faster than combined."""
    usual: dict[str, Any] = {
        "model": "q",
        "family": "qwen2_5_vl",
        "components": ("vision", "thinker"),
        "types": MIXED,
        "options": dict(options) if options is not None else {"E": E, "L": L, "EL": EL},
        "order": (("vision", "thinker"),),
    }
    return ModelProfile(**{**usual, **fields})


def make_model(name: str = "q", declaration: Mapping[str, Any] | None = None, **asked: Any) -> Model:
    usual: dict[str, Any] = {"family": "qwen2_5_vl", "checkpoint": f"/{name}"}
    return Model(name, DeclaredModel(**{**usual, **(declaration or {})}, planned=PlannedModel(**asked)))


def make_goals(**seconds: float) -> TailLatencyGoals:
    return TailLatencyGoals(**seconds)


def make_planner(
    model_profile: ModelProfile | None = None,
    gpus: Mapping[str, GpuType] | None = None,
    nodes: Mapping[str, DeclaredNode] | None = None,
    declaration: Mapping[str, Any] | None = None,
    **asked: Any,
) -> Planner:
    """Return a planner of the one model ``q``."""
    models = {"q": make_model("q", declaration, **asked)}
    return Planner(models, {"q": model_profile or make_profile()}, EIGHT if gpus is None else gpus, nodes or {})


def count_replicas(plan: ModelPlan) -> dict[str, int]:
    return {name: each.replicas for name, each in plan.options.items() if not each.of}


def gpus_of(*plans: ModelPlan) -> int:
    return sum(each.replicas * each.gpus for plan in plans for each in plan.options.values())


def read_rates(plan: ModelPlan) -> dict[str, dict[str, float]]:
    return {kind: {path.name: path.rate for path in paths} for kind, paths in plan.types.items()}


# A text, an image and an answer in three parts: encode, prefill, decode

PARTS = ("vision", "prefill", "decode")
SPLIT: dict[str, Any] = {
    "components": PARTS,
    "encoders": {"image": "vision"},
    "tasks": {"vision": "encode", "prefill": "prefill", "decode": "decode"},
}
#: E, P, D and all that they may share an executor with.
SETS = {"E": "vision", "P": "prefill", "D": "decode", "EP": "vision+prefill", "ED": "vision+decode",
        "PD": "prefill+decode", "EPD": "vision+prefill+decode"}  # fmt: skip
SECONDS = {"vision": 0.2, "prefill": 0.1, "decode": 0.4}


def make_split_profile(**slower: float) -> ModelProfile:
    """Return all seven options of three components; ``slower`` multiplies the cost of running together."""
    whole = "+".join(PARTS)
    options = {
        name: make_option(
            parts, (parts, slower.get(name, 1.0) * sum(SECONDS[part] for part in parts.split("+"))), gpu="H100"
        )
        for name, parts in SETS.items()
    }
    return make_profile(
        options,
        components=PARTS,
        types={whole: TypeProfile(PARTS, 1.0)},
        order=(("vision", "prefill"), ("prefill", "decode")),
    )
