"""Components that apps call share processes, as the plan of their profile decides."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.families.catalog import HostedPart
from omnibus.plan import DeploymentOption, ModelPlan
from omnibus.profile import ModelProfile, OptionProfile, RoleCost, TypeProfile, decode_profile, encode_profile
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.planned_spec import GpuType, PlannedModel
from omnibus_planner.declared.shared_processes import APPS, SHARED_ENGINE, AppsModel, share_processes
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.result import PlanningResult
from tests.unit.planner.apps import make_app, make_task

HEAR, READ_IMAGE = make_task("hear"), make_task("read-image")
MODELS = {"lm": {"family": "causal_lm", "checkpoint": "/models/lm"}}
#: Seconds of each component per request, by request type.
SECONDS = {"hear+lm": {"hear": 0.5, "lm": 1.0}, "read-image+lm": {"read-image": 1.0, "lm": 0.5}}


def make_profile(seconds: dict[str, dict[str, float]] = SECONDS, **memory: float) -> ModelProfile:
    components = tuple(dict.fromkeys(part for each in seconds.values() for part in each))
    kinds = {kind: "+".join(part for part in components if part in each) for kind, each in seconds.items()}
    options = {
        part: OptionProfile(
            (part,), "llm" if part == "lm" else "generator", gpu="cpu", memory_gb=memory.get(part, 0.5),
            work=tuple(RoleCost((part,), each[part], kinds[kind], each[part])
                       for kind, each in seconds.items() if part in each),
        )
        for part in components
    }  # fmt: skip
    types = {kinds[kind]: TypeProfile(tuple(each), 1.0) for kind, each in seconds.items()}
    return decode_profile(encode_profile(ModelProfile(APPS, "python", components, types, options)))


def plan_processes(profile: ModelProfile, places: int, memory_gb: float = 0.0, **settings: Any) -> PlanningResult:
    models = {APPS: AppsModel(PlannedModel(**settings)).with_profile(profile)}
    planner = Planner(models, {APPS: profile}, {"cpu": GpuType(places, memory_gb)}, {})
    return planner.plan()


def declare_plans() -> dict[str, ModelPlan]:
    return declarations_file.build_static_plans(msgspec.convert(MODELS, dict[str, declarations_file.DeclaredModel]))


def test_one_place_has_one_process_that_runs_all_components():
    result = plan_processes(make_profile(), 1)

    assert [(each.components, each.replicas) for each in result.models[APPS].options.values()] == [
        (("hear", "lm", "read-image"), 1)
    ]
    assert result.capacity[APPS] == pytest.approx(2 / 3, rel=0.02)


def test_two_places_divide_the_components_so_that_both_are_busy():
    result = plan_processes(make_profile(), 2)

    runs = {each.components for each in result.models[APPS].options.values()}
    assert {part for components in runs for part in components} == {"hear", "lm", "read-image"}
    assert result.capacity[APPS] == pytest.approx(4 / 3, rel=0.05)


def test_a_process_has_only_components_that_fit_the_memory_of_its_place():
    result = plan_processes(make_profile(lm=1.8), 2, memory_gb=2.0)

    assert {each.components for each in result.models[APPS].options.values()} == {("lm",), ("hear", "read-image")}


def test_names_of_processes_are_short_unless_they_would_be_equal():
    short, whole = AppsModel(PlannedModel(), ("read-image", "lm")), AppsModel(PlannedModel(), ("read-a", "read-b"))

    assert short.option_name(["read-image", "lm"]) == "read-lm"
    assert whole.option_name(["read-a", "read-b"]) == "read-a-read-b"


def test_executors_of_the_plan_run_own_tasks_and_models_by_their_own_engines():
    planned = plan_processes(make_profile(), 1).models[APPS]
    apps = {app.name: app for app in (make_app("chat", HEAR), make_app("receipt", READ_IMAGE))}

    models = share_processes(planned, apps, declare_plans())

    parts = {part.name: part for part in msgspec.json.decode(models[APPS].checkpoint, type=list[HostedPart])}
    assert (parts["lm"].component, parts["lm"].checkpoint) == ("thinker", "/models/lm")
    assert parts["lm"].engine == "omnibus_engines:transformers"
    assert json.loads(parts["hear"].checkpoint)[0]["cls"] == "words:Hear"
    assert models[APPS].tasks == {"hear": "hear", "lm": "think-lm-thinker", "read-image": "read-image"}
    assert models[APPS].apps == ("chat", "receipt")
    [(name, option)] = models[APPS].options.items()
    assert option.engine == SHARED_ENGINE
    assert models["lm"].options == {
        f"apps/{name}": DeploymentOption(("thinker",), "llm", replicas=0, of=f"apps/{name}")
    }
    assert [path.options for path in models["lm"].types["thinker"]] == [{"thinker": f"apps/{name}"}]


def test_components_keep_executors_of_their_own_until_all_apps_of_the_plan_are_registered():
    planned = plan_processes(make_profile(), 1).models[APPS]

    assert share_processes(planned, {"chat": make_app("chat", HEAR)}, declare_plans()) == {}
    assert share_processes(planned, {"all": make_app("all", HEAR, READ_IMAGE)}, {}) == {}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gpus": {}}, "apps need places for their processes"),
        ({"apps": {"cells": 2}}, "apps support neither cells nor policies"),
        ({"apps": {"goal": "most"}}, "model apps: planned goal is 'most'"),
        ({"models": {"apps": MODELS["lm"]}}, "a model cannot be named 'apps'"),
    ],
)
def test_a_plan_of_apps_that_cannot_be_followed_is_an_error(tmp_path: Path, change: dict[str, Any], fault: str):
    path = tmp_path / "models.json"
    declarations = {"models": MODELS, "gpus": {"cpu": {"count": 2}}, "apps": {"profile": "apps.json"}}
    path.write_text(json.dumps({**declarations, **change}))

    with pytest.raises(BadRequest, match=fault):
        declarations_file.read_declarations(str(path))
