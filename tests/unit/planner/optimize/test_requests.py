"""Every request that the model accepts is served. This includes types without a planned rate."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from omnibus.plan import ModelPlan, choose_path
from omnibus.profile import ModelProfile, TypeProfile
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.load import ModelLoad
from omnibus_planner.optimize.planner import Planner
from tests.unit.planner.optimize.testbed import (
    EL,
    SEEN,
    TEXT,
    E,
    L,
    count_replicas,
    make_model,
    make_option,
    make_planner,
    make_profile,
    make_types,
    read_rates,
)

PARTS = ("vision", "audio", "thinker", "talker", "vocoder")
OMNI = {"family": "qwen2_5_omni"}
SECONDS = dict(zip(PARTS, (0.2, 0.1, 0.3, 0.4, 0.2), strict=True))


def make_omni_profile(singles: bool = True, **shares: float) -> ModelProfile:
    """Return a profile of components alone, and together for a third more."""
    alone = {part: make_option(part, (part, seconds), gpu="H100") for part, seconds in SECONDS.items()}
    whole = make_option("+".join(PARTS), ("+".join(PARTS), 1.6), gpu="H100")
    return make_profile({**(alone if singles else {}), "M": whole}, family="qwen2_5_omni", components=PARTS, types=make_types(PARTS, **shares), order=())  # fmt: skip


def check_requests(model_plan: ModelPlan, planned_model: Model) -> Iterator[bool]:
    """Yield for each accepted request whether executors on one path serve it."""
    for parts in planned_model.request_types():
        path = choose_path(model_plan.paths_for(parts), 0.5)
        yield set(path.options) == parts and all(
            model_plan.options[name].replicas > 0 and part in model_plan.options[name].components
            for part, name in path.options.items()
        )


def made_of(model_profile: ModelProfile, gpus: int, **asked: Any) -> tuple[ModelPlan, Model]:
    planned_model = make_model("q", OMNI, **asked)
    plan = Planner({"q": planned_model}, {"q": model_profile}, {"H100": GpuType(gpus)}, {}).plan()
    return plan.models["q"], planned_model


@pytest.mark.parametrize("options", [{}, {"goal": "gpus", "rate": 2.0}, {"cells": 8}], ids=["most", "fewest", "cells"])
def test_a_type_without_rate_is_served(options: dict[str, Any]):
    model_plan, planned_model = made_of(make_omni_profile(thinker=1.0), 8, **options)

    assert all(check_requests(model_plan, planned_model))
    assert sum(1 for _ in planned_model.request_types()) == 8


def test_what_nobody_asks_for_takes_as_few_gpus_as_it_can():
    model_plan, _ = made_of(make_omni_profile(thinker=1.0), 8)

    assert count_replicas(model_plan) == {"M": 1, "thinker": 7}
    assert read_rates(model_plan)["+".join(PARTS)] == {"M": 1.0}


@pytest.mark.parametrize(("seconds", "way"), [(0.6, "far"), (0.8, "EL")])
def test_a_type_without_rate_goes_the_way_that_takes_least(seconds: float, way: str):
    # Text needs all four GPUs; an image takes .7 s on those of one type.
    far = make_option(SEEN, (SEEN, seconds, SEEN), ("thinker", 0.3), service="llm", gpu="L40")
    model_profile = make_profile({"EL": EL, "far": far}, types=make_types(thinker=1.0, vision_thinker=0.0))

    model_plan = make_planner(model_profile, {"H100": GpuType(2), "L40": GpuType(2)}).plan().models["q"]

    assert count_replicas(model_plan) == {"EL": 2, "far": 2}
    assert read_rates(model_plan)[SEEN] == {way: 1.0}


def test_too_few_gpus_serve_what_is_asked_for_and_say_what_is_not():
    apart = {name: each for name, each in make_omni_profile(thinker=1.0).options.items() if name != "M"}
    model_profile = make_profile(
        apart, family="qwen2_5_omni", components=PARTS, types=make_types(PARTS, thinker=1.0), order=()
    )
    planned_model = make_model("q", OMNI)

    result = Planner({"q": planned_model}, {"q": model_profile}, {"H100": GpuType(3)}, {}).plan()

    assert count_replicas(result.models["q"]) == {"thinker": 3}
    assert result.explain["planned"]["models"]["q"]["unserved"] == ["vision", "audio", "talker", "vocoder"]
    assert result.models["q"].paths_for(frozenset({"thinker"}))
    assert not result.models["q"].paths_for(frozenset({"vision", "thinker"}))


def test_only_the_model_that_was_measured_whole_serves_its_parts():
    model_plan, planned_model = made_of(make_omni_profile(singles=False, vision_audio_thinker_talker_vocoder=1.0), 4)

    assert count_replicas(model_plan) == {"M": 4}
    assert all(check_requests(model_plan, planned_model))


def test_a_mix_of_some_types_leaves_out_no_other():
    kinds = [
        "+".join(part for part in PARTS if part in {*encoders, "thinker"}) for encoders in combinations(PARTS[:2], 1)
    ]
    model_plan, planned_model = made_of(make_omni_profile(thinker=1.0), 10, mix=dict.fromkeys(kinds, 0.5))

    assert set(kinds) <= set(model_plan.types)
    assert all(check_requests(model_plan, planned_model))


def test_a_load_of_a_type_that_nobody_measured_is_planned_for():
    model_planner = make_planner(make_profile({"E": E, "L": L}, types={SEEN: TypeProfile(("vision", "thinker"), 1.0)}))

    model_plan = model_planner.plan({"q": ModelLoad(1.0, {TEXT: 1.0})}).models["q"]

    assert count_replicas(model_plan) == {"E": 1, "L": 7}
    assert set(read_rates(model_plan)) == {TEXT, SEEN}


def test_a_load_of_what_the_model_does_not_have_is_not_counted():
    result = make_planner().plan({"q": ModelLoad(1.0, {SEEN: 0.6, TEXT: 0.4, "talker": 5.0, "": 1.0})})

    assert result.models == make_planner().plan().models


def test_a_scenario_with_a_type_of_its_own_has_its_paths():
    model_plan = make_planner(mix={TEXT: 1.0}, mixes=({SEEN: 1.0},)).plan().models["q"]

    assert sum(read_rates(model_plan)[SEEN].values()) > 1


def test_the_order_of_a_profile_that_says_none_is_that_of_the_components():
    assert make_planner(make_profile(order=())).plan().models == make_planner().plan().models


def test_a_first_frame_is_what_some_requests_bring():
    planned_model = Model("m", DeclaredModel(family="ltx2", checkpoint="/m"))

    kinds = {
        "+".join(part for part in planned_model.components if part in request_parts)
        for request_parts in planned_model.request_types()
    }

    assert kinds == {
        f"text_encoder{frame}+dit+vae{sound}" for frame in ("", "+vae_encoder") for sound in ("", "+audio_vae")
    }
