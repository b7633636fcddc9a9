"""Sharing: a model's path uses another model's option; every mismatch is named."""

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.plan import DeploymentOption, ModelPlan, Plan, decode_plan, encode_plan
from omnibus_planner.declared import declarations_file

A: dict[str, Any] = {"family": "qwen2_5_vl", "checkpoint": "/a"}
B: dict[str, Any] = {
    "family": "qwen2_5_vl",
    "checkpoint": "/b",
    "shares": {"vision": "gemma-a"},
    "options": {"L": {"components": ["thinker"], "service": "llm"}},
    "paths": [{"options": ["gemma-a/E", "L"]}],
}
OMNI: dict[str, Any] = {"family": "qwen2_5_omni", "checkpoint": "/o"}


def make_plans(**changes: Any) -> dict[str, ModelPlan]:
    return build_plans({"gemma-a": A, "gemma-b": {**B, **changes}})


def build_plans(models: dict[str, dict[str, Any]]) -> dict[str, ModelPlan]:
    return declarations_file.build_static_plans(msgspec.convert(models, dict[str, declarations_file.DeclaredModel]))


def test_a_shared_component_has_one_unit_task_in_both_models():
    model_plans = make_plans()

    assert model_plans["gemma-b"].tasks == {"vision": "encode-gemma-a-vision", "thinker": "think-gemma-b-thinker"}
    owners = Plan(1, 0, 0.0, model_plans).task_owners()
    assert owners["encode-gemma-a-vision"] == (("gemma-a", "vision"), ("gemma-b", "vision"))


def test_the_shared_option_runs_in_the_other_models_executors_alone():
    model_plan = make_plans()["gemma-b"]

    assert model_plan.options == {
        "L": DeploymentOption(("thinker",), "llm"),
        "gemma-a/E": DeploymentOption(("vision",), "encoder", replicas=0, of="gemma-a/E"),
    }


def test_requests_that_need_the_shared_component_go_through_the_shared_option():
    model_plan = make_plans()["gemma-b"]

    assert {kind: [path.name for path in paths] for kind, paths in model_plan.types.items()} == {
        "thinker": ["L"],
        "vision+thinker": ["gemma-a/E>L"],
    }
    assert model_plan.types["vision+thinker"][0].options == {"vision": "gemma-a/E", "thinker": "L"}


def test_the_model_that_lends_is_as_it_was():
    assert make_plans()["gemma-a"] == build_plans({"gemma-a": A})["gemma-a"]


def test_it_does_not_matter_who_is_declared_first():
    declarations = {"gemma-a": A, "gemma-b": B}

    assert build_plans(declarations) == build_plans(dict(reversed(declarations.items())))


def test_an_option_that_runs_more_is_used_for_what_is_shared():
    model_plan = make_plans(paths=[{"options": ["gemma-a/EL", "L"], "share": 1}])["gemma-b"]

    assert model_plan.options["gemma-a/EL"].components == ("vision",)
    assert model_plan.types["vision+thinker"][0].options == {"vision": "gemma-a/EL", "thinker": "L"}


def test_the_lender_may_have_a_name_with_slashes():
    model_plans = build_plans(
        {
            "google/gemma": A,
            "b": {**B, "shares": {"vision": "google/gemma"}, "paths": [{"options": ["google/gemma/E", "L"]}]},
        }
    )

    assert model_plans["b"].options["google/gemma/E"].of == "google/gemma/E"
    assert model_plans["b"].tasks["vision"] == "encode-google_gemma-vision"


def test_some_requests_may_run_where_the_model_has_the_component_itself():
    options = {**B["options"], "EL": {"components": ["vision", "thinker"], "service": "llm"}}
    model_plans = make_plans(
        options=options, paths=[{"options": ["gemma-a/E", "L"], "share": 2}, {"options": ["EL"], "share": 1}]
    )

    assert {path.name: path.rate for path in model_plans["gemma-b"].types["vision+thinker"]} == {
        "gemma-a/E>L": 2,
        "EL": 1,
    }
    assert model_plans["gemma-b"].tasks["vision"] == "encode-gemma-a-vision"


def test_several_models_may_share_with_one_and_one_with_several():
    several = {
        **OMNI,
        "shares": {"vision": "gemma-a", "audio": "omni"},
        "options": {"Rest": {"components": ["thinker", "talker", "vocoder"], "service": "llm"}},
        "paths": [{"options": ["gemma-a/E", "omni/EA", "Rest"]}],
    }
    model_plans = build_plans({"gemma-a": A, "gemma-b": B, "omni": OMNI, "c": several})

    assert model_plans["c"].tasks["vision"] == model_plans["gemma-b"].tasks["vision"] == "encode-gemma-a-vision"
    assert model_plans["c"].tasks["audio"] == "encode-omni-audio"
    assert model_plans["c"].types["vision+audio+thinker"][0].name == "gemma-a/E>omni/EA>Rest"


def test_a_plan_with_shares_can_be_written_and_read():
    plan = Plan(1, 0, 0.0, make_plans())

    assert decode_plan(encode_plan(plan)) == plan


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "model unknown": ({"shares": {"vision": "gamma"}}, "shares vision with 'gamma', which is not declared; there is gemma-a"),
    "itself": ({"shares": {"vision": "gemma-b"}}, "shares vision with 'gemma-b', which is itself"),
    "component unknown here": (
        {"shares": {"vision": "gemma-a", "audio": "gemma-a"}}, "shares audio with 'gemma-a', but has no audio",
    ),
    "component unknown there": (
        {"family": "qwen2_5_omni", "shares": {"audio": "gemma-a"}},
        "shares audio with 'gemma-a', which has no audio; it has vision, thinker",
    ),
    "another kind": ({"tasks": {"vision": "see"}}, "its unit task is of kind 'see' here and 'encode' there"),
    "no path": (
        {"options": None, "paths": [{"options": ["E", "L"]}]},
        "shares vision with gemma-a, but no path names an option of gemma-a that runs it",
    ),
    "option unknown": (
        {"paths": [{"options": ["gemma-a/X", "L"]}]},
        "option gemma-a/X, but gemma-a declares no option 'X'; there is E, EL, L",
    ),
    "option runs something else": (
        {"paths": [{"options": ["gemma-a/E", "L"]}, {"options": ["gemma-a/L", "L"]}]},
        "option gemma-a/L, but it runs thinker, not the shared vision",
    ),
    "option of a stranger": (
        {"paths": [{"options": ["gamma/E", "L"]}]}, "option gamma/E, but there is no model 'gamma'; there is gemma-a, gemma-b",
    ),
    "option of one that shares nothing": (
        {"shares": {}}, "option gemma-a/E, but 'shares' names no component of gemma-a",
    ),
    "path incomplete": ({"paths": [{"options": ["gemma-a/E"]}]}, r"path \('gemma-a/E',\) runs no thinker"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_share_that_does_not_fit_is_named(changes: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=f"^model gemma-b: .*{fault}"):
        make_plans(**changes)


def test_what_is_borrowed_is_not_lent_on():
    third = {**B, "shares": {"vision": "gemma-b"}, "paths": [{"options": ["gemma-b/L", "L"]}]}

    with pytest.raises(
        BadRequest, match="^model c: shares vision with 'gemma-b', which has it from 'gemma-a': name that one"
    ):
        build_plans({"gemma-a": A, "gemma-b": B, "c": third})


def test_sharing_does_not_hide_names_that_collide():
    with pytest.raises(
        BadRequest, match=r"thinker of model b\.x and thinker of model b_x have the same unit task name"
    ):
        build_plans({"gemma-a": A, "b.x": B, "b_x": B})


# Weights


@pytest.fixture(autouse=True)
def set_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of cached digests of weights."""
    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path / "cache"))


def write_checkpoint(directory: Path, image: bytes) -> str:
    """Write a checkpoint with an encoder of these weights and a different language model."""
    header = {
        "visual.w": {"dtype": "U8", "shape": [len(image)], "data_offsets": [0, len(image)]},
        "model.w": {"dtype": "U8", "shape": [8], "data_offsets": [len(image), len(image) + 8]},
    }
    body = json.dumps(header).encode()
    directory.mkdir()
    whole = struct.pack("<Q", len(body)) + body + image + directory.name[:1].encode() * 8
    (directory / "model.safetensors").write_bytes(whole)
    return str(directory)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Two models with one encoder, and one with a different encoder."""
    weights = {"a": b"one", "b": b"one", "c": b"two"}
    return {name: {**A, "checkpoint": write_checkpoint(tmp_path / name, image)} for name, image in weights.items()}


def list_shares(plan: ModelPlan) -> dict[str, str]:
    return {name: option.of for name, option in plan.options.items() if option.of}


def test_a_share_of_other_weights_is_refused_with_the_first_difference(models: dict[str, dict[str, Any]]):
    def declare_share(name: str) -> dict[str, Any]:
        return {**B, "checkpoint": models[name]["checkpoint"]}

    build_plans({"gemma-a": models["a"], "gemma-b": declare_share("b")})
    with pytest.raises(
        BadRequest,
        match="model gemma-b: shares vision with 'gemma-a', but 1 of 1 weights have other values, w is the first",
    ):
        build_plans({"gemma-a": models["a"], "gemma-b": declare_share("c")})


def test_a_share_of_an_encoder_with_other_preprocessing_is_refused(models: dict[str, dict[str, Any]]):
    (Path(models["b"]["checkpoint"]) / "preprocessor_config.json").write_text('{"image_mean": [0.5]}')

    with pytest.raises(BadRequest, match=r"image_mean is \[0\.5\] here and nothing there"):
        build_plans({"gemma-a": models["a"], "gemma-b": {**B, "checkpoint": models["b"]["checkpoint"]}})


def test_equal_encoders_are_shared_without_a_word(models: dict[str, dict[str, Any]], caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO"):
        model_plans = build_plans(models)

    assert {name: list_shares(plan) for name, plan in model_plans.items()} == {"a": {}, "b": {"a/E": "a/E"}, "c": {}}
    assert model_plans["b"].tasks == {"vision": "encode-a-vision", "thinker": "think-b-thinker"}
    assert [path.name for path in model_plans["b"].types["vision+thinker"]] == ["a/E>L", "EL", "a/E>EL"]
    assert model_plans["a"] == build_plans({"a": models["a"]})["a"]
    assert "a and b have the same vision" in caplog.text


def test_a_model_may_keep_to_itself(models: dict[str, dict[str, Any]]):
    alone = build_plans({"a": models["a"], "b": {**models["b"], "share_equal": False}})

    assert alone == {**build_plans({"a": models["a"]}), **build_plans({"b": models["b"]})}


def test_the_shared_option_has_as_many_executors_as_the_model_that_declares_most(models: dict[str, dict[str, Any]]):
    options = {
        "E": {"components": ["vision"], "service": "encoder", "replicas": 3},
        "L": {"components": ["thinker"], "service": "llm"},
    }
    models["b"] |= {"options": options, "paths": [{"options": ["E", "L"]}]}

    model_plans = build_plans(models)

    assert model_plans["a"].options["E"].replicas == 3
    assert list_shares(model_plans["b"]) == {"a/E": "a/E"}


@pytest.mark.parametrize("own", [{"dtype": "bfloat16"}, {"checkpoint": "/elsewhere"}, {"gpus": 1}])
def test_executors_that_run_otherwise_are_not_shared(models: dict[str, dict[str, Any]], own: dict[str, Any]):
    options = {
        "E": {"components": ["vision"], "service": "encoder", **own},
        "L": {"components": ["thinker"], "service": "llm"},
    }
    models["b"] |= {"options": options, "paths": [{"options": ["E", "L"]}]}

    assert {name: list_shares(plan) for name, plan in build_plans(models).items()} == {"a": {}, "b": {}, "c": {}}


def test_a_model_that_others_share_with_lends_although_another_one_comes_first(models: dict[str, dict[str, Any]]):
    third = {**B, "shares": {"vision": "b"}, "paths": [{"options": ["b/E", "L"]}]}

    model_plans = build_plans({**models, "third": third})

    assert {name: list_shares(plan) for name, plan in model_plans.items()} == {
        "a": {"b/E": "b/E"}, "b": {}, "c": {}, "third": {"b/E": "b/E"},
    }  # fmt: skip


def test_models_that_are_planned_share_among_themselves_where_they_are_planned_together(
    models: dict[str, dict[str, Any]],
):
    some_planned = {**models, "b": {**models["b"], "planned": {}}}
    both_planned = {**some_planned, "a": {**models["a"], "planned": {}}}
    with_cells = {**some_planned, "a": {**models["a"], "planned": {"cells": 2}}}

    def find_shares(declarations: dict[str, Any]) -> dict[str, dict[str, str]]:
        read = msgspec.convert(declarations, dict[str, declarations_file.DeclaredModel])
        return {name: model.shares for name, model in declarations_file.planned_models(read).items()}

    assert find_shares(some_planned) == {"b": {}}
    assert find_shares(both_planned) == {"a": {}, "b": {"vision": "a"}}
    assert find_shares(with_cells) == {"a": {}, "b": {}}
