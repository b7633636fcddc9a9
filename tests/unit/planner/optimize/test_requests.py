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
    model,
    option,
    planner,
    profile,
    rates,
    replicas,
    types,
)

PARTS = ("vision", "audio", "thinker", "talker", "vocoder")
OMNI = {"family": "qwen2_5_omni"}
SECONDS = dict(zip(PARTS, (0.2, 0.1, 0.3, 0.4, 0.2), strict=True))


def omni(singles: bool = True, **shares: float) -> ModelProfile:
    """Return a profile of components alone, and together for a third more."""
    alone = {part: option(part, (part, seconds), gpu="H100") for part, seconds in SECONDS.items()}
    whole = option("+".join(PARTS), ("+".join(PARTS), 1.6), gpu="H100")
    return profile({**(alone if singles else {}), "M": whole}, family="qwen2_5_omni", components=PARTS, types=types(PARTS, **shares), order=())  # fmt: skip


def served(made: ModelPlan, declared: Model) -> Iterator[bool]:
    """Yield for each accepted request whether executors on one path serve it."""
    for used in declared.request_types():
        path = choose_path(made.paths_for(used), 0.5)
        yield set(path.options) == used and all(
            made.options[name].replicas > 0 and part in made.options[name].components
            for part, name in path.options.items()
        )


def made_of(measured: ModelProfile, gpus: int, **asked: Any) -> tuple[ModelPlan, Model]:
    declared = model("q", OMNI, **asked)
    plan = Planner({"q": declared}, {"q": measured}, {"H100": GpuType(gpus)}, {}).plan()
    return plan.models["q"], declared


@pytest.mark.parametrize("asked", [{}, {"goal": "gpus", "rate": 2.0}, {"cells": 8}], ids=["most", "fewest", "cells"])
def test_a_type_without_rate_is_served(asked: dict[str, Any]):
    made, declared = made_of(omni(thinker=1.0), 8, **asked)

    assert all(served(made, declared))
    assert sum(1 for _ in declared.request_types()) == 8


def test_what_nobody_asks_for_takes_as_few_gpus_as_it_can():
    made, _ = made_of(omni(thinker=1.0), 8)

    assert replicas(made) == {"M": 1, "thinker": 7}
    assert rates(made)["+".join(PARTS)] == {"M": 1.0}


@pytest.mark.parametrize(("seconds", "way"), [(0.6, "far"), (0.8, "EL")])
def test_a_type_without_rate_goes_the_way_that_takes_least(seconds: float, way: str):
    # Text needs all four GPUs; an image takes .7 s on those of one type.
    far = option(SEEN, (SEEN, seconds, SEEN), ("thinker", 0.3), service="llm", gpu="L40")
    measured = profile({"EL": EL, "far": far}, types=types(thinker=1.0, vision_thinker=0.0))

    made = planner(measured, {"H100": GpuType(2), "L40": GpuType(2)}).plan().models["q"]

    assert replicas(made) == {"EL": 2, "far": 2}
    assert rates(made)[SEEN] == {way: 1.0}


def test_too_few_gpus_serve_what_is_asked_for_and_say_what_is_not():
    apart = {name: each for name, each in omni(thinker=1.0).options.items() if name != "M"}
    measured = profile(apart, family="qwen2_5_omni", components=PARTS, types=types(PARTS, thinker=1.0), order=())
    declared = model("q", OMNI)

    found = Planner({"q": declared}, {"q": measured}, {"H100": GpuType(3)}, {}).plan()

    assert replicas(found.models["q"]) == {"thinker": 3}
    assert found.explain["planned"]["models"]["q"]["unserved"] == ["vision", "audio", "talker", "vocoder"]
    assert found.models["q"].paths_for(frozenset({"thinker"}))
    assert not found.models["q"].paths_for(frozenset({"vision", "thinker"}))


def test_only_the_model_that_was_measured_whole_serves_its_parts():
    made, declared = made_of(omni(singles=False, vision_audio_thinker_talker_vocoder=1.0), 4)

    assert replicas(made) == {"M": 4}
    assert all(served(made, declared))


def test_a_mix_of_some_types_leaves_out_no_other():
    kinds = ["+".join(part for part in PARTS if part in {*chosen, "thinker"}) for chosen in combinations(PARTS[:2], 1)]
    made, declared = made_of(omni(thinker=1.0), 10, mix=dict.fromkeys(kinds, 0.5))

    assert set(kinds) <= set(made.types)
    assert all(served(made, declared))


def test_a_load_of_a_type_that_nobody_measured_is_planned_for():
    asked = planner(profile({"E": E, "L": L}, types={SEEN: TypeProfile(("vision", "thinker"), 1.0)}))

    made = asked.plan({"q": ModelLoad(1.0, {TEXT: 1.0})}).models["q"]

    assert replicas(made) == {"E": 1, "L": 7}
    assert set(rates(made)) == {TEXT, SEEN}


def test_a_load_of_what_the_model_does_not_have_is_not_counted():
    made = planner().plan({"q": ModelLoad(1.0, {SEEN: 0.6, TEXT: 0.4, "talker": 5.0, "": 1.0})})

    assert made.models == planner().plan().models


def test_a_scenario_with_a_type_of_its_own_has_its_paths():
    made = planner(mix={TEXT: 1.0}, mixes=({SEEN: 1.0},)).plan().models["q"]

    assert sum(rates(made)[SEEN].values()) > 1


def test_the_order_of_a_profile_that_says_none_is_that_of_the_components():
    assert planner(profile(order=())).plan().models == planner().plan().models


def test_a_first_frame_is_what_some_requests_bring():
    declared = Model("m", DeclaredModel(family="ltx2", checkpoint="/m"))

    kinds = {"+".join(part for part in declared.components if part in used) for used in declared.request_types()}

    assert kinds == {
        f"text_encoder{frame}+dit+vae{sound}" for frame in ("", "+vae_encoder") for sound in ("", "+audio_vae")
    }
