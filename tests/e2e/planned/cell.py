"""A simulated Qwen2.5-VL: its times, also as a profile for the planner."""

from collections.abc import Mapping
from typing import Any

import msgspec

from omnibus.executor import sim
from omnibus.executor.sim import ComponentLoad, TypeDemand
from omnibus.profile import ModelProfile, OptionProfile, RoleCost, TypeProfile

MODEL, FAMILY = "vl", "qwen2_5_vl"
VISION, THINKER = "vision", "thinker"
SEEN, TEXT = "vision+thinker", "thinker"
ENCODER, LLM = "encoder", "llm"

#: Tokens of a request, the same as the load sends them.
IMAGE, WORDS, ANSWER = 300, 40, 32
INFLIGHT, SLOTS, ITEMS = 24, 8, 4  # per executor: requests at a time, sequences, images
START = 1.0  # seconds
SLOWER = 1.5  # everything takes so many times as long as is written here

#: An encoder and a thinker do about 10 requests in a second; in one executor they hinder each other, and cost more.
SIMULATED: dict[str, Any] = {
    "seed": 1,
    "jitter": 0.05,
    "time_scale": SLOWER,
    "default": {
        "startup": START,
        "components": {
            VISION: {
                "slots": ITEMS,
                "batch": {"points": [[1, 0.14], [ITEMS, 0.4]]},
                "tokens": {"image": IMAGE},
                "width": 8,
            },
            THINKER: {
                "slots": SLOTS,
                "chunk": 64,
                "batch": {"base": 0.004, "per_token": 2e-5},
                "step": {"base": 0.02, "per_item": 2e-4},
                "steps": {"mean": ANSWER, "cv": 0.2, "most": 64},
                "width": 8,
            },
        },
    },
    "options": {"EL": {"alpha": 1.3}},
}
OPTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "E": (ENCODER, (VISION,)),
    "L": (LLM, (THINKER,)),
    "EL": (LLM, (VISION, THINKER)),
}


def make_profile(image_share: float = 0.5) -> ModelProfile:
    """Profile of ``SIMULATED`` as a profiler would measure it.

    ``image_share`` is the share of requests with an image.
    """
    simulation = sim.decode_profile(msgspec.json.encode(SIMULATED))
    return ModelProfile(
        model=MODEL,
        family=FAMILY,
        components=(VISION, THINKER),
        order=((VISION, THINKER),),
        types={
            SEEN: TypeProfile((VISION, THINKER), image_share, _make_quantities(IMAGE)),
            TEXT: TypeProfile((THINKER,), 1 - image_share, _make_quantities(0)),
        },
        options={
            name: OptionProfile(
                parts,
                service=service,
                gpu="cpu",
                start_s=START * SLOWER,
                work=_list_work(simulation, name, parts, image_share),
            )
            for name, (service, parts) in OPTIONS.items()
        },
    )


def _make_quantities(image: int) -> dict[str, float]:
    return {"prompt_tokens": WORDS + image, "image_tokens": image, "completion_tokens": ANSWER}


def _list_work(
    simulation: sim.Profile, option: str, parts: tuple[str, ...], image_share: float
) -> tuple[RoleCost, ...]:
    """Each role of ``option``, in a saturated replica."""
    roles: dict[tuple[str, tuple[str, ...]], RoleCost] = {}
    for own_parts in (parts, parts[1:]):  # all that it can do; what is left when others did the first part
        performance = (
            sim.predict_performance(simulation, option, make_demands(own_parts, image_share), inflight=INFLIGHT)
            if own_parts
            else None
        )
        for kind, seconds in performance.seconds.items() if performance is not None else ():
            role = tuple(part for part in own_parts if part in kind.split("+"))
            roles.setdefault((kind, role), RoleCost(role, seconds, kind))
    return tuple(roles.values())


def make_demands(parts: tuple[str, ...], image_share: float) -> dict[str, TypeDemand]:
    """Demand of the mix on executors that run ``parts`` of every request."""
    image, text = ComponentLoad(modality="image"), WORDS
    loads = {
        SEEN: {VISION: image, THINKER: ComponentLoad(tokens=text + IMAGE)},
        TEXT: {THINKER: ComponentLoad(tokens=text)},
    }
    shares = {SEEN: image_share, TEXT: 1 - image_share}
    own_loads = {kind: {part: load for part, load in each.items() if part in parts} for kind, each in loads.items()}
    return {kind: TypeDemand(shares[kind], each) for kind, each in own_loads.items() if each and shares[kind] > 0}
